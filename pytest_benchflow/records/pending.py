"""Keep the requests that have begun in a file that is written over, as new pages of a file cost more than the text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_benchflow.records.files import open_plain

if TYPE_CHECKING:
    from pathlib import Path

# A line that begins with it holds no request any more, or none yet: it is no JSON.
VOID = b"~"


class Pending:
    """A JSONL file whose lines count until the next `empty`; each is whole, or void, at any moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._size = 0
        self._starts: list[int] = []  # of the lines that count
        self._end = 0  # of the last one

    def append_line(self, *parts: bytes) -> None:
        """Write one line that is a JSON object without a newline, in parts. Raises: OSError, with nothing written."""
        fd = self._opened()
        text = (VOID, parts[0][1:], *parts[1:], b"\n")
        start, end = self._end, self._end + sum(map(len, text))
        try:
            if start < self._size:
                os.pwrite(fd, VOID, start)  # nothing that counts is half an old line
            written = os.pwritev(fd, text, start)
            rest = memoryview(b"".join(text))[written:] if start + written < end else memoryview(b"")
            while rest:
                written = os.pwrite(fd, rest, end - len(rest))
                rest = rest[written:]
            if end < self._size:
                os.ftruncate(fd, end)
            os.pwrite(fd, parts[0][:1], start)
        except OSError:
            os.ftruncate(fd, start)
            self._size = start
            raise
        self._starts.append(start)
        self._end = self._size = end

    def empty(self) -> None:
        """Let no line count any more. Raises: OSError."""
        if self._fd is not None and len(self._starts) == 1:
            os.pwrite(self._fd, VOID, self._starts[0])
        elif self._fd is not None and self._starts:
            os.ftruncate(self._fd, self._starts[0])
            self._size = self._starts[0]
        self._end = self._starts[0] if self._starts else self._end
        self._starts.clear()

    def close(self) -> None:
        """Close the file; a later line opens it again, and stands after what it holds."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _opened(self) -> int:
        if self._fd is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = open_plain(self.path, os.O_WRONLY | os.O_CREAT)
            self._end = self._size = os.fstat(self._fd).st_size
            self._starts.clear()
        return self._fd
