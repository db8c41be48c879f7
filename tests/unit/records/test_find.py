"""Rollouts are found by what is left of them; jobs, earlier attempts and what agents wrote are none."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.records.find import find_missing, find_rollouts, is_rollout

if TYPE_CHECKING:
    from pathlib import Path


def make(root: Path, *files: str) -> Path:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"task_name": "t"}' if path.name == "result.json" else "{}", "utf-8")
    return root


WHOLE = ("config.json", "result.json", "results.jsonl", "trajectory/llm_trajectory.jsonl")


def test_a_rollout_a_job_and_a_tree_of_jobs(tmp_path: Path) -> None:
    first, second = (make(tmp_path / "jobs" / job / "r1", *WHOLE) for job in ("a", "b"))
    make(tmp_path / "jobs" / "a", "job.json", "results.jsonl", "summary.json")
    assert find_rollouts(first) == [first]
    assert find_rollouts(tmp_path / "jobs" / "a") == [first]
    assert find_rollouts(tmp_path) == [first, second]


@pytest.mark.parametrize(
    "left",
    ["config.json", "result.json", "results.jsonl", "trajectory/acp_trajectory.jsonl", ".lock"],
    ids=["config", "result", "row", "trace", "lock"],
)
def test_whatever_is_left_of_a_rollout_makes_it_one(tmp_path: Path, left: str) -> None:
    whole, rest = make(tmp_path / "whole", *WHOLE), make(tmp_path / "rest", left)
    assert find_rollouts(tmp_path) == [rest, whole]
    assert is_rollout(rest)


def test_a_job_of_another_tool_gives_way_to_its_rollouts(tmp_path: Path) -> None:
    rollout = make(tmp_path / "r1", *WHOLE)
    (tmp_path / "config.json").write_text('{"n_trials": 1}', "utf-8")
    (tmp_path / "result.json").write_text('{"n_trials": 1}', "utf-8")
    assert find_rollouts(tmp_path) == [rollout]


def test_a_rollout_does_not_hide_behind_another_in_it(tmp_path: Path) -> None:
    make(tmp_path, "config.json", "result.json", "job.json")
    make(tmp_path / "inner", *WHOLE)
    assert find_rollouts(tmp_path) == [tmp_path]


def test_earlier_attempts_and_artifacts_are_not_reviewed(tmp_path: Path) -> None:
    rollout = make(tmp_path / "r1", *WHOLE)
    attempt = make(rollout / "attempts" / "1", *WHOLE)
    make(tmp_path / "r2", "results.jsonl")
    make(tmp_path / "r2" / "artifacts" / "copy", *WHOLE)
    assert find_rollouts(tmp_path) == [rollout, tmp_path / "r2"]
    assert find_rollouts(attempt) == [attempt]


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = make(tmp_path / "outside", *WHOLE)
    jobs = make(tmp_path / "jobs" / "r1", *WHOLE).parent
    (jobs / "linked").symlink_to(outside)
    (jobs / "round").symlink_to(jobs)
    assert find_rollouts(jobs) == [jobs / "r1"]


def test_directories_without_a_rollout(tmp_path: Path) -> None:
    make(tmp_path / "src", "main.py")
    make(tmp_path / "job", "job.json", "results.jsonl", "summary.json")
    assert find_rollouts(tmp_path) == []
    assert not is_rollout(tmp_path)


def test_deep_and_doubtful_directories_take_no_time(tmp_path: Path) -> None:
    place = tmp_path
    for _ in range(300):
        place /= "d"
        place.mkdir()
        (place / "results.jsonl").touch()
    assert find_rollouts(tmp_path) == [place]


def job(path: Path, *planned: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    matrix = [{"rollout": name} for name in planned]
    record = {"versions": {"pytest_benchflow": "0.1.0"}, "matrix": matrix}
    (path / "job.json").write_text(json.dumps(record), "utf-8")
    return path


def test_a_planned_rollout_that_left_nothing_is_missing(tmp_path: Path) -> None:
    here = job(tmp_path / "a", "r1", "r2", "r3", "../r4", "..", "")
    gone = job(tmp_path / "b", "r1")
    make(here / "r1", *WHOLE)
    (here / "cells.jsonl").write_text('{"cell": "r3", "skipped": "needs docker"}\n', "utf-8")
    assert find_missing(tmp_path) == [here / "r2", gone / "r1"]
    assert find_missing(here / "r1") == []


def test_what_must_not_be_opened_plans_nothing(tmp_path: Path) -> None:
    here = job(tmp_path / "a", "r1")
    (here / "job.json").rename(tmp_path / "job.json")
    (here / "job.json").symlink_to("../job.json")
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / "job.json")
    assert find_missing(here) == find_missing(tmp_path / "b") == []
