"""After a kill every request that was begun has a line, whole lines stay, torn ones are kept aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from pytest_benchflow.records.journal import read_records
from pytest_benchflow.records.recover import recover_pending
from pytest_benchflow.records.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path).create()


def line(request_id: str, seq: int = 0, **more: Any) -> bytes:
    body = {"request": {"request_id": request_id, "body": {"n": seq}}, "metadata": {"started_seq": seq}, **more}
    return orjson.dumps(body) + b"\n"


def ids(path: Path) -> list[str]:
    return [record["request"]["request_id"] for record in read_records(path)]


def test_what_was_begun_and_not_ended_becomes_an_error_line(rundir: RunDir) -> None:
    rundir.llm.write_bytes(line("a", response={"status_code": 200}))
    rundir.llm_pending.write_bytes(line("a", 0) + line("b", 1) + line("c", 2))
    assert recover_pending(rundir) == 2
    records = list(read_records(rundir.llm))
    assert [record["request"]["request_id"] for record in records] == ["a", "b", "c"]
    assert (records[1]["error"]["type"], records[1]["response"]) == ("interrupted", None)
    assert records[1]["request"]["body"] == {"n": 1}
    assert records[2]["metadata"] == {"started_seq": 2}
    assert not rundir.llm_pending.exists()


def test_a_second_call_changes_nothing(rundir: RunDir) -> None:
    rundir.llm_pending.write_bytes(line("a"))
    assert recover_pending(rundir) == 1
    before = rundir.llm.read_bytes()
    assert recover_pending(rundir) == 0
    assert rundir.llm.read_bytes() == before


def test_a_kill_during_recovery_doubles_no_line(rundir: RunDir) -> None:
    rundir.llm_pending.write_bytes(line("a", 0) + line("b", 1))
    assert recover_pending(rundir) == 2
    rundir.llm_pending.write_bytes(line("a", 0) + line("b", 1))
    assert recover_pending(rundir) == 0
    assert ids(rundir.llm) == ["a", "b"]


@pytest.mark.parametrize("size", [1, 20, -1], ids=["first-byte", "middle", "newline"])
def test_a_torn_line_is_kept_aside_and_its_request_becomes_an_error(rundir: RunDir, size: int) -> None:
    whole = line("b", 1, response={"status_code": 200})
    rundir.llm.write_bytes(line("a") + whole[:size])
    rundir.llm_pending.write_bytes(line("a") + line("b", 1))
    lost = size != -1
    assert recover_pending(rundir) == (1 if lost else 0)
    assert ids(rundir.llm) == ["a", "b"]
    torn = rundir.llm.with_name(rundir.llm.name + ".torn")
    assert torn.exists() == lost
    if lost:
        assert torn.read_bytes() == whole[:size] + b"\n"


def test_a_torn_pending_line_is_kept_aside(rundir: RunDir) -> None:
    rundir.llm_pending.write_bytes(line("a") + line("b")[:25])
    assert recover_pending(rundir) == 1
    assert ids(rundir.llm) == ["a"]
    assert rundir.llm_pending.with_name(rundir.llm_pending.name + ".torn").read_bytes() == line("b")[:25] + b"\n"


def test_a_rollout_without_open_requests_is_left_alone(rundir: RunDir) -> None:
    rundir.llm.write_bytes(line("a") + b"torn")
    assert recover_pending(rundir) == 0
    assert rundir.llm.read_bytes().endswith(b"torn")
