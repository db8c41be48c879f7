"""An audit is bound to the raw trace: any change of it voids the verdict, and nothing else does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.audit import read_audit, trace_digest, write_audit
from pytest_benchflow.records.rundir import RunDir
from tests.unit.rollouts import write_rollout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def audited(tmp_path: Path) -> RunDir:
    rundir = write_rollout(tmp_path)
    write_audit(rundir, verdict="publishable", by="Mia", note="read it all")
    return rundir


def test_an_audit_stands_while_the_trace_is_the_same(audited: RunDir) -> None:
    audited.row.write_text("another row\n", "utf-8")
    audit = read_audit(audited)
    assert audit
    assert (audit.verdict, audit.by, audit.note, audit.void) == ("publishable", "Mia", "read it all", None)


def test_there_is_none_unless_somebody_gave_it(tmp_path: Path) -> None:
    assert read_audit(write_rollout(tmp_path)) is None


def another_byte(rundir: RunDir) -> None:
    rundir.llm.write_bytes(rundir.llm.read_bytes().replace(b"I look", b"I took", 1))


def another_event(rundir: RunDir) -> None:
    rundir.acp.write_bytes(rundir.acp.read_bytes() + b"{}\n")


def no_events(rundir: RunDir) -> None:
    rundir.acp.unlink()


def lines_moved(rundir: RunDir) -> None:
    rundir.acp.write_bytes(rundir.llm.read_bytes() + rundir.acp.read_bytes())
    rundir.llm.write_bytes(b"")


@pytest.mark.parametrize(
    "change", [another_byte, another_event, no_events, lines_moved], ids=lambda each: each.__name__
)
def test_another_trace_voids_it(audited: RunDir, change: Callable[[RunDir], None]) -> None:
    change(audited)
    audit = read_audit(audited)
    assert audit
    assert audit.void == "the raw trace has changed since"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("{", "not JSON"),
        ("[]", "a list"),
        ({}, "no verdict"),
        ({"verdict": "publishable", "by": "Mia"}, "no trace_sha256"),
        ({"verdict": "publishable", "by": 7, "trace_sha256": "0"}, "no by"),
        ({"verdict": "fine", "by": "Mia", "trace_sha256": "0"}, "it takes one of: publishable, quarantine"),
        ({"verdict": "publishable", "by": "Mia", "trace_sha256": "0"}, "has changed"),
    ],
    ids=["torn", "list", "empty", "no-digest", "no-name", "no-such-verdict", "another-digest"],
)
def test_what_is_no_audit_is_void(audited: RunDir, record: Any, said: str) -> None:
    audited.audit.write_text(record if isinstance(record, str) else json.dumps(record), "utf-8")
    audit = read_audit(audited)
    assert audit
    assert said in str(audit.void)


def test_without_a_trace_there_is_nothing_to_audit(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path).create()
    with pytest.raises(RecordError, match="bound to trajectory"):
        write_audit(rundir, verdict="quarantine", by="Mia", note="")
    assert not rundir.audit.exists()


def test_the_digest_says_which_file_holds_what(audited: RunDir) -> None:
    digest = trace_digest(audited)
    audited.acp.unlink()
    missing = trace_digest(audited)
    audited.acp.touch()
    assert len({digest, missing, trace_digest(audited)}) == 3
