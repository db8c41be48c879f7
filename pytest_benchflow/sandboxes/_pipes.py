"""Read and write the host's ends of a sandboxed process's pipes without ever blocking the loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HEAD_BYTES = TAIL_BYTES = 8 << 20


class Pipe:
    """The host's end of one pipe; at most one task reads or writes it at a time."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None

    async def read(self, limit: int) -> bytes:
        """Return up to `limit` bytes as soon as there are any; b"" at the end or once closed."""
        while self._descriptor is not None:
            try:
                return os.read(self._descriptor, limit)
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
        return b""

    async def write(self, data: bytes) -> None:
        """Write everything. Raises: BrokenPipeError when nobody can read it any more."""
        view = memoryview(data)
        while view:
            if self._descriptor is None:
                raise BrokenPipeError("the pipe is closed")
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def _ready(self, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
        descriptor = self._descriptor
        assert descriptor is not None
        waiting = self._waiting = self._loop.create_future()
        add(descriptor, _wake, waiting)
        try:
            await waiting
        finally:
            self._waiting = None
            if self._descriptor is not None:
                remove(descriptor)

    def close(self) -> None:
        """Close it; a task that waits on it goes on as at the end. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)
        os.close(descriptor)
        if self._waiting is not None:
            _wake(self._waiting)


@dataclass(slots=True)
class Pipes:
    """The host's ends of the pipes of one process."""

    stdin: Pipe | None = None
    stdout: Pipe | None = None
    stderr: Pipe | None = None

    def close(self) -> None:
        """Close all that is open."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()


class Collected:
    """Output of a command: all of it up to 16 MiB, beyond that its head and its tail."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0
        self.count = 0  # bytes that came

    async def fill(self, read: Callable[[int], Awaitable[bytes]]) -> None:
        """Read to the end; what was read so far stays when this is cancelled."""
        while chunk := await read(1 << 16):
            self.add(chunk)

    def add(self, chunk: bytes) -> None:
        """Add what came next."""
        self.count += len(chunk)
        room = HEAD_BYTES - len(self._head)
        self._head += chunk[:room] if room > 0 else b""
        self._tail += chunk[max(room, 0) :]
        # Trimmed at twice its size: otherwise every chunk would move all of it.
        if len(self._tail) > 2 * TAIL_BYTES:
            self._trim()

    def _trim(self) -> None:
        extra = len(self._tail) - TAIL_BYTES
        if extra > 0:
            del self._tail[:extra]
            self._cut += extra

    def text(self) -> str:
        """Return it as text; undecodable bytes are shown as backslash escapes."""
        self._trim()
        if not self._cut:
            return (self._head + self._tail).decode(errors="backslashreplace")
        note = f"\n[{self._cut} bytes left out here]\n"
        return self._head.decode(errors="backslashreplace") + note + self._tail.decode(errors="backslashreplace")


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def close_all(*descriptors: int) -> None:
    """Close descriptors, whatever state they are in."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
