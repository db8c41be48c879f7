"""Decide which of the sandboxes that a backend still has are ours to remove, and remove no other.

Backends are shared: an engine by users, a cloud's key by operators. What bears exactly our owner's name is ours; in
doubt a sandbox stays, and the reason is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._labels import SCRATCH, UNTIL, owner_of, whose
from pytest_benchflow.sandboxes._local.sessions import elsewhere, ended, sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from pytest_benchflow.contracts import Backend, Remain

OLDER_THAN_SEC = 7200.0
ACTIVE_SEC = 900.0
_AT_ONCE = 8
# A time without a zone may be of any: the one in which it is the latest moment.
_WESTERNMOST = timezone(timedelta(hours=-12))

Fate = Literal["delete", "keep", "warn", "others"]


@dataclass(frozen=True, slots=True)
class Situation:
    """What decisions depend on beside the sandbox: times in epoch seconds, sessions by their scratch directories."""

    owner: str
    now: float
    older_than_sec: float = OLDER_THAN_SEC
    live: frozenset[str] = frozenset()
    dead: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of a sandbox: delete, keep (ours, but not yet), warn (labels that fit nobody), others."""

    remain: Remain
    fate: Fate
    reason: str


def decide(remain: Remain, situation: Situation) -> Decision:
    """Decide on one sandbox by nothing but what it says of itself and the situation."""
    owned, fault = whose(remain.labels, situation.owner)
    if owned == "orphan":
        return Decision(remain, "warn", f"{fault}: nobody's by its labels, so nobody but you can tell; not removed")
    if owned != "ours":
        return Decision(remain, "others", "another operator's" if owned == "others" else "none of this package's")
    session = _session_of(remain)
    if session in situation.live:
        return Decision(remain, "keep", "its session is alive")
    if session in situation.dead:
        return Decision(remain, "delete", "its session is dead")
    protected = _why_too_early(remain, situation)
    age = situation.now - (latest(remain.created) or 0)
    return Decision(remain, "keep", protected) if protected else Decision(remain, "delete", f"{duration(age)} old")


def _why_too_early(remain: Remain, situation: Situation) -> str | None:
    """Return why a sandbox of ours, whose session nobody here knows, may be in use; None when it cannot be."""
    created, now = latest(remain.created), situation.now
    if created is None:
        return f"its age is not known (created: {_shown(remain.created)})"
    if now - created < situation.older_than_sec:
        return f"{duration(now - created)} old, which is younger than {duration(situation.older_than_sec)}"
    if remain.active is not None:
        active = latest(remain.active)
        if active is None:
            return f"its last activity is not known (said: {_shown(remain.active)})"
        if now - active < ACTIVE_SEC:
            return f"it was active {duration(now - active)} ago"
    until = remain.labels.get(UNTIL)
    if until is not None:
        end = _number(until)
        if end is None:
            return f"its end is not known ({UNTIL}={_shown(until)})"
        if now < end:
            return f"its rollout may take for another {duration(end - now)}"
    return None


def latest(moment: object) -> float | None:
    """Return the latest moment, in epoch seconds, that a time may mean; None for what tells none."""
    if isinstance(moment, str):
        with contextlib.suppress(ValueError):
            moment = datetime.fromisoformat(moment.strip())
    if isinstance(moment, datetime):
        try:
            moment = (moment if moment.tzinfo else moment.replace(tzinfo=_WESTERNMOST)).timestamp()
        except (OverflowError, ValueError, OSError):
            return None
    if isinstance(moment, bool) or not isinstance(moment, int | float):
        return None
    # Engines write a moment that never was as the year 1, or as 0.
    return float(moment) if math.isfinite(moment) and moment > 0 else None


def _number(text: object) -> float | None:
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:60]


def duration(seconds: float) -> str:
    """Return a time span for people, such as "2 h" or "-3 s"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


@dataclass(slots=True)
class Reaping:
    """What came of looking through one backend."""

    backend: str
    decisions: list[Decision] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # by the name of a sandbox that was not removed: why
    silent: str | None = None  # why the backend could not be asked

    def of(self, fate: Fate) -> list[Decision]:
        """Return the decisions of one kind."""
        return [each for each in self.decisions if each.fate == fate]

    @property
    def removed(self) -> list[Decision]:
        """Return what was decided to be removed, and was."""
        return [each for each in self.of("delete") if each.remain.name not in self.failed]

    def lines(self, *, dry_run: bool = False) -> list[str]:
        """Return what to tell, a line for each sandbox of ours or with labels that fit nobody."""
        told = []
        for each in self.decisions:
            about = f" ({each.remain.about})" if each.remain.about else ""
            if each.fate == "delete":
                why_not = self.failed.get(each.remain.name)
                word = "would remove" if dry_run else "removed" if why_not is None else "NOT removed"
                said = each.reason if why_not is None else why_not
                told.append(f"{self.backend}: {word} {each.remain.name}{about}: {said}")
            elif each.fate == "keep":
                told.append(f"{self.backend}: kept {each.remain.name}{about}: {each.reason}")
            elif each.fate == "warn":
                told.append(f"{self.backend}: warning: {each.remain.name}{about} has {each.reason}")
        if others := len(self.of("others")):
            told.append(f"{self.backend}: {others} of others left alone")
        if self.silent:
            told.append(f"{self.backend}: warning: it is not known what is left: {self.silent}")
        return told


async def reap(
    backends: Iterable[Backend], *, older_than_sec: float = OLDER_THAN_SEC, dry_run: bool = False
) -> AsyncIterator[Reaping]:
    """Look through backends and remove what is decided to be removed; yield each as it is done.

    Raises: UsageError for an owner's name that is none. What a backend fails at is in its `Reaping`.
    """
    for backend in backends:
        done = Reaping(backend.name)
        owner = owner_of(backend.name)
        try:
            found = await backend.remains()
        except SandboxError as error:
            done.silent = str(error)
            yield done
            continue
        # Looked at after the sandboxes: a session that began meanwhile is known to live.
        live, dead = await asyncio.to_thread(_sessions_of, found)
        situation = Situation(owner, time.time(), older_than_sec, live, dead)
        done.decisions = [decide(remain, situation) for remain in found]
        if not dry_run:
            done.failed = await _discard(backend, [each.remain.name for each in done.of("delete")])
        yield done


def _sessions_of(found: Iterable[Remain]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the sessions that live, and those that are dead, as far as this machine knows."""
    live, dead = sessions()
    live_elsewhere, dead_elsewhere = elsewhere({_session_of(remain) for remain in found})
    return live | live_elsewhere, frozenset(dead) | dead_elsewhere | ended()


def _session_of(remain: Remain) -> str:
    return str(PurePath(str(remain.labels.get(SCRATCH, ""))).parent)


async def _discard(backend: Backend, names: Sequence[str]) -> dict[str, str]:
    """Remove sandboxes, a few at a time; return why each that is left is."""
    turn, failed = asyncio.Semaphore(_AT_ONCE), {}

    async def discard(name: str) -> None:
        async with turn:
            try:
                await backend.discard(name)
            except (SandboxError, OSError) as error:
                failed[name] = str(error)

    await asyncio.gather(*map(discard, names))
    return failed
