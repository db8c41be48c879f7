"""Limits of a whole job: they decide how a session ends, over all that was planned and never over what is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

WORKERS = pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
ASKED = ("tasks", "-m", "rollout", "--benchflow-job-name=first", "--benchflow-agent=clerk")
RATE, MOST = "--benchflow-min-pass-rate", "--benchflow-max-unhealthy"

CLERK = """
from pytest_benchflow.contracts import AgentOutcome


class Clerk:
    name, version, uses_model, api_dialect = "clerk", "1", False, None

    def unsupported(self, task):
        return None

    async def install(self, backend, task, log_dir):
        return ()

    async def run(self, context):
        return AgentOutcome(stop="finished")


def pytest_benchflow_agents():
    return {"clerk": lambda name: Clerk()}
"""


@pytest.fixture
def mixed(bench: Bench) -> Bench:
    """Return tasks of which two are solved, one is not, and the verifier of one crashes."""
    bench.pytester.makeconftest(CLERK)
    for name, reward in (("a-solved", 1), ("b-solved", 1), ("c-unsolved", 0)):
        bench.task(name, test=f"#!/bin/sh\necho {reward} > /logs/verifier/reward.txt\n")
    bench.task("d-broken", test="#!/bin/sh\nexit 1\n")
    return bench


def said(done: pytest.RunResult, option: str) -> str:
    (line,) = [line for line in done.outlines if line.startswith(f"{option}: ")]
    return line.removeprefix(f"{option}: ")


@WORKERS
def test_limits_that_hold_take_back_the_failures_they_allow(mixed: Bench, workers: str) -> None:
    done = mixed.run(*ASKED, f"{RATE}=0.5", f"{MOST}=25%", "-n", workers)
    assert done.ret == 0, done.outlines
    assert done.parseoutcomes()["failed"] == 1
    assert said(done, RATE) == "passed, 2 of 4 solved is 0.5 (1 unhealthy and 0 missing); it takes at least 0.5"
    assert said(done, MOST) == "passed, 1 of 4 not healthy is 25.00% (1 unhealthy and 0 missing); it takes at most 25%"
    assert "this run passes: its 1 failure is of rollouts that these limits allow" in done.outlines
    assert "the whole job" not in str(done.outlines)
    # One rollout, which is solved, of a job in which half are.
    done = mixed.run(*ASKED, "--benchflow-resume=missing", f"{RATE}=0.51", "-k", "a-solved", "-n", workers)
    assert done.ret == 1, done.outlines
    assert said(done, RATE) == "failed, 2 of 4 solved is 0.5 (1 unhealthy and 0 missing); it takes at least 0.51"
    assert "the whole job: 2/4 solved · 3/4 healthy · 1 unhealthy · 0 missing" in done.outlines


def test_each_limit_alone_takes_back_only_what_it_is_about(mixed: Bench) -> None:
    done = mixed.run(*ASKED, f"{RATE}=0.5")
    assert done.ret == 1
    assert said(done, RATE).startswith("passed")
    fresh = ("tasks", "-m", "rollout", "--benchflow-agent=clerk", "--benchflow-gate=reward", "-k", "not broken")
    assert mixed.run(*fresh, "--benchflow-job-name=second", f"{RATE}=0.5").ret == 0
    done = mixed.run(*fresh, "--benchflow-job-name=third", f"{MOST}=1")
    assert done.ret == 1
    assert said(done, MOST).startswith("passed")


def test_what_is_missing_is_not_healthy_and_another_failure_stays_one(mixed: Bench) -> None:
    asked = ("-m", "not check", "--benchflow-agent=clerk", f"{MOST}=1")
    mixed.pytester.makepyfile("def test_other():\n    assert False\n")
    file = next(mixed.path.glob("test_*.py")).name
    done = mixed.run(file, "tasks/d-broken", *asked, "--benchflow-job-name=first")
    assert done.ret == 1
    assert said(done, MOST).startswith("passed, 1 of 1 not healthy")
    done = mixed.run("tasks/d-broken", "tasks/a-solved", *asked, "--benchflow-job-name=second", "-x")
    assert done.ret == 1
    assert said(done, MOST).startswith("failed, 2 of 2 not healthy is 100.00% (1 unhealthy and 1 missing)")
    assert "the whole job: 0/2 solved · 0/2 healthy · 1 unhealthy · 1 missing" in done.outlines


def test_no_limit_holds_where_nothing_is_known(bench: Bench) -> None:
    bench.task()
    bench.pytester.makepyfile("def test_other():\n    pass\n")
    file = next(bench.path.glob("test_*.py")).name
    done = bench.run(file, f"{MOST}=100%")
    assert done.ret == 1
    assert said(done, MOST) == "failed, for nothing is known: no rollout was planned"
    bench.ini("benchflow_max_unhealthy = 1")
    assert bench.run(file).ret == 0
    bench.write(bench.path / "tasks" / "hello", {"environment/Dockerfile": "FROM golang:1.22\n"})
    done = bench.run("tasks", file, "-m", "not check", "--benchflow-agent=nop")
    assert done.ret == 1
    assert said(done, MOST) == "failed, for nothing is known: no rollout could run here"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (f"{RATE}=0", "it takes a share above 0, up to 1"),
        (f"{RATE}=80%", "is '80%'; it takes a number"),
        (f"{RATE}=nan", "it takes a share above 0, up to 1"),
        (f"{MOST}=-1", "it takes how many may be unhealthy, as 3, or what share of all, as 5%"),
        (f"{MOST}=101%", "is '101%'; it takes how many"),
        (f"{MOST}=some", "is 'some'; it takes how many"),
    ],
)
def test_a_limit_that_is_none_is_refused(bench: Bench, option: str, says: str) -> None:
    bench.task()
    bench.refused("tasks", "--benchflow-agent=nop", option, says=says)


def test_no_limit_takes_back_what_shows_that_a_task_is_broken(mixed: Bench) -> None:
    asked = ("tasks/a-solved", "tasks/c-unsolved", "-m", "rollout", "--benchflow-agent=nop", "--benchflow-gate=reward")
    done = mixed.run(*asked, f"{RATE}=0.5")
    assert done.ret == 1, done.outlines
    assert "doing nothing got reward 1" in " ".join(done.outlines)
    assert said(done, RATE).startswith("passed, 1 of 2 solved is 0.5")
