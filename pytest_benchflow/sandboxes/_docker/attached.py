"""Speak with one command in a container: Docker's attached stream, taken apart into its stdout and stderr."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._docker.dial import open_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytest_benchflow.sandboxes._docker.dial import ByteReader, ByteWriter
    from pytest_benchflow.sandboxes._docker.engine import Engine

_HOLD_BYTES = 4 << 20
_FIRST_LOOK_SEC = 0.2
_LOOK_SEC = 1.0
_SETTLE_SEC = 0.01
_REFUSAL_SEC = 5.0
_LOST_SEC = 5.0
_KILLED_BY = 128
# Said on stderr by what starts a command: what ends without it was cut off.
END_OF_OUTPUT = "\0end of output\0"
_KILLED = 128 + signal.SIGKILL


class _Channel:
    """Bytes of one of the two outputs, on their way to a reader that may be slow."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False
        self._changed = asyncio.Event()

    async def put(self, chunk: bytes) -> None:
        while len(self._data) > _HOLD_BYTES and not self._ended:
            await self._wait()
        self._data += chunk
        self._changed.set()

    def add(self, chunk: bytes) -> None:
        self._data += chunk

    async def get(self, limit: int) -> bytes:
        while not self._data and not self._ended:
            await self._wait()
        chunk = bytes(self._data[:limit])
        del self._data[:limit]
        self._changed.set()
        return chunk

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def end(self) -> None:
        self._ended = True
        self._changed.set()


