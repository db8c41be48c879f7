"""Show rollouts under way in lines below pytest's own: what each is doing, and how far all of them are."""

from __future__ import annotations

import threading
from io import StringIO
from typing import TYPE_CHECKING, Any

from pytest_benchflow.report.board import money, span
from pytest_benchflow.report.terminal import head, phase_name
from pytest_benchflow.report.text import NONE, UNKNOWN, count_text, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from pytest_benchflow.records.underway import UnderWay
    from pytest_benchflow.report.board import Board, Seen, Standing
    from pytest_benchflow.report.region import Region
    from pytest_benchflow.settings import Settings

_LOOK_SEC = 0.25
# Of a terminal's lines so many are the view's at most, the rest is pytest's.
_SHARE = 2 / 3
# Below that many there is no room for a rule and for names of columns.
_ROOMY = 8
_LONGEST_TOOL = 24
_LEAST_NAME = 14
# What changes each second moves nothing where there is room.
_WIDE, _STEADY_PHASE = 80, 14
# In this order columns go where there is no room.
_SPARE = ("cost", "tokens", "last tool", "steps")
_NUMBERS = ("steps", "tokens", "cost")
_GAP = 2
_STYLES = {
    "under way": "bold",
    "healthy": "green",
    "unhealthy": "red",
    "last tool": "cyan",
    "cost": "",
}
_PHASE_STYLES = {"agent": "cyan", "verifier": "magenta", "install": "yellow", "sandbox": "yellow"}


class Live:
    """Draws how a board stands into a region, a few times a second, from the first rollout until `close`."""

    def __init__(self, board: Board, region: Region, settings: Settings, *, colour: bool) -> None:
        self._board = board
        self._region = region
        self._settings = settings
        self._colour = colour
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="benchflow-live", daemon=True)
        self.error: Exception | None = None  # what ended the view before its time

    def start(self) -> None:
        """Wait for the first rollout, and show it."""
        self._thread.start()

    def close(self) -> None:
        """Leave the terminal as if nothing had been shown, for good; safe to call twice."""
        self._ended.set()
        self._board.changed.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._region.close()

    def _run(self) -> None:
        self._board.changed.wait()
        try:
            view = View(self._settings, colour=self._colour)
            self._region.open()
            while not self._ended.wait(_LOOK_SEC):
                size = self._region.size
                self._region.show(view.lines(self._board.standing(), size.columns, size.lines))
        except Exception as error:
            self.error = error
            self._region.close()


class View:
    """Renders how rollouts stand."""

    def __init__(self, settings: Settings, *, colour: bool) -> None:
        self._settings = settings
        self._colour = colour

    def lines(self, standing: Standing, columns: int, height: int) -> list[str]:
        """Return lines that have room on a terminal of that size and leave some of it to others; none where all ended.

        Each is at most one column less wide.
        """
        most, width = int(height * _SHARE), columns - 1
        if width < 1 or most < 1 or not (standing.under_way or standing.left):
            return []
        from rich.console import Console
        from rich.rule import Rule

        console = Console(
            file=StringIO(),
            width=width,
            force_terminal=True,
            color_system="auto" if self._colour else None,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
        )
        roomy = most >= _ROOMY
        above: list[Any] = [Rule(style="dim")] if roomy else []
        above += self._status(standing, console, len_most=2 if roomy else 1)
        room = most - len(above)
        shown: Sequence[Seen] = standing.under_way
        if len(shown) + roomy > room:
            shown = shown[: max(0, room - 1 - roomy)]
        more = len(standing.under_way) - len(shown)
        # A line keeps its place, or nobody could follow it.
        shown = sorted(shown, key=lambda seen: seen.begun)
        with console.capture() as captured:
            for part in above:
                console.print(part, no_wrap=True, overflow="ellipsis", crop=True)
            if shown:
                console.print(self._table(shown, standing.at, width, named=roomy))
            if more and room:
                console.print(f"and {more} more", style="dim", no_wrap=True, overflow="ellipsis")
        return captured.get().splitlines()[:most]

    def _status(self, standing: Standing, console: Console, *, len_most: int) -> list[Text]:
        """Return the counters in as many lines as they need, at most `len_most`."""
        from rich.text import Text

        lines = [Text()]
        for about, text in standing.parts:
            part = Text(text, style=_STYLES.get(about, ""))
            gap = Text(" · ", style="dim") if lines[-1] else Text()
            if lines[-1] and lines[-1].cell_len + gap.cell_len + part.cell_len > console.width:
                lines.append(part)
            else:
                lines[-1].append_text(gap).append_text(part)
        return lines[:len_most]

    def _table(self, shown: Sequence[Seen], at: float, width: int, *, named: bool) -> Any:
        """Return a line for each rollout, without columns that say nothing or have no room."""
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        rows = [self._cells(seen, at) for seen in shown]
        names = [name for name in rows[0] if name == "rollout" or any(row[name] != NONE for row in rows)]
        widths = {name: max(cell_len(row[name]) for row in (*rows, {name: name if named else ""})) for name in names}
        widths["phase"] = max(widths["phase"], _STEADY_PHASE if width >= _WIDE else 0)
        for spare in _SPARE:
            needed = sum(widths[name] + _GAP for name in names if name != "rollout") + _LEAST_NAME
            if needed > width and spare in names:
                names.remove(spare)
        others = sum(widths[name] + _GAP for name in names if name != "rollout")
        widths["rollout"] = max(1, min(widths["rollout"], width - others))
        table = Table.grid(padding=(0, _GAP, 0, 0))
        for name in names:
            right = name in _NUMBERS
            table.add_column(justify="right" if right else "left", width=widths[name], no_wrap=True)
        if named:
            table.add_row(*(Text(name, style="dim", overflow="ellipsis") for name in names))
        for row in rows:
            table.add_row(*(Text(row[name], style=_style(name, row[name]), overflow="ellipsis") for name in names))
        return table

    def _cells(self, seen: Seen, at: float) -> dict[str, str]:
        rollout = seen.rollout
        step = f"{one_line(rollout.step, limit=_LONGEST_TOOL)}: " if rollout.step else ""
        return {
            "rollout": name_of(self._settings, rollout),
            "phase": f"{step}{phase_name(rollout.phase)} {span(max(0.0, at - seen.phase_begun))}",
            "steps": str(rollout.exchanges) if rollout.calls_model else NONE,
            "tokens": _tokens(rollout),
            "cost": money([rollout]) or NONE,
            "last tool": _short(rollout.tool) if rollout.tool else NONE,
        }


def name_of(settings: Settings, rollout: UnderWay) -> str:
    """Name a rollout as its line does."""
    return head(
        settings,
        task=rollout.task,
        agent=rollout.agent,
        model=rollout.model,
        skills=rollout.skills,
        trial=rollout.trial,
    )


def _tokens(rollout: UnderWay) -> str:
    if not rollout.calls_model or not (rollout.tokens or rollout.untold):
        return NONE
    if not rollout.untold:
        return count_text(rollout.tokens)
    return f"{count_text(rollout.tokens)} + {UNKNOWN}" if rollout.tokens else UNKNOWN


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LONGEST_TOOL else f"{line[: _LONGEST_TOOL - 1]}…"


def _style(name: str, text: str) -> str:
    if text == NONE:
        return "dim"
    if name == "phase":
        return next((style for word, style in _PHASE_STYLES.items() if word in text.rpartition(": ")[2]), "")
    return _STYLES.get(name, "")
