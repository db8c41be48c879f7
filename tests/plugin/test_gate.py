"""--benchflow-gate: health asks for a healthy rollout, reward for a full reward too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.bench import outcomes

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

# An agent that does nothing but is not called nop: only the gate decides.
IDLE = """
from pytest_benchflow.agents.nop import agent as nop


def idle(name):
    made = nop("nop")
    made.name = name
    return made


def pytest_benchflow_agents():
    return {"idle": idle}
"""


@pytest.mark.parametrize(("gate", "expected"), [("health", {"unsolved": 1}), ("reward", {"failed": 1})])
def test_an_unsolved_task_passes_only_the_gate_of_health(bench: Bench, gate: str, expected: dict[str, int]) -> None:
    bench.task()
    bench.pytester.makeconftest(IDLE)
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=idle", f"--benchflow-gate={gate}")
    assert outcomes(done) == expected
    assert done.ret == (1 if gate == "reward" else 0)
    assert ("the reward is 0, and --benchflow-gate=reward asks for 1" in done.stdout.str()) is (gate == "reward")


def test_nop_stays_below_a_full_reward_under_either_gate(bench: Bench) -> None:
    bench.task()
    bench.ini("benchflow_gate = reward")
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "--benchflow-agent=nop")
    assert outcomes(done) == {"solved": 1, "unsolved": 1}


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("#!/bin/sh\ntrue\n", "verifier"),
        ("#!/bin/sh\necho nan > /logs/verifier/reward.txt\n", "verifier"),
    ],
    ids=["no-reward", "not-a-number"],
)
def test_a_verifier_without_a_score_fails_whatever_the_gate(bench: Bench, test: str, says: str) -> None:
    bench.task(test=test)
    done = bench.run("tasks", "--benchflow-agent=nop", "-m", "rollout")
    assert done.ret == 1
    assert outcomes(done) == {"failed": 1}
    text = done.stdout.str()
    assert f"unhealthy ({says})" in text
    assert "/logs/verifier/reward.txt" in text
    assert "logs: " in text
    assert "try: " in text
    assert "Traceback" not in text
    assert "0/1 healthy" in text


def test_what_broke_is_said_once(bench: Bench) -> None:
    bench.task(test="#!/bin/sh\necho no tools here >&2\nexit 3\n")
    done = bench.run("tasks", "--benchflow-agent=oracle")
    assert done.ret == 1
    text = done.stdout.str()
    assert text.count("it said last: no tools here") == 1
    assert "no finite reward" not in text
    assert "run the agent oracle" not in text
    assert "try: the task's own solution gets no score either" in text
    assert (
        text.count("the error of tasks/hello/task.toml::rollout[oracle-none-default-1] says why")
        == done.parseoutcomes()["failed"] - 1
    )
    alone = bench.run("tasks", "--benchflow-agent=oracle", "-k", "verifier_had_no_error")
    assert alone.stdout.str().count("it said last: no tools here") == 1
