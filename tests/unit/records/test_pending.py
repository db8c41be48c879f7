"""Requests that have begun lie in a file that is written over, and are read back whole or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.records.pending import VOID, Pending
from pytest_benchflow.records.recover import recover_pending
from pytest_benchflow.records.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path


def line(name: str, size: int = 10) -> tuple[bytes, ...]:
    request = {"request_id": name, "timestamp": "t", "method": "POST", "path": "/v1/messages", "body": "x" * size}
    return b'{"request":', json.dumps(request).encode(), b',"metadata":{"started_seq":0}}'


def counting(path: Path) -> list[str]:
    """Return the requests that the lines of a file hold."""
    lines = [each for each in path.read_bytes().split(b"\n") if each and not each.startswith(VOID)]
    return [json.loads(each)["request"]["request_id"] for each in lines]


@pytest.mark.parametrize("sizes", [(10, 10_000), (10_000, 10), (500, 500)], ids=["longer", "shorter", "as-long"])
def test_a_line_takes_the_place_of_one_that_ended(tmp_path: Path, sizes: tuple[int, int]) -> None:
    pending = Pending(tmp_path / "pending.jsonl")
    for name, size in zip("ab", sizes, strict=True):
        pending.append_line(*line(name, size))
        assert counting(pending.path) == [name]
        assert pending.path.stat().st_size == len(b"".join(line(name, size))) + 1
        pending.empty()
        assert counting(pending.path) == []
    pending.close()


def test_lines_stand_one_after_the_other_until_all_have_ended(tmp_path: Path) -> None:
    pending = Pending(tmp_path / "pending.jsonl")
    pending.append_line(*line("long", 5_000))
    pending.empty()
    for name in "abc":
        pending.append_line(*line(name))
    assert counting(pending.path) == ["a", "b", "c"]
    pending.empty()
    assert counting(pending.path) == []
    pending.append_line(*line("d"))
    assert counting(pending.path) == ["d"]
    pending.close()


def test_what_a_file_holds_already_stays(tmp_path: Path) -> None:
    path = tmp_path / "pending.jsonl"
    first = Pending(path)
    first.append_line(*line("of-another"))
    first.close()
    second = Pending(path)
    for name in "ab":
        second.append_line(*line(name))
        assert counting(path) == ["of-another", name]
        second.empty()
    assert counting(path) == ["of-another"]
    second.close()


def test_a_line_that_ended_is_not_recovered(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path).create()
    pending = Pending(rundir.llm_pending)
    pending.append_line(*line("ended"))
    pending.empty()
    pending.close()
    assert recover_pending(rundir) == 0
    assert [path.name for path in rundir.llm_pending.parent.iterdir()] == []
