"""Canaries: they go first, and the rest of their agent, model and skill mode starts only when they are fine."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

WORKERS = pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
ASKED = ("tasks", "-m", "rollout", "--benchflow-job-name=first")
CANARY = "--benchflow-canary=middle"
BOTH = ("--benchflow-agent=oracle", "--benchflow-agent=nop")
UNSCORED = "#!/bin/sh\nexit 1\n"

# An agent that ends the process that runs it, on the task that is the canary.
KILLER = """
import os
import signal

from pytest_benchflow.contracts import AgentOutcome


class Killer:
    name, version, uses_model, api_dialect = "killer", "1", False, None

    def unsupported(self, task):
        return None

    async def install(self, backend, task, log_dir):
        return ()

    async def run(self, context):
        if context.task.path.name == "middle":
            os.kill(os.getpid(), signal.SIGKILL)
        return AgentOutcome(stop="finished")


def pytest_benchflow_agents():
    return {"killer": lambda name: Killer()}
"""


@pytest.fixture
def three(bench: Bench) -> Bench:
    for name in ("first", "middle", "zeta"):
        bench.task(name)
    return bench


def summary(bench: Bench) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((bench.path / "jobs" / "first" / "summary.json").read_text("utf-8"))
    return value


def command(bench: Bench, *arguments: str) -> int:
    return int(bench.pytester.run(sys.executable, "-m", "pytest_benchflow", *arguments).ret)


def ran(bench: Bench) -> list[str]:
    return [path.name.replace("__none__default__1", "") for path in bench.rollouts()]


def test_the_items_of_canaries_are_first_in_the_order_they_have(three: Bench) -> None:
    ids = three.ids("tasks", *BOTH, "--benchflow-canary=zeta,middle")
    plain = three.ids("tasks", *BOTH)
    first = [each for each in plain if "/first/" not in each]
    assert ids == [*first, *(each for each in plain if "/first/" in each)]
    assert len(first) > 4


def test_a_canary_that_is_no_task_is_refused_with_those_like_it(three: Bench) -> None:
    three.refused(
        "tasks", "--benchflow-canary=midle", says="'midle', which is no task of this session; near it: middle"
    )
    three.refused("tasks/zeta", CANARY, says="--benchflow-canary names 'middle', which is no task of this session")
    three.refused("tasks", "--benchflow-canary=middle,,zeta", says="--benchflow-canary names a task ''")
    three.refused("tasks", "--benchflow-require-audit", says="there are none; pass --benchflow-canary=TASK")


@WORKERS
def test_the_rest_starts_when_the_canaries_are_healthy(three: Bench, workers: str) -> None:
    done = three.run(*ASKED, *BOTH, CANARY, "-n", workers)
    assert done.ret == 0, done.outlines
    found = summary(three)
    assert found["coverage"] == {"planned": 6, "healthy": 6, "unhealthy": 0, "skipped": 0, "missing": 0}
    assert found["canaries"] == {"planned": 2, "healthy": 2, "unhealthy": 0, "skipped": 0, "missing": 0}
    begun = {path.name: (three.result(path)["started_at"], three.config(path)["canary"]) for path in three.rollouts()}
    ends = {path.name: three.result(path)["finished_at"] for path in three.rollouts()}
    for name, (started, canary) in begun.items():
        task, agent = name.split("__")[:2]
        assert canary is (task == "middle")
        assert canary or started >= ends[f"middle__{agent}__none__default__1"]
    assert not list((three.path / "jobs" / "first").glob(".canary*"))


@WORKERS
def test_an_unhealthy_canary_keeps_the_rest_of_its_agent_from_starting(three: Bench, workers: str) -> None:
    three.task("middle", test="#!/bin/sh\n[ -e /app/out.txt ] && echo 1 > /logs/verifier/reward.txt || exit 1\n")
    done = three.run(*ASKED, *BOTH, CANARY, "-n", workers)
    assert done.ret == 1
    assert ran(three) == ["first__oracle", "middle__nop", "middle__oracle", "zeta__oracle"]
    text = " ".join(done.outlines)
    assert (
        "this run fails, for 2 of 6 rollouts did not run: not started: the canary middle__nop__none__default__1" in text
    )
    assert "put right (what is changed in a task needs another job), go on, with what is healthy kept: pytest " in text
    missing = {cell["rollout"]: cell["reason"] for cell in summary(three)["missing"]}
    assert list(missing) == [f"{task}__nop__none__default__1" for task in ("first", "zeta")]
    assert all(
        reason.startswith("not started: the canary middle__nop__none__default__1 is unhealthy (verifier)")
        for reason in missing.values()
    )


def test_no_limit_lets_a_run_pass_in_which_rollouts_were_held_back(three: Bench) -> None:
    three.task("middle", test="#!/bin/sh\nexit 1\n")
    done = three.run(*ASKED, "--benchflow-agent=nop", CANARY, "--benchflow-max-unhealthy=100%")
    assert done.ret == 1
    assert "this run fails, for 2 of 3 rollouts did not run" in " ".join(done.outlines)
    assert "this run passes" not in " ".join(done.outlines)


@WORKERS
def test_with_looking_ahead_nothing_starts_before_its_canary_ended(three: Bench, workers: str) -> None:
    three.task("middle", test=UNSCORED)
    done = three.run(*ASKED, *BOTH, CANARY, "--benchflow-concurrency=8", "-n", workers)
    assert done.ret == 1
    assert ran(three) == ["middle__nop", "middle__oracle"]
    assert summary(three)["coverage"] == {"planned": 6, "healthy": 0, "unhealthy": 2, "skipped": 0, "missing": 4}


def test_a_canary_of_what_its_task_was_before_tells_nothing(three: Bench) -> None:
    named = ["--benchflow-agent=nop", "--benchflow-job-name=ramp"]
    assert three.run(*ASKED, *named, CANARY, "-k", "middle").ret == 0
    three.write(three.path / "tasks" / "middle", {"instruction.md": "Do something else.\n"})
    done = three.run(*ASKED, *named, CANARY, "-k", "zeta")
    assert done.ret == 1
    assert ran(three) == ["middle__nop"]
    assert "is of another task digest, and this session does not run it" in " ".join(done.outlines)


def test_a_canary_that_cannot_run_here_or_is_left_out_tells_nothing(three: Bench) -> None:
    done = three.run(*ASKED, "--benchflow-agent=nop", CANARY, "-k", "zeta")
    assert done.ret == 1
    assert "has no rollout in this job, and this session does not run it" in " ".join(done.outlines)
    assert ran(three) == []
    three.write(three.path / "tasks" / "middle", {"environment/Dockerfile": "FROM golang:1.22\n"})
    done = three.run(*ASKED, "--benchflow-agent=nop", CANARY)
    assert done.ret == 1
    assert ran(three) == []
    assert "left no rollout: needs docker" in " ".join(done.outlines)


def test_what_an_earlier_run_of_the_job_found_of_a_canary_counts_where_it_is_left_out(three: Bench) -> None:
    assert three.run(*ASKED, "--benchflow-agent=nop", CANARY, "-k", "middle").ret == 0
    done = three.run(*ASKED, "--benchflow-agent=nop", CANARY, "-k", "zeta")
    assert done.ret == 0, done.outlines
    assert ran(three) == ["middle__nop", "zeta__nop"]


def test_an_audit_that_is_asked_for_ends_the_first_run_and_its_commands_go_on(three: Bench) -> None:
    done = three.run(*ASKED, "--benchflow-agent=nop", CANARY, "--benchflow-require-audit", "-n", "2")
    assert done.ret == 1
    assert ran(three) == ["middle__nop"]
    assert "is healthy and has no audit" in " ".join(done.outlines)
    begun = three.result(three.rollouts()[0])["started_at"]
    audit, go_on = (line.partition(": ")[2] for line in done.outlines if line.startswith(("  read it", "  then go")))
    program, *arguments = shlex.split(audit)
    assert program == "pytest-benchflow"
    assert command(three, *arguments[:3], "quarantine", *arguments[4:]) == 0
    again = [each for each in shlex.split(go_on)[1:] if not each.startswith("--basetemp")]
    assert "--benchflow-resume" in again
    done = three.run(*again)
    assert (done.ret, ran(three)) == (1, ["middle__nop"])
    assert "is healthy, but its audit says quarantine" in " ".join(done.outlines)
    assert command(three, *arguments) == 0
    done = three.run(*again)
    assert done.ret == 0, done.outlines
    assert ran(three) == ["first__nop", "middle__nop", "zeta__nop"]
    assert three.result(three.rollouts()[1])["started_at"] == begun


def test_an_audit_of_another_trace_does_not_count(three: Bench) -> None:
    asked = (*ASKED, "--benchflow-agent=nop", CANARY, "--benchflow-require-audit")
    three.run(*asked)
    (canary,) = three.rollouts()
    assert command(three, "audit", str(canary), "--verdict", "publishable", "--by", "clerk") == 0
    with (canary / "trajectory" / "acp_trajectory.jsonl").open("a") as file:
        file.write("\n")
    done = three.run(*asked, "--benchflow-resume", "-k", "zeta")
    assert done.ret == 1
    assert "its audit does not hold: the raw trace has changed since" in " ".join(done.outlines)


@WORKERS
def test_a_canary_whose_rung_is_overridden_is_waited_for(three: Bench, workers: str) -> None:
    three.write(
        three.path,
        {"conftest.py": "import pytest\n\n\n@pytest.fixture\ndef agent():\n    return 'oracle'\n"},
    )
    done = three.run(*ASKED, "--benchflow-agent=nop", CANARY, "-n", workers)
    assert done.ret == 0, done.outlines
    assert ran(three) == ["first__oracle", "middle__oracle", "zeta__oracle"]


@pytest.mark.parametrize("checks", [False, True], ids=["rollouts", "with-checks"])
def test_a_canary_that_takes_its_worker_along_ends_the_run(three: Bench, checks: bool) -> None:
    three.pytester.makeconftest(KILLER)
    asked = ("-k", "rollout or verdict") if checks else ("-m", "rollout")
    done = three.run("tasks", "--benchflow-job-name=first", *asked, "--benchflow-agent=killer", CANARY, "-n", "2")
    assert done.ret == 1, done.outlines
    found = summary(three)
    assert found["coverage"]["healthy"] == 0
    assert found["coverage"]["missing"] == 2
    assert ran(three) == ["middle__killer"]
