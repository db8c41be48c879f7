"""Groups are handed to workers so that each is done, whichever workers die."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_benchflow.collect.scheduling import CellScheduling

GROUPS = ("a", "b", "c")
ITEMS = [f"{group}/task.toml::{item}[nop]" for group in GROUPS for item in ("rollout", "check_one")]


class Worker:
    """A worker as the scheduler sees it: what it was sent, and whether it was told that no more will come."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduling(workers: int) -> CellScheduling:
    option = SimpleNamespace(loadscopereorder=False, debug=False)
    config: Any = SimpleNamespace(getvalue=lambda _: ["popen"] * workers, option=option)
    return CellScheduling(config, None, flights=1)


def join(made: CellScheduling, worker: Worker) -> None:
    made.add_node(worker)
    made.add_node_collection(worker, ITEMS)
    if made.collection_is_completed:
        made.schedule()


def run(made: CellScheduling, worker: Worker, items: int) -> None:
    """Complete items as a worker does: the last that it has only when it is told that no more will come."""
    for _ in range(items):
        assert len(worker.sent) > 1 or worker.shutting_down, f"{worker.gateway.id} waits for ever"
        made.mark_test_complete(worker, worker.sent.pop(0))


def test_a_group_that_a_dead_worker_had_done_is_not_handed_on() -> None:
    made = scheduling(2)
    first, second, third = (Worker(f"gw{number}") for number in range(3))
    join(made, first)
    join(made, second)
    run(made, first, 2)
    assert made.remove_node(second) == ITEMS[2]
    assert made.remove_node(first) == ITEMS[4]
    join(made, third)
    run(made, third, 4)
    assert (third.sent, third.shutting_down) == ([], True)
    assert made.tests_finished
