"""Read which hosts SSH sandboxes are made on, and take one of a host's slots: whoever else of this user runs some."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError, UsageError
from pytest_benchflow.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FORM = "[user@]host[:port][*slots]"
_HOST = re.compile(
    r"(?:(?P<user>[^@\s*]+)@)?(?P<name>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?(?:\*(?P<slots>\d{1,4}))?\Z"
)
_TICK_SEC = 0.2


@dataclass(frozen=True, slots=True)
class SshHost:
    """A machine as the user names it; what is None is for ~/.ssh/config, or the machine itself, to say."""

    name: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None  # rollouts at a time

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return (f"{self.user}@" if self.user else "") + name + (f":{self.port}" if self.port else "")


def read_host(text: str) -> SshHost:
    """Read `[user@]host[:port][*slots]`. Raises: UsageError."""
    found = _HOST.match(text)
    port, slots = (found["port"], found["slots"]) if found else (None, None)
    if found is None or found["name"].startswith("-") or slots == "0" or not 0 < int(port or 22) < 65536:
        raise UsageError(f"{text!r} is no host; it takes {FORM}, such as me@box1:2222*4")
    return SshHost(found["name"].strip("[]"), found["user"], int(port) if port else None, int(slots) if slots else None)


def read_hosts(texts: Sequence[str]) -> tuple[SshHost, ...]:
    """Read several, each once. Raises: UsageError."""
    hosts = [read_host(text) for text in texts]
    known: dict[str, SshHost] = {}
    for host in hosts:
        if known.setdefault(str(host), host) != host:
            raise UsageError(f"the host {host} is named with {known[str(host)].slots} and with {host.slots} slots")
    return tuple(known.values())


class Slot:
    """The right to make one sandbox on a host; the kernel gives it back however this process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def free(self) -> None:
        """Give it back; safe to call twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


async def take_slot(hosts: Callable[[], Sequence[tuple[SshHost, int]]]) -> tuple[SshHost, Slot]:
    """Return a free slot of the hosts, the least used first; wait until there is one.

    `hosts` returns those that can be used now, with how many slots each has. Raises: SandboxError when it returns none.
    """
    while usable := hosts():
        free: list[tuple[int, SshHost, Slot]] = []
        for host, slots in usable:
            taken = [slot for number in range(slots) if (slot := _try(host, number)) is not None]
            if taken:
                free.append((slots - len(taken), host, taken[0]))
                for slot in taken[1:]:
                    slot.free()
        free.sort(key=lambda each: each[0])
        for _, _, slot in free[1:]:
            slot.free()
        if free:
            return free[0][1], free[0][2]
        await asyncio.sleep(_TICK_SEC)
    raise SandboxError("none of the SSH hosts can be used any more")


def _try(host: SshHost, number: int) -> Slot | None:
    base = cache_dir() / "slots"
    base.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(host).encode()).hexdigest()[:16]
    descriptor = os.open(base / f"{name}-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Slot(descriptor)
    os.close(descriptor)
    return None
