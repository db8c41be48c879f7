"""Keep to what a provider allows one key: so many calls at once, and a pause when it asks for one.

The processes of a session tell each other through files: a call holds the lock of one of as many files as calls may be
open, which the system frees however the process ends, and a pause is the time in a file until which no call is made.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import ProviderError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from pytest_benchflow.contracts import ModelResponse, Upstream

# As long as agents' clients wait for an answer, with room for the answer; what lasts longer is theirs to decide.
LONGEST_PAUSE_SEC = 120.0
_SHORTEST_PAUSE_SEC = 0.5
_LOOK_SEC = 0.05
# A provider that still refuses says so at once: no word for so long means that calls are answered again.
_FIRST_ALONE_SEC = 2.0
_RATE_LIMITED = 429


class NotWantedError(Exception):
    """Nobody waits any more for a call that was waiting for its turn."""


@dataclass(slots=True)
class Wait:
    """How one exchange waits; `wanted` tells whether somebody still wants its answer."""

    wanted: Callable[[], bool]
    slot_sec: float = 0.0
    pause_sec: float = 0.0
    refused: int = 0  # answers of 429 that the agent does not see

    def metadata(self) -> dict[str, Any]:
        """Return what the exchange's metadata say of it: nothing when there was nothing to wait for."""
        if not (self.slot_sec or self.pause_sec):
            return {}
        waited = {
            "concurrency_ms": round(self.slot_sec * 1000, 3),
            "rate_limit_ms": round(self.pause_sec * 1000, 3),
            "rate_limited": self.refused,
        }
        return {"waited": waited} | ({"upstream_attempt": 1 + self.refused} if self.refused else {})

    async def look(self, seconds: float = _LOOK_SEC) -> float:
        """Let some time pass and return how much it was. Raises: NotWantedError."""
        begun = time.monotonic()
        await asyncio.sleep(min(seconds, _LOOK_SEC))
        if not self.wanted():
            raise NotWantedError
        return time.monotonic() - begun


class Pacing:
    """What a session's calls keep to; `directory` is its own, `limit` the calls open at once per key, None for any."""

    def __init__(self, directory: Path, *, limit: int | None = None) -> None:
        self._directory = directory
        self._limit = limit
        self._lock: int | None = None
        self._accounts: dict[str, Account] = {}

    def account(self, upstream: Upstream) -> Account | None:
        """Return what the calls of an upstream's key keep to, None for one without limits such as a recording."""
        name = getattr(upstream, "account", None)
        if name is None:
            return None
        self._open()
        return self._accounts.setdefault(name, Account(self._directory / name, self._limit))

    def _open(self) -> None:
        """Take a share in the directory: it is there as long as a process has one."""
        while self._lock is None:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
                fcntl.flock(lock, fcntl.LOCK_SH)
                # Whoever had the last share may have removed it meanwhile.
                if os.fstat(lock).st_nlink:
                    self._lock = lock
                else:
                    os.close(lock)

    def close(self) -> None:
        """Give the share back; safe to call twice, and to go on after."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in self._directory.iterdir():
                path.unlink()
            self._directory.rmdir()
        os.close(lock)


@dataclass(slots=True)
class Account:
    """The calls of one key; the names of its files begin with `files`."""

    files: Path
    limit: int | None
    _until: str = field(init=False)  # the file of the pause
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Name the file once: every call looks for it."""
        self._until = str(self.files.with_suffix(".until"))

    @asynccontextmanager
    async def slot(self, wait: Wait) -> AsyncIterator[None]:
        """Hold one of the calls that may be open at once, where that is limited. Raises: NotWantedError."""
        assert self.limit is not None
        begun, waits = time.monotonic(), self._turn.locked()
        async with self._turn:  # within a process those come first that came first
            while (lock := self._free_slot(self.limit)) is None:
                waits = True
                await wait.look()
        if waits:
            wait.slot_sec = time.monotonic() - begun
        try:
            if waits and not wait.wanted():
                raise NotWantedError
            yield
        finally:
            os.close(lock)

    async def send(self, send: Callable[[], Awaitable[ModelResponse]], wait: Wait) -> ModelResponse:
        """Send when no pause is on, and again after one that the answer asks for, as far as that may last.

        An answer of 429 is returned as it is when it names no time, or one too far away. Raises: NotWantedError.
        """
        while True:
            alone = await self._after_pause(wait)
            try:
                answer = await send()
                asked = retry_after(answer.headers) if answer.status == _RATE_LIMITED else None
                if asked is None:
                    if alone is not None and (self._told_until() or 0) <= time.monotonic():
                        Path(self._until).unlink(missing_ok=True)
                    return answer
                # Longer each time for one call, so that what is sent in vain has an end too.
                asked = max(asked, _SHORTEST_PAUSE_SEC * 2**wait.refused)
                self._pause(asked)
            finally:
                if alone is not None:
                    os.close(alone)
            if wait.pause_sec + asked > LONGEST_PAUSE_SEC:
                return answer
            wait.refused += 1
            with suppress(ProviderError):
                async for _ in answer.chunks:
                    pass

    async def _after_pause(self, wait: Wait) -> int | None:
        """Wait for the end of a pause, and then for the one call that tries whether it is over.

        Returns the lock of that one call, None for all others.
        """
        while (until := self._told_until()) is not None:
            left = until - time.monotonic()
            # One that is not over soon enough is for the agent to hear of from the provider itself.
            if left > LONGEST_PAUSE_SEC - wait.pause_sec or left < -_FIRST_ALONE_SEC:
                return None
            if left <= 0:
                lock = _locked(self.files.with_suffix(".first"))
                if lock is not None:
                    return lock
            wait.pause_sec += await wait.look(left if left > 0 else _LOOK_SEC)
        return None

    def _told_until(self) -> float | None:
        """Return the time of the machine's monotonic clock until which no call is made, None when no pause is known."""
        try:
            descriptor = os.open(self._until, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return float(os.read(descriptor, 64) or 0)
        finally:
            os.close(descriptor)

    def _pause(self, seconds: float) -> None:
        """Prolong the pause of all of the session's processes to so many seconds from now."""
        until = time.monotonic() + seconds
        descriptor = os.open(self._until, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if until > float(os.pread(descriptor, 64, 0) or 0):
                # As long as any other number, so that nobody reads a mixture of two.
                os.pwrite(descriptor, f"{until:020.6f}".encode(), 0)
        finally:
            os.close(descriptor)

    def _free_slot(self, limit: int) -> int | None:
        for number in range(limit):
            lock = _locked(self.files.with_suffix(f".{number}"))
            if lock is not None:
                return lock
        return None


def account_name(*parts: str | None) -> str:
    """Return a name for what belongs to one key, which does not tell the key."""
    return hashlib.sha256("\0".join(part or "" for part in parts).encode()).hexdigest()[:16]


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which a provider lets a call be made again, None when it does not say."""
    told = {name.lower(): value.strip() for name, value in headers.items()}
    for name, per_second in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(KeyError, ValueError):
            seconds = float(told[name]) / per_second
            return seconds if 0 <= seconds < float("inf") else None
    with suppress(KeyError, ValueError):
        moment = parsedate_to_datetime(told["retry-after"])
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - time.time())
    return None


def _locked(path: Path) -> int | None:
    """Return the descriptor of a file with its lock, None when somebody has that."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
