"""A regrade is completed from its own directory, which may hold what strangers have put there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import RecordError
from pytest_benchflow.rollout.regrade import check_plain, finish_begun
from tests.unit.rollouts import write_rollout

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir

CRASHED = {"rewards": None, "verifier_error": "said", "verifier_error_category": "crash", "verdict": "unhealthy"}


def begun(path: Path, record: dict[str, Any]) -> RunDir:
    """Write a rollout whose first regrade was killed before it counted."""
    rundir = write_rollout(path, result_with={**CRASHED, "verdict_category": "verifier"})
    first = rundir.regrades / "1" / "first"
    first.mkdir(parents=True)
    (first / "result.json").write_bytes(rundir.result.read_bytes())
    (rundir.regrades / "1" / "verifier").mkdir()
    (rundir.regrades / "1" / "regrade.json").write_text(json.dumps(record))
    return rundir


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"rewards": None},
        {"rewards": {}},
        {"rewards": [1.0]},
        {"rewards": {"reward": "1"}},
        {"rewards": {"reward": True}},
        {"rewards": {"other": 1.0}},
    ],
    ids=json.dumps,
)
def test_a_record_that_is_no_score_changes_nothing(tmp_path: Path, record: dict[str, Any]) -> None:
    rundir = begun(tmp_path / "rollout", record)
    before = {path: path.read_bytes() for path in rundir.path.rglob("*") if path.is_file()}
    with pytest.raises(RecordError, match="tells neither rewards, with numbers, nor why there are none"):
        finish_begun(rundir)
    assert {path: path.read_bytes() for path in rundir.path.rglob("*") if path.is_file()} == before


def test_a_score_of_a_first_record_that_lacks_facts_is_completed_once(tmp_path: Path) -> None:
    rundir = begun(tmp_path / "rollout", {"rewards": {"reward": 1.0}})
    (rundir.regrades / "1" / "first" / "result.json").write_text(json.dumps({"verdict": "unhealthy"}))
    assert finish_begun(rundir)
    result = json.loads(rundir.result.read_text())
    assert result["regraded"]["first"] == {"verdict": "unhealthy", "category": None, "rewards": None}
    assert result["rewards"] == {"reward": 1.0}
    assert not finish_begun(rundir)


def test_no_link_is_read_or_written_through(tmp_path: Path) -> None:
    rundir = begun(tmp_path / "rollout", {"rewards": {"reward": 1.0}})
    check_plain(rundir)
    outside = rundir.regrades.rename(tmp_path / "outside")
    rundir.regrades.symlink_to(outside)
    with pytest.raises(RecordError, match="regrades is a link"):
        check_plain(rundir)
    rundir.regrades.unlink()
    rundir.regrades.mkdir()
    (rundir.regrades / "1").symlink_to(outside / "1")
    assert not finish_begun(rundir)
    (tmp_path / "linked").symlink_to(rundir.path)
    with pytest.raises(RecordError, match="linked is a link"):
        check_plain(type(rundir)(tmp_path / "linked"))
