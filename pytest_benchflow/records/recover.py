"""Finish the records of a rollout whose process was killed: an open request becomes a recorded error."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.files import open_plain
from pytest_benchflow.records.journal import Journal, read_lines
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.pending import VOID

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir


def recover_pending(rundir: RunDir) -> int:
    """Record every request that was begun and never ended, and return how many; a second call finds none.

    A torn last line of either file is moved into a file of the same name with `.torn` added. Call it only when no
    process works on the rollout any more. Nothing is done behind a link or with what is no plain file.
    """
    files = (rundir.llm_pending, rundir.llm)
    if not rundir.llm_pending.exists() or rundir.llm.parent.is_symlink():
        return 0
    if any(path.is_symlink() or (path.exists() and not path.is_file()) for path in files):
        return 0
    _set_torn_line_aside(rundir.llm_pending)
    begun = [record for record in map(_record, read_lines(rundir.llm_pending)) if record is not None]
    if rundir.llm.exists():
        _set_torn_line_aside(rundir.llm)
        ended = {_request_id(record) for record in map(_record, read_lines(rundir.llm)) if record is not None}
        begun = [record for record in begun if _request_id(record) not in ended]
    journal = Journal(rundir.llm)
    try:
        for record in begun:
            journal.append(_interrupted(record))
    finally:
        journal.close()
    rundir.llm_pending.unlink()
    return len(begun)


def _interrupted(record: dict[str, Any]) -> dict[str, Any]:
    message = "the process that recorded this rollout ended before the answer was complete"
    return {
        "request": record.get("request"),
        "response": None,
        "error": {"type": "interrupted", "message": message},
        "duration_ms": None,
        "metadata": record.get("metadata"),
    }


def _record(line: tuple[int, bytes]) -> dict[str, Any] | None:
    try:
        record = loads(line[1])
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _request_id(record: dict[str, Any]) -> Any:
    request = record.get("request")
    return request.get("request_id") if isinstance(request, dict) else None


def _set_torn_line_aside(path: Path) -> None:
    """Move a last line that has no newline or is no JSON out of `path`."""
    with os.fdopen(open_plain(path, os.O_RDWR), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            start = text.rfind(b"\n", 0, size - 1) + 1
            last = text[start:]
        if last.startswith(VOID):
            return
        if _record((0, last)) is None:
            aside = open_plain(path.with_name(f"{path.name}.torn"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(aside, "ab") as torn:
                torn.write(last.removesuffix(b"\n") + b"\n")
            file.truncate(start)
        elif not last.endswith(b"\n"):
            # Only the newline is missing: the record is whole.
            file.write(b"\n")
