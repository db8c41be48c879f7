"""A live command in a Daytona sandbox: it outlives every connection to it, and nothing it said is lost with one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import time
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._daytona.lost import DeletedError
from pytest_benchflow.sandboxes._daytona.scripts import LOOK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytest_benchflow.sandboxes._daytona.box import Box
    from pytest_benchflow.sandboxes._daytona.window import Window

    Open = Callable[[str, int, Callable[[bytes], Awaitable[None]]], Awaitable[Window]]

_FIRST_LOOK_SEC = 0.2
_LOOK_SEC = 5.0
_GROWTH = 1.5
# What the far side has written and we have not got by then was lost on the way.
_OVERDUE_SEC = 4.0
_LOOKS_FAILED = 10
_ROOM = 1 << 20
_KILLED = 137
_BEYOND = 1 << 60


class TransportError(SandboxError):
    """The way to a living command broke twice, and another way is not taken unasked."""

    category = "transport"


class _Inlet:
    """Bytes that came and were not read yet; who brings more than there is room for waits."""

    def __init__(self) -> None:
        self.count = 0  # of all that ever came
        self._data = bytearray()
        self._ended = False
        self._fault: SandboxError | None = None
        self._changed = asyncio.Event()

    async def put(self, data: bytes) -> None:
        while self.is_full and not self._ended:
            await self._wait()
        if not self._ended:
            self.count += len(data)
            self._data += data
            self._changed.set()

    @property
    def is_full(self) -> bool:
        return len(self._data) > _ROOM

    async def get(self, limit: int) -> bytes:
        while not self._data and not self._ended:
            await self._wait()
        if not self._data and self._fault is not None:
            raise self._fault
        chunk = bytes(self._data[:limit])
        del self._data[:limit]
        self._changed.set()
        return chunk

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def end(self, last: bytes = b"", fault: SandboxError | None = None) -> None:
        if not self._ended:
            self._data += last
            self.count += len(last)
            self._ended, self._fault = True, fault
            self._changed.set()


class DaytonaProcess:
    """A live process, as contracts.Process says; `directory` holds its files in the sandbox."""

    def __init__(
        self, box: Box, directory: str, session: str, opener: Open, kill: Callable[[DaytonaProcess], Awaitable[None]]
    ) -> None:
        self.directory = directory
        self.session = session
        self.reattached = 0
        self._box = box
        self._open = opener
        self._kill = kill
        self._window: Window | None = None
        self._out, self._err = _Inlet(), _Inlet()
        self._unsure = bytearray()  # input that nobody has seen arrive
        self._arrived = 0
        self._doomed = False
        self._turn = asyncio.Lock()  # of whoever sends, or changes the window
        self._poke = asyncio.Event()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._watch: asyncio.Task[None] | None = None

    async def attach(self) -> None:
        """Open the first window and begin to watch. Raises: SandboxError."""
        self._window = await self._open(self.directory, 0, self._out.put)
        self._watch = asyncio.create_task(self._see())

    async def _see(self) -> None:
        """Look at the command's files now and then: at its end, its stderr, and whether anything was lost."""
        pause, failed = _FIRST_LOOK_SEC, 0
        behind: tuple[int, float] | None = None
        while not self._ended.done():
            await self._pause(pause)
            try:
                # Of a command that ends while we look, the window closes and the code is not seen yet.
                window = self._window
                closed = window is not None and window.closed.is_set()
                code, arrived, written = await self._look()
                failed = 0
                self._confirm(arrived)
                if code is not None:
                    await self._finish(code)
                    return
                now, seen = time.monotonic(), self._out.count
                if seen >= written or behind is None or behind[0] != seen:
                    behind = (seen, now) if seen < written else None
                overdue = behind is not None and now - behind[1] > _OVERDUE_SEC
                if (closed and window is self._window) or overdue:
                    await self._look_again("the window closed" if not overdue else "output was lost on the way")
                    behind = None
            except DeletedError as error:
                self._fail(error)
                return
            except SandboxError as error:
                failed += 1
                if failed >= _LOOKS_FAILED or isinstance(error, TransportError):
                    self._fail(error)
                    return
            pause = min(pause * _GROWTH, _LOOK_SEC)

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the window closes or somebody is in a hurry."""
        self._poke.clear()
        waiting = [asyncio.ensure_future(self._poke.wait())]
        if self._window is not None and not self._window.closed.is_set():
            waiting.append(asyncio.ensure_future(self._window.closed.wait()))
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _look(self) -> tuple[int | None, int, int]:
        """Return the exit code, None while there is none, and how much input arrived and output was written."""
        # Of stderr that nobody reads no more is brought than there is room for.
        start = _BEYOND if self._err.is_full else self._err.count + 1
        said = await self._box.shell(LOOK, self.directory, str(start))
        line, _, rest = said.partition("\n")
        code, arrived, written = line.split()
        if rest.strip():
            await self._err.put(base64.b64decode("".join(rest.split())))
        return (None if code == "-" else int(code)), int(arrived), int(written)

    def _confirm(self, arrived: int) -> None:
        if arrived > self._arrived:
            del self._unsure[: arrived - self._arrived]
            self._arrived = arrived

    async def _finish(self, code: int | None) -> None:
        """Take what is left of the output, now that no more comes; None: it did not live to tell its code."""
        async with self._turn:
            await self._shut()
            out, err = await self._rest()
        self._out.end(out)
        self._err.end(err)
        if not self._ended.done():
            killed = code is None or (self._doomed and code == _KILLED)
            self._ended.set_result(-signal.SIGKILL if killed or code is None else code)

    async def _rest(self) -> tuple[bytes, bytes]:
        script = 'cd "$1" && tail -c "+$2" out >out.rest && tail -c "+$3" err >err.rest'
        await self._box.shell(script, self.directory, str(self._out.count + 1), str(self._err.count + 1))
        names = [f"{self.directory}/{name}.rest" for name in ("out", "err")]
        found = await self._box.get(names)
        return found.get(names[0], b""), found.get(names[1], b"")

    def _fail(self, error: SandboxError) -> None:
        self._out.end(fault=error)
        self._err.end()
        if not self._ended.done():
            self._ended.set_exception(error)

    async def _look_again(self, why: str) -> None:
        """Open the window anew where the last one broke off; once, and by the same way. Raises: TransportError."""
        async with self._turn:
            if self.reattached:
                raise TransportError(f"the way to the agent broke again after it was attached to once more ({why})")
            self.reattached += 1
            await self._shut()
            _, arrived, _ = await self._look()
            self._confirm(arrived)
            self._window = await self._open(self.directory, self._out.count, self._out.put)
            if self._unsure:
                with contextlib.suppress(OSError):
                    await self._window.send(bytes(self._unsure))

    async def _shut(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            await window.close()

    async def reattach(self) -> bool:
        """Attach once more, as something it said may be lost; False: that was done before. Raises: SandboxError."""
        if self.reattached or self._ended.done():
            return False
        await self._look_again("it was silent")
        return True

    async def write(self, data: bytes) -> None:
        """Write to stdin. Raises: BrokenPipeError when the process is gone."""
        for start in range(0, len(data), _ROOM):
            part = data[start : start + _ROOM]
            async with self._turn:
                if self._ended.done():
                    raise BrokenPipeError("the process is gone")
                self._unsure += part
                if self._window is not None:
                    with contextlib.suppress(OSError):
                        # What does not get through is sent again when the window is opened anew.
                        await self._window.send(part)
            self._poke.set()
            while len(self._unsure) > 4 * _ROOM and not self._ended.done():
                await asyncio.sleep(_FIRST_LOOK_SEC)
                self._poke.set()

    async def close_stdin(self) -> None:
        """Close stdin, when all that was written has arrived."""
        while self._unsure and not self._ended.done():
            self._poke.set()
            await asyncio.sleep(_FIRST_LOOK_SEC)
        if not self._ended.done():
            await self._box.shell('kill "$(cat "$1/feeder")" 2>/dev/null || :', self.directory)
            self._poke.set()

    async def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stdout as soon as there are any; b"" at its end. Raises: SandboxError."""
        return await self._out.get(limit)

    async def read_stderr(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stderr as soon as there are any; b"" at its end."""
        return await self._err.get(limit)

    async def wait(self) -> int:
        """Wait for the end and return the exit code (-9: killed from outside). Raises: SandboxError."""
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        """Kill the process and everything it started; return when they are dead."""
        await asyncio.shield(asyncio.ensure_future(self._kill(self)))

    def doom(self) -> None:
        """Note that we are about to kill it."""
        self._doomed = True

    @property
    def ended(self) -> bool:
        """Tell whether its end is known."""
        return self._ended.done()

    async def ends_within(self, seconds: float) -> bool:
        """Tell whether its end is seen in that time."""
        self._poke.set()
        await asyncio.wait([self._ended], timeout=seconds)
        return self._ended.done()

    async def died(self) -> None:
        """Take note of its death with the phase; what it said last is still in its files."""
        await self._stop_watching()
        if not self._ended.done():
            try:
                await self._finish(None)
            except SandboxError as error:
                self._fail(error)

    async def close(self) -> None:
        """Let go of it on this side; safe to call twice."""
        await self._stop_watching()
        await self._shut()
        self._out.end()
        self._err.end()
        if not self._ended.done():
            self._ended.set_result(-signal.SIGKILL)

    async def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
