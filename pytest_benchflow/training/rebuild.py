"""Write a rollout's results.jsonl anew from its raw records, which are only read."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.files import strange_files, write_whole
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.training.row import Row, build_row

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir


def rebuild_row(rundir: RunDir) -> Row:
    """Write results.jsonl, whole or not at all, and return its row; a doubt gives a row that is not ready to train.

    Raises: RecordError when there is no raw trajectory to build it from, or the disk refuses.
    """
    strange = strange_files(rundir)
    if strange:
        raise RecordError(f"{rundir.path}: not read, as {strange[0]}")
    try:
        row = build_row(rundir, result=_read(rundir.result), config=_read(rundir.config))
    except OSError as error:
        raise RecordError(f"{error.filename}: cannot be read ({error.strerror})") from None
    if row.reason == "no_exchanges" and not rundir.llm.is_file() and rundir.row.exists():
        raise RecordError(f"{rundir.llm}: there is no such file, so results.jsonl is left as it is")
    try:
        write_whole(rundir.row, itertools.chain(row.chunks(), [b"\n"]))
    except OSError as error:
        raise RecordError(f"{rundir.row}: cannot be written ({error.strerror})") from None
    return row


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except RecordError:
        return {}
