"""Keep what an agent prints without letting it fill the host's disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG_BYTES = 64 << 20


def in_words(times: int, size: int) -> bytes:
    """Return the note at the end of a text log."""
    del times
    return b"\n[%d bytes left out here]\n" % size


class CappedLog:
    """A log file that keeps its head: what comes after `limit` bytes is counted, and said at its end.

    `note` makes that last line of how often something was left out and of how many bytes it was.
    """

    def __init__(self, path: Path, note: Callable[[int, int], bytes] = in_words, *, limit: int = LOG_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._note = note
        self._room = max(limit - self._file.tell(), 0)
        self._times = 0
        self._size = 0

    @property
    def full(self) -> bool:
        """Tell whether all that comes is left out."""
        return not self._room

    def write(self, data: bytes, *, whole: bool = False) -> None:
        """Write UTF-8 text as far as there is room; `whole` writes all of it or nothing."""
        kept = data
        if len(data) > self._room:
            kept = b"" if whole else data[: self._room].decode("utf-8", "ignore").encode()
            self.leave_out(len(data) - len(kept))
        else:
            self._room -= len(data)
        self._file.write(kept)
        self._file.flush()

    def leave_out(self, size: int) -> None:
        """Count what is not kept; nothing after it is kept either, so that a log never looks whole in between."""
        self._room = 0
        self._times += 1
        self._size += size

    def close(self) -> None:
        """Note what was left out and close the file."""
        if self._times:
            self._file.write(self._note(self._times, self._size))
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
