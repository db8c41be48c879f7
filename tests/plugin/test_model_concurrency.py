"""--benchflow-model-concurrency: calls open at once per key, whichever worker makes them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.records.rollout import Rollout
from tests.modelhost import Reply, providing
from tests.plugin.bench import outcomes
from tests.plugin.test_cost import Seller

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import BaseHTTPRequestHandler

    from tests.plugin.bench import Bench


class Counting(Seller):
    """Takes its time, and counts who waits at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 1  # does not fail at first
        self.turn = threading.Lock()
        self.open = self.most = 0

    def reply(self, body: dict[str, Any], request: BaseHTTPRequestHandler) -> Reply:
        with self.turn:
            self.open += 1
            self.most = max(self.most, self.open)
        time.sleep(0.3)
        # Before the answer: the next call may come as soon as that is there.
        with self.turn:
            self.open -= 1
        return super().reply(body, request)


@pytest.fixture
def provider() -> Iterator[Counting]:
    with providing(Counting()) as made:
        yield made


def test_two_workers_keep_to_one_limit(bench: Bench, provider: Counting) -> None:
    for number in range(4):
        bench.task(f"task-{number}")
    asked = ("tasks", "-m", "rollout", "-n2", "--dist=loadgroup", f"--benchflow-model={provider.model}")
    done = bench.run(*asked, "--benchflow-model-concurrency=1")
    assert outcomes(done) == {"solved": 4}, done.outlines
    assert (provider.most, provider.asked) == (1, 9)
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
