"""Remove what killed sessions left when one begins, and tell what this one leaves when it ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pytest_benchflow import registry
from pytest_benchflow.errors import BenchflowError, SandboxError
from pytest_benchflow.rollout.ledger import NAME, lasting, owed, settle, unfinished
from pytest_benchflow.rollout.reaper import duration, reap
from pytest_benchflow.rollout.scratch import ScratchBase
from pytest_benchflow.sandboxes._labels import SCRATCH, owner_of, whose

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import Backend, Remain

# A session is there for its rollouts: what takes longer is left to the command, or to the next start.
LIMIT_SEC = 60.0


async def reap_at_start(name: str, limit_sec: float = LIMIT_SEC) -> list[str]:
    """Remove what is left of the backend of that name by dead sessions; return what to tell.

    What dies with its process needs none of this: scratch directories are swept anyway. Raises: UsageError.
    """
    backend: Backend = registry.load("sandboxes", name, "backend")
    if backend.dies_with_process or backend.available() is not None:
        return []
    told: list[str] = []
    try:
        async with asyncio.timeout(limit_sec):
            async for done in reap([backend]):
                told += [f"{line}, left by an earlier session" for line in done.lines() if ": removed " in line]
                told += [line for line in done.lines() if ": NOT removed " in line]
                if done.silent:
                    told.append(f"{name}: it is not known what earlier sessions left: {done.silent}")
                if orphans := len(done.of("warn")):
                    told.append(
                        f"{name}: {orphans} with labels that fit nobody; "
                        f"`pytest-benchflow reap --dry-run --sandbox {name}` lists them"
                    )
    except TimeoutError:
        told.append(
            f"{name}: looking for what earlier sessions left took over {duration(limit_sec)}; "
            f"`pytest-benchflow reap --sandbox {name}` takes the time it needs"
        )
    finally:
        await backend.close()
    return told


async def left_at_end(job_dir: Path, session_id: str, limit_sec: float = LIMIT_SEC) -> list[str]:
    """Return a line for each sandbox of a session, whose processes have all ended, that is not surely gone.

    What can be removed still, is: a killed worker, or an engine that was away for a moment, leaves something. A backend
    that does not answer has a line, too: that the ledger tells of each end is one proof, and this is the other.
    """
    ledger = job_dir / NAME
    if _unfinished(ledger, session_id):
        with suppress(OSError):  # what was not settled by that is told of
            await asyncio.to_thread(ScratchBase().sweep, last=NAME, settle=partial(settle, session_id=session_id))
    left = {str(facts.get("scratch")): _line(facts) for facts in _unfinished(ledger, session_id)}
    for name, places in lasting(ledger, session_id).items():
        try:
            async with asyncio.timeout(limit_sec):
                found = await _still_there(name, places)
        except (OSError, BenchflowError) as error:
            why = f"no answer within {duration(limit_sec)}" if isinstance(error, TimeoutError) else str(error)
            left[name] = f"what {name} still has of this session is not known: {why}"
            continue
        left = {**{each.labels[SCRATCH]: f"{each.name} of {name} ({each.about})" for each in found}, **left}
    return list(left.values())


async def _still_there(name: str, places: frozenset[str]) -> list[Remain]:
    """Remove what a backend still has of a session's sandboxes, and return what it does not remove.

    Raises: SandboxError when it does not answer, UsageError when it is not there.
    """
    backend: Backend = registry.load("sandboxes", name, "backend")
    left = []
    try:
        for remain in await backend.remains():
            session = str(PurePath(remain.labels.get(SCRATCH, "")).parent)
            if session in places and whose(remain.labels, owner_of(name))[0] == "ours":
                try:
                    await backend.discard(remain.name)
                except SandboxError:
                    left.append(remain)
    finally:
        await backend.close()
    return left


def _unfinished(ledger: Path, session_id: str) -> list[dict[str, Any]]:
    """Return what a session's job tells of no end of, and what its dead processes made without a job."""
    by_hand = [facts for facts in owed() if facts.get("session") == session_id and "ledger" not in facts]
    return [*unfinished(ledger, session_id), *by_hand]


def _line(facts: dict[str, Any]) -> str:
    place = f" at {facts['place']}" if facts.get("place") else ""
    whose_it_is = f" of {facts['rollout']}" if facts.get("rollout") else ""
    return f"{facts['sandbox']}{whose_it_is} ({facts.get('backend')}{place})"
