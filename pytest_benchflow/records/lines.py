"""Read a JSONL file line by line in one reused buffer: no line is copied to be looked at."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WINDOW = 1 << 20
_BLANK = b" \t\r"


@dataclass(slots=True)
class Line:
    """A line as a stretch of a buffer, the newline left out; valid until the next line is asked for."""

    number: int  # from 1
    buffer: bytearray
    start: int
    end: int
    ended: bool  # a newline came; without one a writer was cut off

    def bytes(self) -> bytes:
        """Return a copy of the line."""
        return bytes(memoryview(self.buffer)[self.start : self.end])


def each_line(path: Path) -> Iterator[Line]:
    """Yield each line that is not blank; only a newline ends a line. Memory: 1 MiB or the longest line.

    Raises: OSError.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        buffer = bytearray(min(_WINDOW, size) + 1)
        number = start = filled = seen = 0
        while True:
            end = buffer.find(b"\n", start + seen, filled)
            if end >= 0:
                number += 1
                if not _is_blank(buffer, start, end):
                    yield Line(number, buffer, start, end, ended=True)
                start, seen = end + 1, 0
                continue
            seen = filled - start
            if filled == len(buffer):
                buffer, start, filled = _make_room(buffer, start, filled, size)
            got = file.readinto(memoryview(buffer)[filled:])
            if not got:
                break
            filled += got
        if filled > start and not _is_blank(buffer, start, filled):
            yield Line(number + 1, buffer, start, filled, ended=False)


def _make_room(buffer: bytearray, start: int, filled: int, size: int) -> tuple[bytearray, int, int]:
    """Move the begun line to the front, in a larger buffer when it fills this one."""
    kept = filled - start
    if start:
        buffer[:kept] = memoryview(buffer)[start:filled].tobytes() if kept < start else buffer[start:filled]
        return buffer, 0, kept
    # A file that holds one huge line is read into a buffer of its size, not of the next power of two.
    wanted = max(size + 1, kept + _WINDOW) if 2 * kept >= size else 2 * kept
    larger = bytearray(wanted)
    larger[:kept] = buffer
    return larger, 0, kept


def _is_blank(buffer: bytearray, start: int, end: int) -> bool:
    return end - start < 64 and not buffer[start:end].strip(_BLANK)
