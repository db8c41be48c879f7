"""Lay out rollouts as a table that fits the terminal; what has no room is left out, and stays in result.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.report.text import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_benchflow.report.summary import Summary

COLUMNS = (
    *("task", "agent", "model", "skills", "trial"),
    *("verdict", "reward", "steps", "tokens", "cost", "time", "directory"),
)
# Columns that go when they tell no rows apart, those that go when nothing in them says anything, and those that go
# first where there is no room.
_TELL_APART = ("skills", "trial")
_MAY_BE_EMPTY = ("model", "steps", "tokens", "cost")
_SPARE = ("directory", "cost", "steps", "tokens", "model")
_GAP = "  "
_LEAST = 12


def table(summaries: Sequence[Summary], width: int) -> list[dict[str, str]]:
    """Return the rows, the head first, as padded cells by column; together with gaps of two at most `width` wide."""
    rows = [dict(zip(COLUMNS, COLUMNS, strict=True)), *(summary.cells() for summary in summaries)]
    for row, task in zip(rows[1:], short_names([row["task"] for row in rows[1:]]), strict=True):
        row["task"] = task
    for name in _TELL_APART:
        if len({row[name] for row in rows[1:]}) == 1:
            _drop(rows, name)
    for name in _MAY_BE_EMPTY:
        if all(row[name] == NONE for row in rows[1:]):
            _drop(rows, name)
    for name in _SPARE:
        if name in rows[0] and _width(rows) > width:
            _drop(rows, name)
    longest = max(_LEAST, _longest(rows, "task") - max(0, _width(rows) - width))
    for row in rows:
        row["task"] = row["task"] if len(row["task"]) <= longest else row["task"][: longest - 1] + "…"
    widths = {name: _longest(rows, name) for name in rows[0]}
    last = list(widths)[-1]
    # The last column is not padded, so that paths can be copied.
    return [{name: cell if name == last else cell.ljust(widths[name]) for name, cell in row.items()} for row in rows]


def line(row: dict[str, str]) -> str:
    """Return a row as text."""
    return _GAP.join(row.values())


def short_names(names: Sequence[str]) -> list[str]:
    """Return task names without the organisation before the slash, where that leaves them different."""
    short = [name.rpartition("/")[2] for name in names]
    return short if len(set(short)) == len(set(names)) else list(names)


def wrapped(text: str, width: int) -> list[str]:
    """Break a line between the parts that " · " separates, where it would be wider than `width`."""
    lines: list[str] = []
    for part in text.split(" · "):
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part if not lines else f"  {part}")
    return lines


def _drop(rows: list[dict[str, str]], name: str) -> None:
    for row in rows:
        del row[name]


def _longest(rows: list[dict[str, str]], name: str) -> int:
    return max(len(row[name]) for row in rows)


def _width(rows: list[dict[str, str]]) -> int:
    return sum(_longest(rows, name) for name in rows[0]) + len(_GAP) * (len(rows[0]) - 1)
