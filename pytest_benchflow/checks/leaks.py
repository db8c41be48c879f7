"""No artifact holds a secret."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._actions import actions_by_id, event_id
from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import RebuiltRollout, fresh_content, rebuilt, row_parts
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.journal import read_lines
from pytest_benchflow.records.secrets import secrets_in, secrets_in_values
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.checks._actions import Action
    from pytest_benchflow.records.rollout import Rollout

_SHOWN = 8
# Parts of a row that mostly are what the exchanges hold: to compare them costs less than to look through them.
_COPIED = ("prompt", "completion", "tool_defs", "response")
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
    read: set[Path] = {rollout.dir.row} if isinstance(rollout, RebuiltRollout) else set()
    clean = False
    for path in (rollout.dir.llm, rollout.dir.acp, rollout.dir.row):
        try:
            hits = list(secrets_in_values(_values(rollout, path, clean)))
        except (RecordError, LookupError):
            continue  # read as plain text below
        clean = clean or (path == rollout.dir.llm and not hits)
        yield from _at_lines(path, hits)
        read.add(path)
    read |= _clean_objects(rollout)
    for path in _files(rollout.path, skipped={rollout.dir.attempts}):
        if path not in read:
            yield from _raw(path, rollout.path)


def _clean_objects(rollout: Rollout) -> set[Path]:
    """Return result.json and config.json when neither holds a secret: they have been read before."""
    try:
        values = [(0, rollout.result), (1, rollout.config)]
    except RecordError:
        return set()
    return set() if any(secrets_in_values(values)) else {rollout.dir.result, rollout.dir.config}


def _values(rollout: Rollout, path: Path, clean: bool) -> Iterator[tuple[int, Any]]:
    """Yield (index of the record, JSON value) for all that a log holds; `clean` tells that the exchanges are."""
    if path == rollout.dir.llm:
        yield from fresh_content(rollout)
    elif path == rollout.dir.acp:
        known = actions_by_id(rollout) if clean else {}
        for index, event in enumerate(rollout.events):
            yield index, _without_result(event, known.get(event_id(event))) if known else event
    else:
        made = rebuilt(rollout).row if clean else {}
        twins = [made, *sequence(made.get("trajectory"))]
        for number, (_, part) in enumerate(row_parts(rollout)):
            twin = mapping(twins[number]) if number < len(twins) else {}
            yield 0, {key: each for key, each in part.items() if key not in _COPIED or not _ends(twin.get(key), each)}
        # Other rows of the file should not be there: they are read whole.
        yield from enumerate(rollout.rows[1:], 1)


def _without_result(event: dict[str, Any], action: Action | None) -> dict[str, Any]:
    """Return an event without the result of its call, which the exchanges hold too."""
    output = action.output if action is not None else None
    content = event.get("content")
    if not output or not isinstance(content, list):
        return event
    kept = []
    for part in content:
        text = mapping(mapping(part).get("content")).get("text")
        # Agents write a line of their own before it.
        same = isinstance(text, str) and text.endswith(output)
        kept.append(text[: -len(output)] if same and isinstance(text, str) else part)
    return {**event, "content": kept}


def _ends(whole: Any, part: Any) -> bool:
    """Tell whether a part of the row is the one that follows from clean exchanges, or of a list its end."""
    if isinstance(whole, list) and isinstance(part, list) and len(part) < len(whole):
        whole = whole[len(whole) - len(part) :]
    return bool(whole == part)


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
    line, before = 1, b""
    try:
        with path.open("rb") as file:
            while file.tell() < _LONGEST and (chunk := file.read(_CHUNK)):
                data = before + chunk
                for found in secrets_in(data):
                    number = line + data.count(b"\n", 0, found.start)
                    yield f"{name}:{number}", found.kind
                before = data[-_OVERLAP:]
                line += data.count(b"\n") - before.count(b"\n")
    except OSError:
        return
