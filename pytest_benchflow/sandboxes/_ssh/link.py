"""Carry a stream of bytes both ways over connections that may break: what one lost is sent again over the next.

Each side keeps what the other has not said it got. Standard library only: this runs on far machines too.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = struct.Struct(">BI")
_COUNT = struct.Struct(">Q")
_DATA, _GOT = 0, 1
_TELL_EVERY = 1 << 17


class Link:
    """One side; `deliver` gets what came, once and in order. All calls come from one thread."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self.received = 0  # bytes delivered so far
        self._deliver = deliver
        self._told = 0
        self._kept: deque[bytes] = deque()
        self._base = 0  # where in all that was sent the kept part begins
        self._write: Callable[[bytes], None] | None = None
        self._buffer = bytearray()

    @property
    def attached(self) -> bool:
        """Tell whether there is a connection."""
        return self._write is not None

    def send(self, data: bytes) -> None:
        """Send now, or when there is a connection again."""
        self._kept.append(data)
        if self._write is not None:
            self._write(_HEAD.pack(_DATA, len(data)) + data)

    def attach(self, write: Callable[[bytes], None], received: int) -> None:
        """Use a new connection, over which the other side said that it has received so much."""
        self._drop(received)
        self._buffer.clear()
        self._told = self.received
        self._write = write
        for data in self._kept:
            write(_HEAD.pack(_DATA, len(data)) + data)

    def detach(self) -> None:
        """Stop using the connection; safe to call twice."""
        self._write = None

    def take(self, data: bytes) -> None:
        """Take what came over the connection."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._buffer)
            if len(self._buffer) < _HEAD.size + size:
                break
            payload = bytes(self._buffer[_HEAD.size : _HEAD.size + size])
            del self._buffer[: _HEAD.size + size]
            if kind == _GOT:
                self._drop(*_COUNT.unpack(payload))
            else:
                self.received += size
                self._deliver(payload)
        if self.received - self._told >= _TELL_EVERY:
            self.tell()

    def tell(self) -> None:
        """Say how much has come; said from time to time, it also shows that this side lives."""
        if self._write is not None:
            self._told = self.received
            self._write(_HEAD.pack(_GOT, _COUNT.size) + _COUNT.pack(self.received))

    def _drop(self, received: int) -> None:
        while self._kept and self._base < received:
            data = self._kept.popleft()
            got = received - self._base
            if got < len(data):
                self._kept.appendleft(data[got:])
                self._base += got
                return
            self._base += len(data)
