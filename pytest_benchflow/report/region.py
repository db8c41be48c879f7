"""Keep lines below what a program writes to its terminal, which never knows of them.

The cursor is always where the program has left it. Before it writes, what is below its line is erased; after it has,
the lines are drawn again, and the terminal itself brings the cursor back.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Index (down, scrolling where there is no room), up by n, save and restore the cursor.
_INDEX, _UP, _SAVE, _RESTORE = "\x1bD", "\x1b[{}A", "\x1b7", "\x1b8"
_TO_LINE_END, _TO_SCREEN_END = "\x1b[K", "\x1b[J"
# Terminals that know it show what is between at once; others ignore it.
_HOLD, _SHOW = "\x1b[?2026h", "\x1b[?2026l"
# There is a line below for sure after the index; without it the program's own would be erased at the bottom.
_ERASE_BELOW = f"{_INDEX}{_UP.format(1)}{_SAVE}\x1b[B\r{_TO_SCREEN_END}{_RESTORE}"
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LINES_OF_THE_PROGRAM = 2


class Region:
    """Lines below what is written to `files`, which are all one terminal; `descriptor` is another way to that.

    The region closes the descriptor. While it is open, the files' `write` is its own: under a lock, as the lines may
    be changed in another thread.
    """

    def __init__(self, files: Sequence[TextIO], descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._lock = threading.RLock()
        self._open = False
        self._lines: list[str] = []  # that are to be seen
        self._drawn = False
        self._size = os.terminal_size((0, 0))
        self._line = ""  # the program's own, as far as it is written
        self._returned = False  # it may go on behind the cursor
        self._at_edge = False  # it fills the terminal's width, and the terminal has forgotten that

    @property
    def size(self) -> os.terminal_size:
        """Return columns and lines of the terminal, 0 where it tells none."""
        try:
            return os.get_terminal_size(self._descriptor)
        except OSError:
            return os.terminal_size((0, 0))

    def open(self) -> None:
        """Come before what is written from now on."""
        with self._lock:
            self._open = True
            for file in self._files:
                vars(file)["write"] = partial(self._write, file, file.write)

    def show(self, lines: Sequence[str]) -> None:
        """Show these lines, each at most a column less wide than the terminal; those that have no room are cut."""
        with self._lock:
            size = self.size
            if not self._open or (list(lines) == self._lines and size == self._size):
                return
            erases = self._drawn and (size != self._size or not lines)
            self._lines, self._size = list(lines), size
            self._send(_HOLD + (self._erasing() if erases else "") + self._drawing() + _SHOW)

    def close(self) -> None:
        """Erase the lines and let the files be as they were, for good; safe to call twice."""
        with self._lock:
            if not self._open:
                return
            self._lines = []
            if self._drawn:
                self._send(self._erasing())
            self._open = self._drawn = False
            for file in self._files:
                vars(file).pop("write", None)
            with suppress(OSError):  # what was written last did not reach a terminal that is gone
                os.close(self._descriptor)

    def _write(self, file: TextIO, usual: Callable[[str], int], text: str) -> int:
        """Write a program's text as `usual` does, with the lines out of its way."""
        with self._lock:
            if self._drawn or self._at_edge:
                # What cannot be encoded is refused before anything is moved.
                text.encode(file.encoding, file.errors or "strict")
                wraps = self._at_edge and _CONTROLS.sub("", text)[:1] not in ("", "\n", "\r")
                self._send((_HOLD + self._erasing() if self._drawn else "") + ("\r\n" if wraps else ""))
            try:
                written = usual(text)
                if self._lines:
                    file.flush()
            finally:
                self._follow(text)
                if self._lines:
                    self._send(self._drawing() + _SHOW)
            return written

    def _follow(self, text: str) -> None:
        """Keep what the program's line holds."""
        last = max(text.rfind("\n"), text.rfind("\r"))
        self._returned = text[last] == "\r" if last >= 0 else self._returned
        self._line = text[last + 1 :] if last >= 0 else self._line + text
        self._at_edge = self._at_edge and not _CONTROLS.sub("", text)

    def _erasing(self) -> str:
        """Return what erases the lines, also the one that the cursor is on since somebody pressed Enter."""
        return self._behind() + _ERASE_BELOW

    def _behind(self) -> str:
        """Return what erases what is behind the cursor, where that is none of the program's."""
        return "" if self._at_edge or self._returned else _TO_LINE_END

    def _drawing(self) -> str:
        """Return what draws the lines below the cursor and leaves it where it is."""
        from rich.cells import cell_len

        self._size = self.size
        lines = self._lines[: max(0, self._size.lines - _LINES_OF_THE_PROGRAM)]
        self._drawn = bool(lines)
        if not lines:
            return ""
        # The terminal forgets by moves that its cursor waits behind the last column.
        width = cell_len(_CONTROLS.sub("", self._line))
        self._at_edge = width > 0 and width % self._size.columns == 0
        room = self._behind() + _INDEX * len(lines) + _UP.format(len(lines))
        return room + _SAVE + "".join(f"\r\n{line}{_TO_LINE_END}" for line in lines) + _TO_SCREEN_END + _RESTORE

    def _send(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        with suppress(OSError):  # a terminal that is gone shows nothing
            while data:
                data = data[os.write(self._descriptor, data) :]
