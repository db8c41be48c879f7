"""Write what rollouts came to as Markdown, for places that show it, such as the summary of a CI job."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.report.summary import cost_lines, evidence_line
from pytest_benchflow.report.table import table
from pytest_benchflow.report.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_benchflow.report.summary import Summary

_UNBOUNDED = 1_000_000
_CELL = 200
_MESSAGE = 400
_LEFT_OUT = ("directory",)
_NUMBERS = ("trial", "reward", "steps", "tokens", "cost", "time")
# What a reader wants to see first.
_ORDER = ("unhealthy", "timeout", "unsolved", "solved")
# Everything of ASCII that may be markup becomes a character reference, which never is.
_MARKUP = re.compile(r"[^\w\s.,%/+()-]|_|(?<=www)\.", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Told:
    """A rollout with the findings of its checks, as result.json holds them; `file` is the task's, None: unknown."""

    summary: Summary
    findings: Sequence[dict[str, Any]] = field(default_factory=tuple)
    file: str | None = None


def escaped(text: object, *, limit: int | None = None) -> str:
    """Return text as one line of Markdown that shows it as it is: no markup, no HTML, no end of a table's cell."""
    return _MARKUP.sub(_reference, one_line(text, limit=limit))


def _reference(found: re.Match[str]) -> str:
    character = found.group()
    if character == "@":
        # GitHub makes links of addresses and mentions after it has read references; not across a comment.
        return "&#64;<!-- -->"
    return f"&#{ord(character)};" if character.isascii() else character


def document(told: Sequence[Told], room: int, *, notes: Sequence[str] = ()) -> str:
    """Return a table of the rollouts and their findings; what has no room is counted. `room` is in bytes of UTF-8.

    Empty where there is no room for the first lines.
    """
    summaries = [each.summary for each in told]
    head = ["### Agent benchmark", "", escaped(evidence_line(summaries)), ""]
    head += [f"- {escaped(line)}" for line in (*cost_lines(summaries), *notes)]
    text = _Bounded(room)
    if not text.add([*head, ""]):
        return ""
    findings = list(_findings(told))
    # A quarter is kept for what rollouts suffered from: without it a long table says only that they did.
    text.add_rows(list(_rows(told)), "rollouts", spare=room // 4 if findings else 0)
    if findings:
        text.add_rows(
            [["", "| finding | check | rollouts | what it says |", "|---|---|--:|---|"], *findings], "findings"
        )
    return text.whole()


def grouped_findings(told: Sequence[Told]) -> list[tuple[dict[str, Any], Told, int]]:
    """Return each different finding once, errors first, with the first rollout that has it and how many do."""
    counts: Counter[tuple[str, str, str]] = Counter()
    first: dict[tuple[str, str, str], tuple[dict[str, Any], Told]] = {}
    for each in told:
        for finding in each.findings:
            key = (str(finding.get("severity")), str(finding.get("check")), str(finding.get("message")))
            counts[key] += 1
            first.setdefault(key, (finding, each))
    order = sorted(first, key=lambda key: key[0] != "error")
    return [(*first[key], counts[key]) for key in order]


class _Bounded:
    """Lines of text that together stay below a number of bytes, the last line that says what is left out too."""

    _REST = 120

    def __init__(self, room: int) -> None:
        self._left = room - self._REST
        self._lines: list[str] = []

    def add(self, lines: Sequence[str], *, spare: int = 0) -> bool:
        size = sum(len(line.encode(errors="replace")) + 1 for line in lines)
        if size > self._left - spare:
            return False
        self._left -= size
        self._lines += lines
        return True

    def add_rows(self, rows: Sequence[list[str]], what: str, *, spare: int = 0) -> None:
        """Add rows, the head first, as far as there is room but for `spare`; what follows is counted."""
        for number, row in enumerate(rows):
            if not self.add(row, spare=spare):
                self._lines += ["", f"More {what}, which have no room here: {len(rows) - max(1, number):,}."]
                return

    def whole(self) -> str:
        return "\n".join(self._lines) + "\n"


def _rows(told: Sequence[Told]) -> Iterator[list[str]]:
    """Yield the lines of the table, the head first."""
    ordered = sorted((each.summary for each in told), key=lambda each: (_place(each), each.directory))
    padded = table(ordered, _UNBOUNDED)
    names = [name for name in padded[0] if name not in _LEFT_OUT]
    yield [_line(names), _line("--:" if name in _NUMBERS else "---" for name in names)]
    for row in padded[1:]:
        yield [_line(escaped(row[name].strip(), limit=_CELL) for name in names)]


def _place(summary: Summary) -> int:
    return _ORDER.index(summary.outcome) if summary.outcome in _ORDER else 0


def _findings(told: Sequence[Told]) -> Iterator[list[str]]:
    for finding, _first, count in grouped_findings(told):
        severity, check, message = (finding.get(key) for key in ("severity", "check", "message"))
        yield [_line((escaped(severity, limit=_CELL), escaped(check, limit=_CELL), f"{count:,}",
                      escaped(message, limit=_MESSAGE)))]  # fmt: skip


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
