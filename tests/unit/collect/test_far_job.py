"""What comes of a job on another machine, told here by a process in a directory of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pytest_benchflow.collect.far_job import FarJob

if TYPE_CHECKING:
    from pathlib import Path


def rollout(path: Path, verdict: str | None = "pass") -> None:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"rollout_name": path.name}))
    (path / "result.json").write_text(json.dumps({"verdict": verdict}))


def test_a_rollout_that_cannot_come_keeps_no_other_from_coming(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    for name in ("a\x1b[2J", "b", "c"):
        rollout(far / name)
    (far / "cells.jsonl").write_text(json.dumps({"cell": "d", "error": "said"}) + "\n")
    here.mkdir()
    job = FarJob("popen", str(far), here, tmp_path)
    job.finish()
    assert sorted(path.name for path in here.iterdir()) == ["b", "c", "cells.jsonl"]
    (left,) = job.left
    assert "is no name of a rollout" in left
    assert "\x1b" not in left
    assert (far / "a\x1b[2J" / "result.json").is_file()


def test_all_that_has_come_is_gone_there_and_no_attempt_takes_a_whole_ones_place(tmp_path: Path) -> None:
    far, here = tmp_path / "far" / "ramp", tmp_path / "here"
    rollout(far / "a", None)
    rollout(here / "a")
    (here / "a" / "attempts" / "\u00b2").mkdir(parents=True)  # a digit that is no number
    job = FarJob("popen", str(far), here, tmp_path)
    job.finish()
    assert job.left == []
    assert not far.exists()
    assert json.loads((here / "a" / "result.json").read_text()) == {"verdict": "pass"}
    assert json.loads((here / "a" / "attempts" / "1" / "result.json").read_text()) == {"verdict": None}
