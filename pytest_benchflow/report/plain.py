"""Tell of rollouts under way in whole lines, where nothing can be drawn: as each begins and ends, and how all stand."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_benchflow.report.live import name_of
from pytest_benchflow.report.summary import OUTCOMES
from pytest_benchflow.report.text import UNKNOWN, one_line, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchflow.records.underway import UnderWay
    from pytest_benchflow.report.board import Board
    from pytest_benchflow.settings import Settings

_LOOK_SEC = 0.25
_EACH_SEC = 60.0


class Plain:
    """Calls `write` with lines as a board changes, until `close`; never while somebody else holds the `pen`."""

    def __init__(
        self,
        board: Board,
        settings: Settings,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pen = threading.RLock()
        self._board = board
        self._settings = settings
        self._write = write
        self._clock = clock
        self._summed_up = clock()
        self._paused = threading.Event()
        self._thread = threading.Thread(target=self._run, name="benchflow-plain", daemon=True)

    def start(self) -> None:
        """Tell from now on."""
        self._thread.start()

    def pause(self) -> None:
        """Tell nothing more until the end."""
        self._paused.set()
        self._board.changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Tell what is left to tell; safe to call twice."""
        self.pause()
        self.tell()

    def tell(self) -> None:
        """Write what has come."""
        with self.pen:
            while self._board.news:
                self._say(self._line(self._board.news.popleft()))

    def sum_up(self) -> None:
        """Say how all stand, once a minute, while any is under way."""
        now = self._clock()
        if now - self._summed_up < _EACH_SEC:
            return
        self._summed_up = now
        standing = self._board.standing()
        if standing.under_way:
            with self.pen:
                self._say(f"benchflow: {standing}")

    def _say(self, line: str) -> None:
        with suppress(OSError):  # a terminal that is gone shows nothing
            self._write(line)

    def _run(self) -> None:
        self._board.changed.wait()
        self._summed_up = self._clock()
        while not self._paused.is_set():
            self.tell()
            self.sum_up()
            self._paused.wait(_LOOK_SEC)

    def _line(self, rollout: UnderWay) -> str:
        name = name_of(self._settings, rollout)
        if not rollout.ended:
            return f"benchflow: begun: {name}"
        word = OUTCOMES.get(rollout.verdict or "", rollout.verdict or UNKNOWN)
        why = f" ({one_line(rollout.category)})" if rollout.category else ""
        return f"benchflow: ended: {name}: {word}{why}  {seconds_text(rollout.seconds)}"


def write_whole(terminal: Any, file: Any, interject: Callable[[str], None], text: str) -> None:
    """Write a line of its own into what pytest writes, past its capture, by another `file` that leads there."""
    writer = terminal._tw  # pytest offers no public way past its capture that leaves the state of its line right
    usual = writer._file
    usual.flush()
    writer._file = file
    try:
        interject(text)
        file.flush()
    finally:
        writer._file = usual
