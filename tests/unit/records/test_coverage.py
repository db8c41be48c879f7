"""Every planned cell is counted once, whatever the job's own files have come to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.coverage import coverage

if TYPE_CHECKING:
    from pathlib import Path


def write(job_dir: Path, *runs: list[str], notes: tuple[dict[str, Any] | str, ...] = ()) -> None:
    first, *further = [{"matrix": [{"rollout": name} for name in cells]} for cells in runs]
    (job_dir / "job.json").write_text(json.dumps({"job_name": "job", **first, "further_runs": further}))
    lines = [note if isinstance(note, str) else json.dumps(note) for note in notes]
    (job_dir / "cells.jsonl").write_text("\n".join(lines))


def test_the_cells_of_all_runs_count_once_each(tmp_path: Path) -> None:
    write(tmp_path, ["a", "b"], ["b", "c"], [])
    found = coverage(tmp_path, {"a": True, "b": False})
    assert found.counts() == {"planned": 3, "healthy": 1, "unhealthy": 1, "skipped": 0, "missing": 1}
    assert found.left_out() == {"skipped": [], "missing": [{"rollout": "c", "reason": None}]}


def test_the_latest_note_tells_and_a_rollout_tells_more(tmp_path: Path) -> None:
    notes = (
        {"cell": "a", "skipped": "needs docker"},
        {"cell": "b", "error": "no key"},
        {"cell": "b", "skipped": "no recording"},
        {"cell": "c", "skipped": "no recording"},
    )
    write(tmp_path, ["a", "b", "c"], notes=notes)
    found = coverage(tmp_path, {"a": True})
    assert (found.healthy, found.skipped) == (["a"], {"b": "no recording", "c": "no recording"})


def test_a_cell_under_another_name_is_what_that_rollout_is(tmp_path: Path) -> None:
    notes = (
        {"cell": "a", "rollout": "x"},
        {"cell": "b", "rollout": "y"},
        {"cell": "y", "skipped": "needs docker"},
        {"cell": "c", "rollout": "z"},
    )
    write(tmp_path, ["a", "b", "c"], notes=notes)
    found = coverage(tmp_path, {"x": False})
    assert found.counts() == {"planned": 3, "healthy": 0, "unhealthy": 1, "skipped": 1, "missing": 1}
    assert found.skipped == {"b": "needs docker"}


def test_torn_files_hide_no_rollout(tmp_path: Path) -> None:
    write(tmp_path, ["a", "b"], notes=('{"cell": "a", "skip', "[]", {"cell": "b", "skipped": "needs docker"}))
    assert coverage(tmp_path, {}).counts() == {"planned": 2, "healthy": 0, "unhealthy": 0, "skipped": 1, "missing": 1}
    (tmp_path / "job.json").write_text("{")
    assert coverage(tmp_path, {"a": True}).counts()["planned"] == 1
