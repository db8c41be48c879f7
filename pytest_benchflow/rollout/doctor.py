"""Say what each kind of sandbox has and lacks on this machine, and try one on request."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import TYPE_CHECKING, get_args

from pytest_benchflow import contracts, registry
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pytest_benchflow.contracts import Backend

    # `sandboxes/_NAME/probe.py` may offer one as `probe`: it tries a backend as it is here, says what came of it,
    # leaves nothing, and tells whether all is in order.
    Probe = Callable[[Callable[[str], None]], Awaitable[bool]]

LIMITS = ("cpus", "memory", "processes", "storage")


def use_hosts(hosts: Sequence[str] | None) -> None:
    """Let the ssh sandbox know the hosts that a command was given. Raises: UsageError."""
    if hosts:
        registry.load("sandboxes", "ssh", "backend").use(hosts)


def describe(name: str) -> tuple[bool, list[str]]:
    """Return whether a kind of sandbox can be used here, and lines that say why not, or what it has and lacks."""
    backend: Backend = registry.load("sandboxes", name, "backend")
    reason = backend.available()
    lines = [f"{name}: available" if reason is None else f"{name}: not available: {reason}"]
    able = backend.capabilities
    if reason is None:
        lines += [
            f"  networks: {_have(sorted(get_args(contracts.Network)), able.networks)}",
            f"  limits held: {_have(LIMITS, able.limits)}",
            f"  root: {_word(able.root)} · stdin: {_word(able.stdin)} · snapshots: {_word(able.snapshots)}",
        ]
    if not able.programs:
        lines.append("  runs no program: each command is answered from a script; for tests, never for results")
    if able.unseen:
        lines.append(f"  not seen against the real thing yet: {', '.join(able.unseen)}")
    if _has_probe(name):
        lines.append(f"  `pytest-benchflow doctor --probe {name}` tries it")
    return reason is None, lines


def probe(name: str, say: Callable[[str], None]) -> bool:
    """Try a kind of sandbox live and return whether all was in order.

    Raises: UsageError for one that is not there, cannot be used here or has no probe.
    """
    backend: Backend = registry.load("sandboxes", name, "backend")
    if not _has_probe(name):
        have = [each for each in registry.names("sandboxes") if _has_probe(each)]
        raise UsageError(f"--probe is {name!r}, which has no probe; those that have one: {', '.join(have) or 'none'}")
    if reason := backend.available():
        raise UsageError(f"{name} cannot be probed: {reason}")
    found: Probe = importlib.import_module(_probe_module(name)).probe

    async def run() -> bool:
        try:
            return await found(say)
        finally:
            await backend.close()

    return asyncio.run(run())


def _has_probe(name: str) -> bool:
    try:
        return importlib.util.find_spec(_probe_module(name)) is not None
    except ModuleNotFoundError:  # not even the package it would be in
        return False


def _probe_module(name: str) -> str:
    return f"pytest_benchflow.sandboxes._{name}.probe"


def _have(all_of: Sequence[str], found: frozenset[str]) -> str:
    lacks = [each for each in all_of if each not in found]
    has = ", ".join(each for each in all_of if each in found) or "none"
    return has + (f" (not {', '.join(lacks)})" if lacks else "")


def _word(value: bool) -> str:
    return "yes" if value else "no"
