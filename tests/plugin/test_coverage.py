"""summary.json: what became of every planned cell, also of those that left no rollout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugin.bench import TASK_TOML

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

WORKERS = pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
ASKED = ("tasks", "-m", "rollout", "--benchflow-job-name=first")


def summary(bench: Bench) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((bench.path / "jobs" / "first" / "summary.json").read_text("utf-8"))
    return value


@WORKERS
def test_each_skipped_cell_is_told_with_its_reason_and_is_in_no_mean(bench: Bench, workers: str) -> None:
    bench.task("fine")
    needy = bench.task("needy")
    bench.write(needy, {"environment/Dockerfile": "FROM golang:1.22\n"})
    agents = ("--benchflow-agent=oracle", "--benchflow-agent=nop", "--benchflow-agent=baseline")
    done = bench.run(*ASKED, *agents, "-n", workers)
    assert done.ret == 0, done.outlines
    found = summary(bench)
    assert found["coverage"] == {"planned": 6, "healthy": 2, "unhealthy": 0, "skipped": 4, "missing": 0}
    assert found["verdicts"] == {"fail": 1, "pass": 1, "skipped": 4}
    assert found["reward"] == {"scored": 2, "asked": 2, "mean": 0.5}
    assert found["missing"] == []
    reasons = {cell["rollout"]: cell["reason"] for cell in found["skipped"]}
    assert list(reasons) == [
        "fine__baseline__replay__default__1",
        *(f"needy__{agent}__{model}__default__1" for agent, model in (("baseline", "replay"), ("nop", "none"))),
        "needy__oracle__none__default__1",
    ]
    assert "--benchflow-model" in reasons.pop("fine__baseline__replay__default__1")
    assert all("needs docker: FROM golang:1.22" in reason for reason in reasons.values())
    bench.run(*ASKED, "-k", "fine", "--benchflow-agent=nop", "-n", workers)
    assert summary(bench)["coverage"] == found["coverage"]


def test_what_was_skipped_and_can_run_now_is_a_rollout(bench: Bench) -> None:
    task = bench.task()
    asked = (*ASKED, "--benchflow-agent=nop", "--benchflow-skills=with")
    assert bench.run(*asked).ret == 1
    assert summary(bench)["coverage"] == {"planned": 1, "healthy": 0, "unhealthy": 0, "skipped": 1, "missing": 0}
    (task / "task.toml").write_text(TASK_TOML + '[environment]\nskills_dir = "/skills"\n')
    bench.write(task / "environment" / "skills" / "writing", {"SKILL.md": "---\nname: writing\n---\nUse echo.\n"})
    assert bench.run(*asked).ret == 0
    assert summary(bench)["coverage"] == {"planned": 1, "healthy": 1, "unhealthy": 0, "skipped": 0, "missing": 0}
    assert summary(bench)["skipped"] == []


def test_what_a_run_did_not_come_to_is_missing(bench: Bench) -> None:
    bench.task("broken", test="#!/bin/sh\nexit 1\n")
    bench.task("later")
    assert bench.run(*ASKED, "--benchflow-agent=nop", "-x").ret == 1
    found = summary(bench)
    assert found["coverage"] == {"planned": 2, "healthy": 0, "unhealthy": 1, "skipped": 0, "missing": 1}
    assert found["missing"] == [{"rollout": "later__nop__none__default__1", "reason": None}]


def test_a_cell_that_a_conftest_makes_another_of_counts_once(bench: Bench) -> None:
    bench.task()
    bench.write(
        bench.path,
        {"conftest.py": "import pytest\n\n\n@pytest.fixture\ndef agent():\n    return 'oracle'\n"},
    )
    assert bench.run(*ASKED, "--benchflow-agent=nop").ret == 0
    assert [path.name for path in bench.rollouts()] == ["hello__oracle__none__default__1"]
    assert summary(bench)["coverage"] == {"planned": 1, "healthy": 1, "unhealthy": 0, "skipped": 0, "missing": 0}


def test_a_cell_that_an_error_kept_from_running_is_missing_with_the_error(bench: Bench) -> None:
    bench.task()
    bench.write(
        bench.path,
        {"conftest.py": "import pytest\n\n\n@pytest.fixture\ndef llm_proxy():\n    return 'nonsense'\n"},
    )
    assert bench.run(*ASKED, "--benchflow-agent=baseline").ret == 1
    found = summary(bench)
    assert found["coverage"] == {"planned": 1, "healthy": 0, "unhealthy": 0, "skipped": 0, "missing": 1}
    (missing,) = found["missing"]
    assert "openai/<model>" in missing["reason"]
