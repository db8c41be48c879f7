"""Groups are handed to workers so that each is done, whichever workers die."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_benchflow.collect.scheduling import CellScheduling

if TYPE_CHECKING:
    from collections.abc import Callable

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


def scheduling(workers: int, lost: Callable[[str], None] = lambda _: None) -> Any:
    told: list[Any] = []
    option = SimpleNamespace(loadscopereorder=False, debug=False)
    hook = SimpleNamespace(pytest_runtest_logreport=lambda *, report: told.append(report))
    config: Any = SimpleNamespace(getvalue=lambda _: ["popen"] * workers, option=option, hook=hook)
    made: Any = CellScheduling(config, None, flights=1, lost=lost)
    made.told = told
    return made


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
    # What ran when a worker died is done, and only what follows it in its group is handed on.
    assert [ITEMS[index] for index in third.sent] == [ITEMS[3], ITEMS[5]]
    run(made, third, 2)
    assert (third.sent, third.shutting_down) == ([], True)
    assert made.tests_finished


def test_a_group_that_takes_several_workers_along_is_told_of_and_not_run() -> None:
    lost: list[str] = []
    made = scheduling(1, lost=lost.append)
    items = [f"a/task.toml::{item}[nop]" for item in ("rollout", "check_one", "check_two", "check_three")]
    for number in range(2):
        worker = Worker(f"gw{number}")
        made.add_node(worker)
        made.add_node_collection(worker, items)
        made.schedule()
        assert made.remove_node(worker) == items[number]
    assert lost == items[:2]
    assert [(each.nodeid, each.outcome) for each in made.told] == [(item, "failed") for item in items[2:]]
    assert "not run: 2 workers died as they ran items of a/task.toml[nop]" in str(made.told[0].longrepr)
    assert made.tests_finished