class DockerProcess:
    """A live process in a container, as contracts.Process says."""

    def __init__(
        self,
        engine: Engine,
        exec_id: str,
        run: str,
        stream: tuple[ByteReader, ByteWriter],
        kill: Callable[[DockerProcess], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._id = exec_id
        self.run = run  # the mark of all it starts
        self._reader, self._writer = stream
        self._kill = kill
        self._whole = False  # whether its output came to its end
        self._doomed = False
        self._out, self._err = _Channel(), _Channel()
        self._pump = asyncio.create_task(self._take_apart())
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._watch = asyncio.create_task(self._see_end())

    async def _take_apart(self) -> None:
        """Read frames: one byte says which output, four say how long (big-endian)."""
        held = b""
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    head = await self._reader.readexactly(8)
                    left = int.from_bytes(head[4:], "big")
                    channel = self._err if head[0] == 2 else self._out
                    while left:
                        chunk = await self._reader.read(min(left, 1 << 16))
                        if not chunk:
                            return
                        left -= len(chunk)
                        if channel is self._err:
                            chunk, held = _hold_back(held + chunk)
                        await channel.put(chunk)
        finally:
            self._whole = held == END_OF_OUTPUT.encode()
            self._err.add(b"" if self._whole else held)
            self._out.end()
            self._err.end()

    async def _see_end(self) -> None:
        """Ask for the exit code when the stream ends, and now and then: a background process may hold it open."""
        pause = _FIRST_LOOK_SEC
        while not self._ended.done():
            if self._pump.done():
                await asyncio.sleep(_SETTLE_SEC)
            else:
                await asyncio.wait([self._pump], timeout=pause)
            pause = min(pause * 2, _LOOK_SEC)
            try:
                state = await self._engine.call("exec_inspect", self._id)
            except (FileNotFoundError, SandboxError):
                self.died()
                return
            code = state["ExitCode"]
            if not state["Running"] and code is not None and not self._ended.done():
                # A shell's own 137 is its exit code; ours is a signal.
                self._ended.set_result(-signal.SIGKILL if self._doomed and code == _KILLED else int(code))

    async def _see_why_silent(self) -> None:
        """See that output ended because the command did. Raises: SandboxError when the way to it was cut."""
        if not self._doomed and not await self.ends_within(_LOST_SEC):
            raise SandboxError(self._lost())
        self.check_whole()

    def check_whole(self) -> None:
        """See that nothing of the output was lost on the way. Raises: SandboxError."""
        if self._doomed or not self._pump.done() or self._pump.cancelled() or self._whole or not self._ended.done():
            return
        # One that was killed could not say that it ended.
        if 0 <= self._ended.result() < _KILLED_BY:
            raise SandboxError(self._lost())

    def _lost(self) -> str:
        return (
            f"the connection to a running command was lost: the Docker engine at {self._engine.name}, or the way "
            "there, broke it off"
        )

    def doom(self) -> None:
        """Note that we are about to kill it."""
        self._doomed = True

    @property
    def ended(self) -> bool:
        """Tell whether its end is known."""
        return self._ended.done()

    def died(self) -> None:
        """Note that it is dead and will not tell its exit code."""
        if not self._ended.done():
            self._ended.set_result(-signal.SIGKILL)

    async def ends_within(self, seconds: float) -> bool:
        """Tell whether its end is seen in that time."""
        await asyncio.wait([self._ended], timeout=seconds)
        return self._ended.done()

    async def write(self, data: bytes) -> None:
        """Write to stdin and drain. Raises: BrokenPipeError when the process is gone."""
        if self._ended.done() or self._writer.is_closing():
            raise BrokenPipeError("the process is gone")
        try:
            self._writer.write(data)
            draining = asyncio.ensure_future(self._writer.drain())
            first: list[asyncio.Future[Any]] = [draining, self._ended]
            try:
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            finally:
                draining.cancel()
                await asyncio.gather(draining, return_exceptions=True)
        except OSError as error:
            raise BrokenPipeError("the process is gone") from error
        if draining.cancelled() or draining.exception() is not None:
            raise BrokenPipeError("the process is gone")

    async def close_stdin(self) -> None:
        """Close stdin."""
        with contextlib.suppress(OSError, RuntimeError):
            if not self._writer.is_closing():
                self._writer.write_eof()

    async def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stdout as soon as there are any; b"" at its end."""
        data = await self._out.get(limit)
        if not data:
            await self._see_why_silent()
        return data

    async def read_stderr(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stderr as soon as there are any; b"" at its end."""
        return await self._err.get(limit)

    async def wait(self) -> int:
        """Wait for the end and return the exit code (-9: killed from outside)."""
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        """Kill the process and everything it started; return when they are dead."""
        await asyncio.shield(asyncio.ensure_future(self._kill(self)))

    def close(self) -> None:
        """Let go of its streams; safe to call twice."""
        self._pump.cancel()
        self._watch.cancel()
        self._out.end()
        self._err.end()
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Wait until nothing of it is left on this side; call `close` first."""
        await asyncio.gather(self._pump, self._watch, return_exceptions=True)
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def attach(engine: Engine, exec_id: str) -> tuple[ByteReader, ByteWriter]:
    """Start an exec and return its stream. Raises: SandboxError with the engine's reason."""
    try:
        reader, writer = await open_stream(engine.address)
    except OSError as error:
        raise SandboxError(f"the Docker engine at {engine.name} is gone: {error.strerror or error}") from error
    try:
        body = b'{"Detach":false,"Tty":false}'
        head = (
            f"POST /v{engine.api.api_version}/exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode(errors="replace")
        refused = answer.split(" ")[1] not in ("101", "200")
        said = await asyncio.wait_for(reader.read(4096), _REFUSAL_SEC) if refused else b""
    except (OSError, asyncio.IncompleteReadError, TimeoutError, IndexError) as error:
        writer.transport.abort()
        raise SandboxError(f"the Docker engine did not answer: {error}") from error
    except BaseException:
        writer.transport.abort()
        raise
    if refused:
        writer.transport.abort()
        raise SandboxError(f"the command could not be started: {_message(said)}")
    return reader, writer


def _hold_back(data: bytes) -> tuple[bytes, bytes]:
    """Return what can be passed on, and what may be the beginning of the end."""
    end = END_OF_OUTPUT.encode()
    for size in range(min(len(end), len(data)), 0, -1):
        if data.endswith(end[:size]):
            return data[:-size], data[-size:]
    return data, b""


def _message(said: bytes) -> str:
    text = said.decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(text[text.index("{") : text.rindex("}") + 1])["message"])
    return text.strip()[:300]
