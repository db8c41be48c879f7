"""What the worker and the processes of a session say to each other, and the names in the directory they meet in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.jsontext import dumps, loads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import StreamReader

CALLS, LEASES, LOCK, LOG = "calls", "leases", "lock", "log"
READY = b"+"
NOTE, DATA = b"N", b"D"  # JSON about the answer; a piece of its body
_HEAD = 5


def frame(kind: bytes, value: Any) -> bytes:
    """Return one frame: its kind, its length in four bytes, and bytes or JSON."""
    raw = value if isinstance(value, bytes) else dumps(value)
    return kind + len(raw).to_bytes(4, "big") + raw


async def frames(content: StreamReader) -> AsyncIterator[tuple[bytes, Any]]:
    """Yield the frames of an answer. Raises: asyncio.IncompleteReadError where it breaks off within one."""
    while True:
        try:
            head = await content.readexactly(_HEAD)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return
        raw = await content.readexactly(int.from_bytes(head[1:], "big"))
        yield head[:1], loads(raw) if head[:1] == NOTE else raw
