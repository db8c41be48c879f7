"""Parse a trainer row: its steps' prompts repeat each other, and its completion is what they come to hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.fold import AFTER_ELEMENT, SPACE, Folder, Span
from pytest_benchflow.records.jsontext import strict
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.records.lines import Line

_PROMPT, _COMPLETION = "prompt", "completion"
_COMMA = b","
# The completion stands right after the prompt, or is read as it comes.
_NEAR = 64
_HEAD = 256


class RowFolder(Folder):
    """Parse rows of results.jsonl; equal messages of prompts and of the row's completion are the same objects."""

    def __init__(self) -> None:
        super().__init__((_PROMPT, _COMPLETION), _prompted)
        # How a step's prompt opens, which the row's own one does in another way.
        self._in_steps: bytes | None = None

    def _spans(self, line: Line) -> list[Span]:
        self._before.pop(_PROMPT, None)
        opening = self._opening(_PROMPT, line, line.start)
        if opening is None:
            return []
        spans = [self._array(_PROMPT, line, opening)]
        region = self._region(line, spans[0].end)
        position = region[1] + 1 if region else spans[0].end
        if self._in_steps is not None:
            self._before[_PROMPT] = self._in_steps
        while (opening := self._opening(_PROMPT, line, position)) is not None:
            spans.append(self._array(_PROMPT, line, opening))
            position = spans[-1].end
        self._in_steps = self._before[_PROMPT]
        if region:
            spans.insert(1, self._completion(line, region))
        return spans

    def _region(self, line: Line, position: int) -> tuple[int, int] | None:
        """Return where the row's completion opens and, by what followed the one before, where it closes."""
        opening = self._opening(_COMPLETION, line, position)
        if opening is None or opening > position + _NEAR:
            return None
        after = self._after.get(_COMPLETION)
        end = line.buffer.find(after, opening, line.end) if after else -1
        if end < 0:
            # The first one that is met tells what follows.
            end = self._array(_COMPLETION, line, opening).end - 1
            self._known[_COMPLETION].clear()
        return opening, end

    def _completion(self, line: Line, region: tuple[int, int]) -> Span:
        """Read the completion by the longest prompts that were read: they end as it begins.

        Raises: ValueError when the region is no whole array.
        """
        opening, end = region
        start, buffer = opening + 1, line.buffer
        while start < end and buffer[start] in SPACE:
            start += 1
        for known in self._known[_PROMPT]:
            # Where the completion's first message stands in the prompt, if an element begins there.
            place = known.data.find(buffer[start : min(start + _HEAD, end)]) if start < end else -1
            before = len(known.data[:place].rstrip(SPACE + _COMMA)) if place >= 0 else -1
            if before not in known.ends:
                continue
            rest = memoryview(known.data)[place:]
            after = start + len(rest)
            if buffer.startswith(rest, start, end) and (after == end or buffer[after] in AFTER_ELEMENT):
                last = buffer[after:end].strip(SPACE)
                if last and not last.startswith(_COMMA):
                    raise ValueError("a comma is missing between two elements of an array")
                values = known.values[known.counts[known.ends.index(before)] :]
                return Span(_COMPLETION, opening, end + 1, values + (strict(b"[" + last[1:] + b"]") if last else []))
        return Span(_COMPLETION, opening, end + 1, strict(b"[" + buffer[start:end] + b"]"))


def _prompted(row: Any) -> Iterator[dict[str, Any]]:
    yield mapping(row)
    for step in sequence(mapping(row).get("trajectory")):
        yield mapping(step)
