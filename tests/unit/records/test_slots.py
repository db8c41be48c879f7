"""Each slot of a job is told once: who fills it, how well, and what lies there that should not."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

from pytest_benchflow.cli import main
from pytest_benchflow.records.job import write_job_files
from pytest_benchflow.records.slots import STATES, counts_of, slots_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

VERSIONS = {"pytest_benchflow": "0.1.0"}


def name_of(number: int) -> str:
    return f"task__nop__none__default__{number}"


def plan(session: str, trials: int, *, task: str = "d1", agent: str | None = "a1", **settings: Any) -> dict[str, Any]:
    cell = {"task": "task", "task_path": "/t/task", "agent": "nop", "model": "none", "skills": "default"}
    return {
        "session_id": session,
        "settings": settings,
        "versions": VERSIONS,
        "digests": {"tasks": {"/t/task": task}, "agents": {"nop": agent}},
        "matrix": [{"rollout": name_of(n), **cell, "trial": n} for n in range(1, trials + 1)],
    }


def make(job: Path, trials: int, *further: dict[str, Any]) -> Path:
    job.mkdir()
    (job / ".lock").touch()
    record = {"job_name": job.name, **plan("s1", trials), "further_runs": list(further)}
    (job / "job.json").write_text(json.dumps(record))
    for number in range(1, trials + 1):
        rollout(job / name_of(number))
    return job


def rollout(path: Path, *, config: dict[str, Any] | None = None, **result: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    asked = {"rollout_name": path.name, "task_path": "/t/task", "task_digest": "d1", "agent": "nop", "session_id": "s1"}
    asked |= {"model": "none", "task_name": "task", "skill_mode": "no-skill"}
    (path / "config.json").write_text(json.dumps({**asked, **(config or {})}))
    told = {"task_name": "task", "rollout_name": path.name, "verdict": "pass", "rewards": {"reward": 1.0}}
    (path / "result.json").write_text(json.dumps({**told, **result}))
    (path / "results.jsonl").write_text("")
    return path


def states(job: Path) -> dict[str, str]:
    return {slot.rollout: slot.state for slot in slots_of(job)}


def test_a_job_is_complete_when_every_slot_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make(tmp_path / "ramp", 3)
    rollout(job / name_of(2) / "attempts" / "1", verdict="unhealthy")
    assert counts_of(slots_of(job)) == {"expected": 3, "healthy": 3, **dict.fromkeys(STATES[1:], 0)}
    assert main(["coverage", str(job)]) == 0
    assert capsys.readouterr().out == f"{job}: 3 expected · 3 healthy · 1 earlier attempt\n"
    assert main(["coverage", str(job), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["complete"], found["slots"][1]["attempts"]) == (True, 1)


def test_what_is_wrong_with_a_slot_is_told_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make(tmp_path / "ramp", 7)
    rollout(
        job / name_of(1), verdict="unhealthy", verdict_category="infra", error="the \x1b[31m box\nwent", rewards=None
    )
    shutil.rmtree(job / name_of(2))
    shutil.copytree(job / name_of(3), job / "copy")
    (job / name_of(4)).rename(job / "renamed")
    rollout(job / name_of(5), config={"task_digest": "d0"})
    shutil.rmtree(job / name_of(6))
    (job / "cells.jsonl").write_text(json.dumps({"cell": name_of(6), "skipped": "needs docker"}) + "\n")
    assert list(states(job).values()) == [
        *("unhealthy", "missing", "duplicate", "missing", "stale", "skipped", "healthy"),
    ]
    assert main(["coverage", str(job)]) == 1
    out = capsys.readouterr().out
    assert "7 expected · 1 healthy · 1 unhealthy · 1 stale · 1 duplicate · 2 missing · 1 skipped" in out
    assert "\x1b" not in out
    for said in ("infra: the", "2 directories hold it: copy, task__", "lies in renamed, which must be", "needs docker"):
        assert said in out
    summary = write_job_files(job)
    assert (summary["copies"], summary["coverage"]["healthy"]) == (["copy", "renamed"], 3)


def test_a_rollout_without_a_result_may_be_under_way(tmp_path: Path) -> None:
    job = make(tmp_path / "ramp", 1)
    (job / name_of(1) / "result.json").unlink()
    (slot,) = slots_of(job)
    assert (slot.state, slot.reason) == (
        "unhealthy",
        "it has no result: its session is at work on it, or was killed",
    )


def test_a_link_to_a_rollout_of_another_job_counts_nowhere(tmp_path: Path) -> None:
    job, other = make(tmp_path / "ramp", 2), make(tmp_path / "other", 2)
    shutil.rmtree(job / name_of(2))
    (job / name_of(2)).symlink_to(other / name_of(2))
    assert list(states(job).values()) == ["healthy", "missing"]
    summary = write_job_files(job)
    assert (summary["copies"], summary["coverage"]["healthy"], summary["coverage"]["missing"]) == ([name_of(2)], 1, 1)


def test_an_agent_of_another_entry_is_stale_until_the_mix_is_accepted(tmp_path: Path) -> None:
    job = make(tmp_path / "ramp", 2, plan("s2", 2, agent="a2"))
    rollout(job / name_of(2), config={"session_id": "s2"})
    assert list(states(job).values()) == ["stale", "healthy"]
    shutil.rmtree(job)
    job = make(tmp_path / "ramp", 2, plan("s2", 2, agent="a2", accept_change=["agent_version"]))
    assert list(states(job).values()) == ["healthy", "healthy"]


def test_a_rollout_that_nobody_planned_is_a_slot_too(tmp_path: Path) -> None:
    job = make(tmp_path / "ramp", 1)
    rollout(job / "by-hand", verdict="unhealthy")
    assert states(job) == {name_of(1): "healthy", "by-hand": "unhealthy"}


def test_records_that_lead_elsewhere_or_are_torn_are_not_healthy(tmp_path: Path) -> None:
    job = make(tmp_path / "ramp", 3)
    outside = rollout(tmp_path / "outside")
    (job / name_of(1) / "result.json").unlink()
    (job / name_of(1) / "result.json").symlink_to(outside / "result.json")
    (job / name_of(2) / "result.json").write_text('{"verdict": "pa')
    shutil.rmtree(job / name_of(3))
    (job / name_of(3)).symlink_to(outside)
    assert list(states(job).values()) == ["unhealthy", "unhealthy", "missing"]


def test_pipes_are_no_records_and_are_not_waited_for(tmp_path: Path) -> None:
    job = make(tmp_path / "ramp", 1)
    rollout(job / name_of(1) / "attempts" / "1", verdict="unhealthy")
    for name in ("cells.jsonl", f"{name_of(1)}/attempts/1/result.json"):
        (job / name).unlink(missing_ok=True)
        os.mkfifo(job / name)
    assert states(job) == {name_of(1): "healthy"}
    earlier = write_job_files(job)["earlier_attempts"]
    assert (earlier["by_end"], earlier["cost_usd"]["total"], earlier["tokens"]["total"]) == ({"unknown": 1}, None, None)
    (job / name_of(1) / "result.json").unlink()
    os.mkfifo(job / name_of(1) / "result.json")
    assert states(job) == {name_of(1): "unhealthy"}


def test_what_is_no_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", str(tmp_path / "gone")]) == 2
    assert main(["coverage", str(tmp_path)]) == 2
    assert "is no job of this program: it has no job.json" in capsys.readouterr().err
    os.mkfifo(tmp_path / "job.json")
    assert main(["coverage", str(tmp_path)]) == 2
    assert "is no job of this program: its job.json is none that says so" in capsys.readouterr().err
    (tmp_path / "job.json").unlink()
    (tmp_path / "job.json").write_text(json.dumps({"job_name": "x", "versions": VERSIONS, "matrix": None}))
    assert main(["coverage", str(tmp_path)]) == 1
