"""No artifact holds a secret."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import RebuiltRollout, fresh_content
from pytest_benchflow.checks._secrets import Text, secrets_in, strings_of
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.journal import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout

_SHOWN = 8
_CHUNK = 1 << 20
# A secret that is cut between two chunks is whole in one of them.
_OVERLAP = 4096
# Of a file that a task kept, such as a database; a longer one is searched so far.
_LONGEST = 64 << 20


@check(severity="warning", category="conduct")
def check_no_secrets_in_artifacts(rollout: Rollout) -> None:
    """No file of the rollout holds what looks like a key, a token or a password."""
    found = list(dict.fromkeys(_found(rollout)))
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    shown = "; ".join(f"{place} holds {kind}" for place, kind in found[:_SHOWN])
    assert not found, f"possible secrets: {shown}{more}"


def _found(rollout: Rollout) -> Iterator[tuple[str, str]]:
    """Yield (file:line, kind) of each secret, file by file."""
    read: set[Path] = set()
    for path, records in ((rollout.dir.llm, _exchanges), (rollout.dir.acp, _events), (rollout.dir.row, _rows)):
        try:
            yield from records(rollout)
            read.add(path)
        except RecordError:
            continue  # read as plain text below
    if isinstance(rollout, RebuiltRollout):
        read.add(rollout.dir.row)
    for path in _files(rollout.path, skipped={rollout.dir.attempts}):
        if path not in read:
            yield from _raw(path, rollout.path)


def _exchanges(rollout: Rollout) -> Iterator[tuple[str, str]]:
    text, seen = Text(), set[int]()
    hits: list[tuple[int, str]] = []
    for index, value in fresh_content(rollout):
        hits += text.add(index, strings_of(value, seen))
    yield from _at_lines(rollout.dir.llm, [*hits, *text.rest()])


def _events(rollout: Rollout) -> Iterator[tuple[str, str]]:
    yield from _records(rollout.dir.acp, rollout.events)


def _rows(rollout: Rollout) -> Iterator[tuple[str, str]]:
    yield from _records(rollout.dir.row, rollout.rows)


def _records(path: Path, records: list[dict[str, object]]) -> Iterator[tuple[str, str]]:
    text, seen = Text(), set[int]()
    hits: list[tuple[int, str]] = []
    for index, record in enumerate(records):
        hits += text.add(index, strings_of(record, seen))
    yield from _at_lines(path, [*hits, *text.rest()])


def _at_lines(path: Path, hits: list[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    """Yield hits with the line of each record in its file, in which there may be blank lines too."""
    lines = [number for number, _ in read_lines(path)] if hits and path.is_file() else []
    for index, kind in hits:
        yield f"{path.name}:{lines[index] if index < len(lines) else index + 1}", kind


def _files(root: Path, skipped: set[Path]) -> Iterator[Path]:
    """Yield the plain files below a directory; no link is followed, and no pipe is opened."""
    directories = [root]
    while directories:
        place = directories.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            path = place / entry.name
            if entry.is_dir(follow_symlinks=False):
                if path not in skipped:
                    directories.append(path)
            elif entry.is_file(follow_symlinks=False) and path.name != ".lock":
                yield path


def _raw(path: Path, root: Path) -> Iterator[tuple[str, str]]:
    """Yield the secrets in a file of any kind."""
    name = path.relative_to(root).as_posix()
    line, before = 1, ""
    try:
        with path.open("rb") as file:
            while file.tell() < _LONGEST and (chunk := file.read(_CHUNK)):
                # Each byte is a character: what is searched for is ASCII.
                text = before + chunk.decode("latin-1")
                for offset, kind in secrets_in(text):
                    yield f"{name}:{line + text.count(chr(10), 0, offset)}", kind
                before = text[-_OVERLAP:]
                line += text.count("\n") - before.count("\n")
    except OSError:
        return
