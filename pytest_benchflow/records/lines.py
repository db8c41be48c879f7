"""Read a JSONL file line by line without a copy of each line: a line is a stretch of what was read in one go."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WINDOW = 1 << 20
_LARGE = 1 << 24
_BLANK = b" \t\r"


@dataclass(slots=True)
class Line:
    """A line, the newline left out."""

    number: int  # from 1
    buffer: bytes
    start: int
    end: int
    ended: bool  # a newline came; without one a writer was cut off

    def bytes(self) -> bytes:
        """Return a copy of the line."""
        return self.buffer[self.start : self.end]


def each_line(path: Path) -> Iterator[Line]:
    """Yield each line that is not blank; only a newline ends a line. Memory: 4 MiB, or twice the longest line.

    A line is there until the next is asked for. A file of one huge line takes the memory of that line. Raises: OSError.
    """
    with path.open("rb", buffering=0) as file:
        number = offset = 0
        total = os.fstat(file.fileno()).st_size
        size = total + 1 if total < 4 * _WINDOW else _WINDOW
        line = Line(0, b"", 0, 0, ended=True)
        while True:
            # What is left of a window is read again at the beginning of the next, so that each line lies in one.
            data = _read(file.fileno(), size, offset)
            start = 0
            while (end := data.find(b"\n", start)) >= 0:
                number += 1
                if not _is_blank(data, start, end):
                    line = Line(number, data, start, end, ended=True)
                    yield line
                start = end + 1
            if len(data) < size:
                break
            offset += start
            if 2 * start < size:
                size = min(size * (2 if size < _LARGE else 8), max(size, os.fstat(file.fileno()).st_size - offset + 1))
            # Whoever got the last line still holds it, and a window must not outlive the next.
            line.buffer = data = b""
        if not _is_blank(data, start, len(data)):
            yield Line(number + 1, data, start, len(data), ended=False)


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Return `size` bytes of a file, less only at its end."""
    data = os.pread(descriptor, size, offset)
    # One call reads 2 GiB at most.
    while 0 < len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def _is_blank(data: bytes, start: int, end: int) -> bool:
    return end - start < 64 and not data[start:end].strip(_BLANK)
