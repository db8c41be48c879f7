"""results.jsonl is written anew from the raw records alone, and nothing else is touched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import RecordError
from pytest_benchflow.training.rebuild import rebuild_row
from tests.unit.rollouts import write_rollout

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return write_rollout(tmp_path)


def files(rundir: RunDir) -> dict[str, bytes]:
    return {str(path.relative_to(rundir.path)): path.read_bytes() for path in rundir.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("row", ["", "torn {", None], ids=["empty", "torn", "missing"])
def test_the_row_comes_back_and_no_other_file_changes(rundir: RunDir, row: str | None) -> None:
    before = files(rundir)
    rundir.row.unlink()
    if row is not None:
        rundir.row.write_text(row, "utf-8")
    assert rebuild_row(rundir).training_ready
    assert files(rundir) == before


@pytest.mark.parametrize("part", ["result", "config"])
def test_a_record_that_cannot_be_read_gives_a_row_that_must_not_train(rundir: RunDir, part: str) -> None:
    getattr(rundir, part).write_text("{", "utf-8")
    row = rebuild_row(rundir)
    stored = json.loads(rundir.row.read_text("utf-8"))
    if part == "result":
        assert (row.training_ready, stored["info"]["training_ready"]) == (False, False)
        assert stored["error"]["error"] == row.reason
    else:
        assert row.training_ready


def test_without_a_trajectory_the_row_there_is_stays(rundir: RunDir) -> None:
    before = rundir.row.read_bytes()
    rundir.llm.unlink()
    with pytest.raises(RecordError, match="left as it is"):
        rebuild_row(rundir)
    assert rundir.row.read_bytes() == before


def test_a_rollout_with_a_link_out_is_not_read(rundir: RunDir) -> None:
    rundir.llm.unlink()
    rundir.llm.symlink_to("/etc/hostname")
    before = rundir.row.read_bytes()
    with pytest.raises(RecordError, match="leads out of the rollout"):
        rebuild_row(rundir)
    assert rundir.row.read_bytes() == before
