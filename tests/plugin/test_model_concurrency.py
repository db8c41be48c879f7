"""--benchflow-model-concurrency: calls open at once per key, whichever worker makes them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.records.rollout import Rollout
from tests.plugin.bench import outcomes
from tests.plugin.test_cost import Answer, Provider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.plugin.bench import Bench


class Counting(Answer):
    """Takes its time, and counts who waits at the same time."""

    turn = threading.Lock()
    open = most = 0

    def do_POST(self) -> None:  # noqa: N802 - http.server calls it so
        with self.turn:
            Counting.open += 1
            Counting.most = max(Counting.most, Counting.open)
        time.sleep(0.3)
        # Before the answer: the next call may come as soon as that is there.
        with self.turn:
            Counting.open -= 1
        super().do_POST()


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        server.asked = 1  # does not fail at first
        server.RequestHandlerClass = Counting
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_two_workers_keep_to_one_limit(bench: Bench, provider: Provider) -> None:
    for number in range(4):
        bench.task(f"task-{number}")
    asked = ("tasks", "-m", "rollout", "-n2", "--dist=loadgroup", f"--benchflow-model={provider.model}")
    done = bench.run(*asked, "--benchflow-model-concurrency=1")
    assert outcomes(done) == {"solved": 4}, done.outlines
    assert (Counting.most, provider.asked) == (1, 9)
    waited = [
        exchange["metadata"]["waited"]["concurrency_ms"]
        for path in bench.rollouts()
        for exchange in Rollout(path).exchanges
        if "waited" in exchange["metadata"]
    ]
    assert waited, "each worker found the other's call open"


@pytest.mark.parametrize("given", ["0", "-3"])
def test_a_limit_is_a_whole_number_above_0(bench: Bench, given: str) -> None:
    bench.task()
    bench.refused("tasks", f"--benchflow-model-concurrency={given}", says=f"--benchflow-model-concurrency is {given}")
