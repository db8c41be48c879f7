"""Keep the ledger of a job's sandboxes: a line before one is made, one after, and one when it is gone."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow import registry
from pytest_benchflow.errors import SandboxError, UsageError
from pytest_benchflow.records.journal import Journal, read_lines
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.rollout.aside import aside
from pytest_benchflow.sandboxes._local.sessions import note_ended, sessions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Backend, Sandbox, SandboxSpec

NAME = "sandboxes.jsonl"
_LAST = ("deleted", "kept")


class Ledger:
    """The ledgers of the jobs that one process works on, and a copy of their lines at `own`.

    From that copy, in its scratch directory, the next session learns whose sandboxes a killed process left.
    """

    def __init__(self, own: Path, session_id: str) -> None:
        self._session_id = session_id
        self._own = Journal(own)
        self._jobs: dict[Path, Journal] = {}

    def add(self, job_dir: Path | None, event: str, **facts: Any) -> None:
        """Add a line: create, created, deleted or kept. Without a job only a later session learns of it."""
        line = _line(event, self._session_id, facts)
        if job_dir is None:
            self._own.append(line)
            return
        ours = {**line, "ledger": str((job_dir / NAME).absolute())}
        if event not in _LAST:  # told of here first, so that none is made that a later session cannot know
            self._own.append(ours)
        self._jobs.setdefault(job_dir, Journal(job_dir / NAME)).append(line)
        if event in _LAST:
            self._own.append(ours)

    def close(self) -> None:
        """Close the files."""
        for journal in (self._own, *self._jobs.values()):
            journal.close()


def facts_of(backend: Backend, spec: SandboxSpec, **more: Any) -> dict[str, Any]:
    """Return what the lines of a sandbox say of it: enough for a later session to find it."""
    return {
        "sandbox": spec.id,
        "backend": backend.name,
        **more,
        "scratch": str(spec.scratch),
        "dies_with_process": backend.dies_with_process,
        "place": backend.place,
    }


async def make(
    ledger: Ledger, job_dir: Path | None, backend: Backend, spec: SandboxSpec, facts: dict[str, Any]
) -> Sandbox:
    """Make a sandbox between its first two lines. Where none came of it, the last one follows, once that is proved."""
    try:
        await aside(functools.partial(ledger.add, job_dir, "create", **facts))
        sandbox = await backend.create(spec)
    except BaseException as error:
        nothing_made = isinstance(error, SandboxError) and error.nothing_made
        if nothing_made or backend.dies_with_process or await asyncio.shield(asyncio.to_thread(_reap, facts, backend)):
            ledger.add(job_dir, "deleted", **facts)
        raise
    ledger.add(job_dir, "created", **facts)
    return sandbox


def unfinished(ledger: Path, session_id: str) -> list[dict[str, Any]]:
    """Return the latest line of each sandbox of a session that has no last line in a ledger."""
    return [facts for facts in _unfinished(_records(ledger)).values() if facts.get("session") == session_id]


def lasting(ledger: Path, session_id: str) -> dict[str, frozenset[str]]:
    """Return the backends whose sandboxes outlive their process, each with the sessions' scratch directories it used.

    Only lines of that session count, which may have been several processes'.
    """
    found: dict[str, set[str]] = {}
    for record in _records(ledger):
        if record.get("session") == session_id and not record.get("dies_with_process"):
            place = str(Path(str(record.get("scratch"))).parent)
            found.setdefault(str(record.get("backend")), set()).add(place)
    return {backend: frozenset(places) for backend, places in found.items()}


def owed() -> list[dict[str, Any]]:
    """Return the sandboxes of dead sessions of this user here that may live on, by the latest line of each.

    `known_from` is the directory that this is known from.
    """
    return [
        {**facts, "known_from": str(place)}
        for place in sessions()[1].values()
        for facts in _unfinished(_records(place / NAME)).values()
        if not facts.get("dies_with_process")
    ]


def settle(own: Path, session_id: str) -> bool:
    """Add the last lines that a killed process owes the ledgers of its jobs, when the files of its sandboxes are gone.

    Sandboxes that live on without the process that made them are removed by their backend first; False: one may be
    left, and `own` is needed again. A job that was removed, or cannot be written to, gets no line.
    """
    settled, lasting_in = True, _lasting_sessions(own)
    for facts in _unfinished(_records(own)).values():
        ledger = Path(str(facts.pop("ledger", "")))
        if not facts.get("dies_with_process") and not _reap(facts):
            settled = False
            continue
        with suppress(OSError):
            # Its last line may have been written, and not been told of here.
            if ledger.is_file() and facts["sandbox"] in _unfinished(_records(ledger)):
                journal = Journal(ledger)
                after = "its process was killed" if facts["dies_with_process"] else "its own session did not remove it"
                journal.append(_line("deleted", session_id, {**facts, "after": after}))
                journal.close()
    if settled:
        for session in lasting_in:
            note_ended(session)
    return settled


def closes(own: Path) -> bool:
    """Tell whether a session that ends needs `own` no more, and keep that it is over."""
    if any(not facts.get("dies_with_process") for facts in _unfinished(_records(own)).values()):
        return False
    for session in _lasting_sessions(own):
        note_ended(session)
    return True


def _lasting_sessions(own: Path) -> set[str]:
    """Return the scratch directories of the sessions whose sandboxes live on without their process."""
    return {
        str(Path(str(facts.get("scratch"))).parent) for facts in _records(own) if not facts.get("dies_with_process")
    }


def _reap(facts: dict[str, Any], backend: Backend | None = None) -> bool:
    """Let a backend remove what is left of one sandbox; False: nobody can tell."""
    try:
        backend = backend or registry.load("sandboxes", str(facts.get("backend")), "backend")
    except UsageError:  # a third party's, which is not there this time
        return False
    assert backend is not None
    return backend.reap(Path(str(facts.get("scratch"))), str(facts.get("place", "")))


def _line(event: str, session_id: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts, "event": event, "time": time.time(), "pid": os.getpid(), "session": session_id}


def _unfinished(records: Iterator[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the sandboxes that have no last line, with their latest one."""
    left: dict[str, dict[str, Any]] = {}
    for record in records:
        sandbox = str(record.get("sandbox"))
        if record.get("event") in _LAST:
            left.pop(sandbox, None)
        else:
            left[sandbox] = record
    return left


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a ledger; a torn line tells nothing."""
    with suppress(OSError):
        for _number, line in read_lines(path):
            with suppress(ValueError):
                record = loads(line)
                if isinstance(record, dict):
                    yield record
