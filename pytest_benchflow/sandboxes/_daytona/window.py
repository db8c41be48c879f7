"""Look into a live command from outside, through a terminal or through SSH: bytes in, bytes out, from any position."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from typing import TYPE_CHECKING, Any, Protocol

from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytest_benchflow.sandboxes._daytona.box import Box
    from pytest_benchflow.sandboxes._daytona.ssh import SshProcess

_OPEN_SEC = 60.0
# A terminal's messages hold at most 64 KiB.
_PART = 1 << 14
_GREETING = 1 << 20


class Window(Protocol):
    """An open window; `closed` is set when nothing comes through it any more."""

    closed: asyncio.Event

    async def send(self, data: bytes) -> None:
        """Give input. Raises: OSError when the window is closed."""

    async def close(self) -> None:
        """Close it; the command goes on. Safe to call twice."""


class _Opening:
    """Hold what a login says back, up to the word by which the window begins."""

    def __init__(self, take: Callable[[bytes], Awaitable[None]]) -> None:
        self.word = secrets.token_hex(8)
        self.begun = asyncio.Event()
        self._mark = f"\nwindow: {self.word}\n".encode()
        self._said = b""
        self._take = take

    async def see(self, data: bytes) -> None:
        if self.begun.is_set():
            await self._take(data)
            return
        self._said = (self._said + data)[-_GREETING:]
        _, mark, rest = self._said.partition(self._mark)
        if mark:
            self.begun.set()
            self._said = b""
            if rest:
                await self._take(rest)

    def tail(self) -> str:
        return self._said[-300:].decode(errors="backslashreplace").strip() or "nothing"


def _bridge(box: Box, directory: str, position: int, word: str) -> str:
    return shlex.join(["sh", f"{box.place}/bridge", directory, str(position + 1), word])


class TerminalWindow:
    """A window through a terminal of the toolbox, which is put into raw mode first."""

    def __init__(self, box: Box, name: str) -> None:
        self.closed = asyncio.Event()
        self._box = box
        self._name = name
        self._handle: Any = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, box: Box, name: str, directory: str, position: int, take: Callable[[bytes], Awaitable[None]]
    ) -> TerminalWindow:
        """Open a window on the command in `directory`, its output from `position` on. Raises: SandboxError."""
        window, opening = cls(box, name), _Opening(take)
        process = box.handle.process
        try:
            # Asked once: a terminal of this name may be there after a lost answer.
            window._handle = await box.ask(
                "opening a terminal", lambda: process.create_pty_session(name, opening.see, cwd="/"), again=False
            )
            window._watch = asyncio.create_task(window._see_end())
            command = f"exec {_bridge(box, directory, position, opening.word)}\n"
            await window.send(command.encode())
            await _until(opening, window.closed, "terminal")
        except BaseException:
            await asyncio.shield(window.close())
            raise
        return window

    async def _see_end(self) -> None:
        with contextlib.suppress(Exception):  # why it ended matters to nobody: the command's files tell what is so
            await self._handle.wait()
        self.closed.set()

    async def send(self, data: bytes) -> None:
        """Give input. Raises: OSError when the window is closed."""
        for start in range(0, len(data), _PART):
            if self.closed.is_set():
                raise BrokenPipeError("the terminal is closed")
            try:
                await self._handle.send_input(data[start : start + _PART])
            except Exception as error:
                raise BrokenPipeError(f"the terminal is closed: {error}") from error

    async def close(self) -> None:
        """Close it; the command goes on. Safe to call twice."""
        handle, self._handle = self._handle, None
        self.closed.set()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if handle is not None:
            await handle.disconnect()
            with contextlib.suppress(SandboxError):
                await self._box.end_terminal(self._name)


class SshWindow:
    """A window through a channel of the SSH connection."""

    def __init__(self, process: SshProcess) -> None:
        self.closed = asyncio.Event()
        self._process = process
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, box: Box, directory: str, position: int, take: Callable[[bytes], Awaitable[None]]) -> SshWindow:
        """Open a window on the command in `directory`, its output from `position` on. Raises: SandboxError."""
        opening = _Opening(take)
        link = await box.link()
        window = cls(await link.spawn(_bridge(box, directory, position, opening.word)))
        window._reading = asyncio.create_task(window._read(opening))
        try:
            await _until(opening, window.closed, "SSH channel")
        except BaseException:
            await asyncio.shield(window.close())
            raise
        return window

    async def _read(self, opening: _Opening) -> None:
        try:
            while data := await self._process.read(_PART):
                await opening.see(data)
        finally:
            self.closed.set()

    async def send(self, data: bytes) -> None:
        """Give input. Raises: OSError when the window is closed."""
        if self.closed.is_set():
            raise BrokenPipeError("the SSH channel is closed")
        await self._process.write(data)

    async def close(self) -> None:
        """Close it; the command goes on. Safe to call twice."""
        self.closed.set()
        await self._process.kill()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


async def _until(opening: _Opening, closed: asyncio.Event, what: str) -> None:
    """Wait for the window's first word. Raises: SandboxError."""
    waiting = [asyncio.ensure_future(opening.begun.wait()), asyncio.ensure_future(closed.wait())]
    try:
        await asyncio.wait(waiting, timeout=_OPEN_SEC, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    if not opening.begun.is_set():
        raise SandboxError(f"the {what} shows no command within {_OPEN_SEC:.0f} s; it said: {opening.tail()}")
