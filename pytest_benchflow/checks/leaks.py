"""No artifact holds a secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._actions import actions_by_id, event_id
from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import RebuiltRollout, fresh_content, row_parts
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.journal import read_lines
from pytest_benchflow.records.secrets import secrets_in, secrets_in_values
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.checks._actions import Action
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
    rundir = rollout.dir
    if _records_are_clean(rollout):
        read = {rundir.llm, rundir.acp, rundir.row, rundir.result, rundir.config}
    else:
        read = {rundir.row} if isinstance(rollout, RebuiltRollout) else set()
        for path in (rundir.llm, rundir.acp, rundir.row):
            try:
                hits = list(secrets_in_values(_values(rollout, path)))
            except (RecordError, LookupError, RecursionError):
                continue  # read as plain text below
            yield from _at_lines(path, hits)
            read.add(path)
    names = set(map(str, read))
    for name in _files(str(rollout.path), skipped=str(rundir.attempts)):
        if name not in names:
            yield from _raw(Path(name), rollout.path)


def _records_are_clean(rollout: Rollout) -> bool:
    """Tell whether all records can be read and hold no secret, what several of them hold looked at once."""
    try:
        values = [
            *(value for _, value, _ in fresh_content(rollout)),
            *map(_around_bodies, rollout.exchanges),
            *_new_in_events(rollout),
            *(part.news for part in row_parts(rollout)),
            *rollout.rows[1:],
            rollout.result,
            rollout.config,
        ]
        return not any(secrets_in_values(enumerate(values)))
    except (RecordError, LookupError, RecursionError):  # what is nested too deeply is no less readable as text
        return False


def _new_in_events(rollout: Rollout) -> Iterator[dict[str, Any]]:
    """Yield the events without the results of calls that the exchanges hold too."""
    known = actions_by_id(rollout)
    for event in rollout.events:
        action = known.get(event_id(event))
        yield event if action is None else _without_result(event, action)


def _values(rollout: Rollout, path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (index of the record, JSON value) for all that a log holds."""
    if path == rollout.dir.llm:
        yield from ((index, value) for index, value, _ in fresh_content(rollout))
        yield from enumerate(map(_around_bodies, rollout.exchanges))
    elif path == rollout.dir.acp:
        yield from enumerate(rollout.events)
    else:
        yield from ((0, part.whole) for part in row_parts(rollout))
        # Other rows of the file should not be there: they are read whole.
        yield from enumerate(rollout.rows[1:], 1)


def _around_bodies(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a record holds beside its two bodies and its error: other tools keep headers there."""
    rest = {key: value for key, value in record.items() if key != "error"}
    for side in ("request", "response"):
        if isinstance(part := rest.get(side), dict):
            rest[side] = {key: value for key, value in part.items() if key != "body"}
    return rest


def _without_result(event: dict[str, Any], action: Action) -> dict[str, Any]:
    """Return an event without the result of its call, which the exchanges hold too."""
    output, content = action.output, event.get("content")
    if not output or not isinstance(content, list):
        return event
    kept = []
    for part in content:
        text = mapping(mapping(part).get("content")).get("text")
        # Agents write a line of their own before it.
        same = isinstance(text, str) and text.endswith(output)
        kept.append(text[: -len(output)] if same and isinstance(text, str) else part)
    return {**event, "content": kept}


def _at_lines(path: Path, hits: list[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    """Yield hits with the line of each record in its file, in which there may be blank lines too."""
    lines = [number for number, _ in read_lines(path)] if hits and path.is_file() else []
    for index, kind in hits:
        yield f"{path.name}:{lines[index] if index < len(lines) else index + 1}", kind


def _files(root: str, skipped: str) -> Iterator[str]:
    """Yield the plain files below a directory; no link is followed, and no pipe is opened."""
    directories = [root]
    while directories:
        try:
            entries = sorted(os.scandir(directories.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.path != skipped:
                    directories.append(entry.path)
            elif entry.is_file(follow_symlinks=False) and entry.name != ".lock":
                yield entry.path


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
