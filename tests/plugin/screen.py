"""Run a command on a terminal and read what its screen shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING

import pyte

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

_LIMIT_SEC = 120.0


class Terminal:
    """A command on a terminal of its own, which an emulator draws; a context manager that ends it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        columns: int = 80,
        lines: int = 24,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=5000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._end, theirs = pty.openpty()
        self.resize(columns, lines)
        left_out = ("CI", "BUILD_NUMBER", "COLUMNS", "LINES", "PYTEST_ADDOPTS", "NO_COLOR")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**environment, "TERM": "xterm-256color", **(env or {})},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - it only makes a system call
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._end)

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size."""
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self._end, keys)

    def read(self, seconds: float = 0.05) -> bool:
        """Draw what comes within that time; False: the command has ended."""
        ready, _, _ = select.select([self._end], [], [], seconds)
        try:
            data = os.read(self._end, 65536) if ready else None
        except OSError:  # nobody has the other end any more
            return False
        if data:
            self.raw += data
            self._stream.feed(data)
        return data != b""

    def until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Return the lines of the screen as soon as they fulfil the condition."""
        end = time.monotonic() + _LIMIT_SEC
        while not condition(self.lines):
            alive = self.read()
            assert alive or condition(self.lines), "\n".join(["it ended, and its screen was:", *self.everything])
            assert time.monotonic() < end, "\n".join(["the screen stays:", *self.everything])
        return self.lines

    def wait(self) -> int:
        """Draw all that comes until the command has ended, and return its exit code."""
        end = time.monotonic() + _LIMIT_SEC
        while self.read():
            assert time.monotonic() < end, "\n".join(["it does not end:", *self.everything])
        return self.process.wait(timeout=_LIMIT_SEC)

    @property
    def lines(self) -> list[str]:
        """Return the lines of the screen."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def everything(self) -> list[str]:
        """Return the lines that have left the screen at its top and those that are on it, without empty ones below."""
        above = [
            "".join(line[column].data for column in range(self.screen.columns)).rstrip()
            for line in self.screen.history.top
        ]
        return "\n".join([*above, *self.lines]).rstrip().split("\n")
