"""Carry many streams of bytes over one: frames of (kind, stream, size) and as many bytes, most significant byte first.

OPEN begins a stream, its bytes say what for; DATA follows as far as the receiver has room for; MORE gives room back;
END says that nothing follows one way; CLOSE ends a stream both ways at once. Whoever begins streams gives them odd
numbers on one side and even ones on the other. Standard library only: this runs on far machines too.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

OPEN, DATA, END, CLOSE, MORE = range(1, 6)
HEAD = struct.Struct(">BII")
WINDOW = 1 << 18
_CHUNK = 1 << 15
_MAX_FRAME = 1 << 28


class Stream:
    """One stream; at most one task reads and one writes at a time."""

    def __init__(self, frames: Frames, number: int) -> None:
        self.number = number
        self._frames = frames
        self._received = bytearray()
        self._credit = WINDOW
        self._ended = False  # nothing comes any more
        self._finished = False  # nothing goes any more
        self._broken: str | None = None
        self._changed = asyncio.Event()  # something came
        self._room = asyncio.Event()

    async def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes as soon as there are any; b"" at the end. Raises: ConnectionResetError."""
        while not self._received:
            if self._broken is not None:
                raise ConnectionResetError(self._broken)
            if self._ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._received[:limit])
        del self._received[:limit]
        if not self._ended and self._broken is None:
            self._frames.put(MORE, self.number, struct.pack(">I", len(data)))
        return data

    async def read_all(self) -> bytes:
        """Return everything up to the end. Raises: ConnectionResetError."""
        found = bytearray()
        while chunk := await self.read():
            found += chunk
        return bytes(found)

    async def write(self, data: bytes) -> None:
        """Send everything, as the receiver makes room. Raises: BrokenPipeError when it takes no more."""
        view = memoryview(data)
        while view:
            if self._broken is not None or self._finished:
                raise BrokenPipeError(self._broken or "the stream was ended")
            if not self._credit:
                self._room.clear()
                await self._room.wait()
                continue
            part = view[: min(self._credit, _CHUNK)]
            self._credit -= len(part)
            self._frames.put(DATA, self.number, bytes(part))
            view = view[len(part) :]

    def end(self) -> None:
        """Say that nothing follows; safe to call twice."""
        if not self._finished and self._broken is None:
            self._finished = True
            self._frames.put(END, self.number)
            self._settle()

    def close(self) -> None:
        """End it both ways; safe to call twice."""
        if self._broken is None and not (self._ended and self._finished):
            self._frames.put(CLOSE, self.number)
            self.fail("the stream was closed")

    @property
    def closed(self) -> bool:
        """Tell whether it ended both ways at once."""
        return self._broken is not None

    def fail(self, why: str) -> None:
        """Wake whoever waits: nothing comes or goes any more."""
        if self._broken is None:
            self._broken = why
        self._frames.forget(self.number)
        self._changed.set()
        self._room.set()

    def take(self, kind: int, payload: bytes) -> None:
        """Take a frame of the other side."""
        if kind == DATA:
            self._received += payload
        elif kind == MORE:
            self._credit += struct.unpack(">I", payload)[0]
            self._room.set()
        elif kind == END:
            self._ended = True
            self._settle()
        elif kind == CLOSE:
            self.fail("the other side closed the stream")
        self._changed.set()

    def _settle(self) -> None:
        if self._ended and self._finished:
            self._frames.forget(self.number)


class Frames:
    """The streams over one pair of pipes. `send` takes bytes without waiting: streams hold back by themselves.

    `accept` gets each stream that the other side begins, with what it is for.
    """

    def __init__(
        self, send: Callable[[bytes], None], accept: Callable[[Stream, bytes], None] | None = None, *, first: int = 1
    ) -> None:
        self._send = send
        self._accept = accept
        self._next = first
        self._streams: dict[int, Stream] = {}
        self._buffer = bytearray()
        self._lost: str | None = None

    def open(self, purpose: bytes = b"") -> Stream:
        """Begin a stream."""
        stream = Stream(self, self._next)
        self._next += 2
        if self._lost is not None:
            stream.fail(self._lost)
            return stream
        self._streams[stream.number] = stream
        self.put(OPEN, stream.number, purpose)
        return stream

    def put(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame."""
        if self._lost is None:
            self._send(HEAD.pack(kind, number, len(payload)) + payload)

    def forget(self, number: int) -> None:
        """Let go of a stream."""
        self._streams.pop(number, None)

    def feed(self, data: bytes) -> None:
        """Take what came. Raises: ConnectionError when it is no frame."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self._buffer, at)
            if not OPEN <= kind <= MORE or size > _MAX_FRAME:
                raise ConnectionError(f"no frame but {bytes(self._buffer[at : at + 60])!r} came")
            if len(self._buffer) - at < HEAD.size + size:
                break
            at += HEAD.size
            payload = bytes(self._buffer[at : at + size])
            at += size
            if kind == OPEN:
                self._begun(number, payload)
            elif (stream := self._streams.get(number)) is not None:
                stream.take(kind, payload)
        del self._buffer[:at]

    def _begun(self, number: int, purpose: bytes) -> None:
        stream = Stream(self, number)
        if self._accept is None:
            self.put(CLOSE, number)
            return
        self._streams[number] = stream
        self._accept(stream, purpose)

    def lose(self, why: str) -> None:
        """End every stream: the pipes are gone."""
        if self._lost is None:
            self._lost = why
        for stream in list(self._streams.values()):
            stream.fail(self._lost)


async def pump(stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry a connection over a stream until it is over both ways, then close both."""

    async def inward() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def outward() -> None:
        while data := await reader.read(_CHUNK):
            await stream.write(data)
        stream.end()

    jobs = [asyncio.ensure_future(inward()), asyncio.ensure_future(outward())]
    try:
        done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_EXCEPTION)
        for job in done:
            job.exception()
    finally:
        for job in jobs:
            job.cancel()
        # Before anything is waited for, as waiting can be cancelled.
        stream.close()
        writer.close()
        await asyncio.gather(*jobs, return_exceptions=True)
        with contextlib.suppress(OSError):
            await writer.wait_closed()
