"""Parse JSON lines that repeat what earlier ones held: each element of a growing array is parsed once and shared.

Every request of an agent carries its whole history, so a log of n exchanges holds most messages n times. A repeated
stretch is compared byte by byte with the one that was parsed, and only what is new is parsed. What comes out is
ordinary JSON values; equal elements of such arrays are the same objects.
"""

from __future__ import annotations

import codecs
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.jsontext import scan_element, strict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_benchflow.records.lines import Line

SPACE = b" \t\r\n"
AFTER_ELEMENT = b",] \t\r\n"
_PIECE = 1 << 14
_AFTER = 16
_COMMA = ord(",")
# Tools and a system prompt, but no conversation, are kept from one file to the next.
_COMMON = 1 << 16
# Threads of one log that are told apart, such as an agent's and its sub-agent's.
_KEPT = 3
# No file can hold these: where one comes out of the parser tells where it was put in.
_MARK = f"\x7f{secrets.token_hex(8)}:"
_END = f"\x7f{secrets.token_hex(8)}."
_CLOSING = f',"{_END}"]'.encode()


@dataclass(slots=True)
class _Known:
    """The inside of an array that was parsed, from its first to its last element."""

    data: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=list)  # where elements end in `data`, in order but not of each one
    counts: list[int] = field(default_factory=list)  # how many elements end there
    values: list[Any] = field(default_factory=list)

    def opens(self, buffer: bytes, start: int, end: int) -> bool:
        """Tell whether an array that starts there begins with all of this one."""
        after = start + len(self.data)
        return after < end and buffer[after] in AFTER_ELEMENT and buffer.startswith(self.data, start, end)

    def shared(self, buffer: bytes, start: int, end: int) -> int:
        """Return how many of the known ends an array that starts there has too."""
        if self.opens(buffer, start, end):
            return len(self.ends)
        low, high = 0, len(self.ends) - 1
        while low < high:
            middle = (low + high + 1) // 2
            size = self.ends[middle - 1]
            after = start + size
            same = after < end and buffer[after] in AFTER_ELEMENT
            same = same and buffer.startswith(memoryview(self.data)[:size], start, end)
            low, high = (middle, high) if same else (low, middle - 1)
        return low

    def add(self, text: bytes, values: list[Any]) -> None:
        """Add elements that follow, and their text with the comma before them."""
        self.data += text
        self.ends.append(len(self.data))
        self.counts.append(len(self.values) + len(values))
        # A list of its own for each record, its elements shared with those before.
        self.values = self.values + values

    def until(self, count: int) -> _Known:
        """Return what is known up to the `count`-th known end."""
        size, inside = self.ends[count - 1], self.counts[count - 1]
        return _Known(self.data[:size], self.ends[:count], self.counts[:count], self.values[:inside])


@dataclass(slots=True)
class Span:
    """An array that was taken out of a line: from `[` up to and including `]`."""

    key: str
    start: int
    end: int
    values: list[Any]


class Folder:
    """Parse the lines of one file; `keys` name the arrays that repeat, `holders` finds the objects that have them."""

    def __init__(self, keys: Sequence[str], holders: Callable[[Any], Iterable[dict[str, Any]]]) -> None:
        self._tokens = {key: f'"{key}"'.encode() for key in keys}
        self._holders = holders
        self._known: dict[str, list[_Known]] = {key: [] for key in keys}
        self._before: dict[str, bytes] = {}  # how an array of this key opens
        self._after: dict[str, bytes] = {}  # what follows one
        # The keys of the line before, in their order: what is not there is not searched for through a whole line.
        self._order: list[str] | None = None

    def start(self) -> Folder:
        """Return this one ready for another file: of what is known the beginnings stay, which files have in common."""
        for kept in self._known.values():
            kept[:] = [known if len(known.data) <= _COMMON else known.until(1) for known in kept if known.ends][:1]
        self._order = None
        return self

    def parse(self, line: Line) -> Any:
        """Return the value of a line. Raises: ValueError (not JSON, not UTF-8, a key twice, nested too deeply)."""
        value = self._next(line, self._order) if self._order else None
        return self._any(line) if value is None else value

    def _next(self, line: Line, order: list[str]) -> Any:
        """Return the value of a line that goes on as the one before did, None when it does not.

        What is known of an array is whole elements, so that one mark may stand for them. That an array comes out from
        its mark to the one at its supposed end proves the end, as brackets and quotes match between them.
        """
        buffer, position, limit = line.buffer, line.start, line.end
        pieces: list[bytes] = []
        rests: list[bytes] = []
        for key in order:
            before, after, known = self._before[key], self._after[key], self._known[key][0]
            hit = buffer.find(before, position, limit)
            start = hit + len(before)
            if hit < 0 or not known.ends or not buffer.startswith(known.data, start, limit):
                return None
            origin = start + len(known.data)
            end = buffer.find(after, origin, limit)
            if end < 0:
                return None
            rests.append(buffer[origin:end])
            pieces += (buffer[position:start], f'"{_MARK}{key}"'.encode(), rests[-1], _CLOSING)
            position = end + 1
        pieces.append(buffer[position:limit])
        try:
            value = strict(b"".join(pieces))
        except ValueError:
            return None
        return value if self._go_on(value, dict(zip(order, rests, strict=True))) else None

    def _go_on(self, value: Any, rests: dict[str, bytes]) -> bool:
        """Add what is new to what is known, and put all of it into a value; tell whether it was where it belongs."""
        arrays = [
            (holder, key, found)
            for holder in self._holders(value)
            for key in self._tokens
            if isinstance(found := holder.get(key), list)
        ]
        if len(arrays) != len(rests) or any(a[:1] != [f"{_MARK}{key}"] or a[-1] != _END for _, key, a in arrays):
            return False
        for holder, key, found in arrays:
            known = self._known[key][0]
            if len(found) > 2:
                known.add(rests[key].rstrip(SPACE), found[1:-1])
            holder[key] = known.values
        return True

    def _any(self, line: Line) -> Any:
        """Return the value of a line whatever came before it. Raises: ValueError."""
        try:
            spans = self._spans(line)
        except ValueError:
            # Read as a whole, the line tells better what is wrong with it.
            return strict(line.bytes())
        if spans:
            rest, position = bytearray(), line.start
            view = memoryview(line.buffer)
            for number, span in enumerate(spans):
                rest += view[position : span.start]
                rest += f'["{_MARK}{number}"]'.encode()
                position = span.end
            rest += view[position : line.end]
            value = strict(rest)
            if self._restore(value, spans):
                return value
        # An array of such a name stands where none is expected, or there is none.
        return strict(line.bytes())

    def _restore(self, value: Any, spans: list[Span]) -> bool:
        """Put the arrays back; tell whether each one was found where it belongs."""
        restored = others = 0
        for holder in self._holders(value):
            for key in self._tokens:
                found = holder.get(key)
                if not isinstance(found, list):
                    continue
                if len(found) == 1 and isinstance(found[0], str) and found[0].startswith(_MARK):
                    holder[key] = spans[int(found[0][len(_MARK) :])].values
                    restored += 1
                else:
                    others += 1
        whole = restored == len(spans)
        self._order = [span.key for span in spans] if whole and not others else None
        return whole

    def _spans(self, line: Line) -> list[Span]:
        spans: list[Span] = []
        position = line.start
        for key in self._sequence(line):
            opening = self._opening(key, line, position)
            if opening is not None:
                spans.append(self._array(key, line, opening))
                position = spans[-1].end
        return spans

    def _sequence(self, line: Line) -> Iterable[str]:
        """Return the keys in the order in which a line has them."""
        if self._order is not None:
            return self._order
        hits = [(self._opening(key, line, line.start), key) for key in self._tokens]
        return [key for _, key in sorted((hit, key) for hit, key in hits if hit is not None)]

    def _opening(self, key: str, line: Line, position: int) -> int | None:
        """Return where the next array of this key opens, the next that is written as the last one if there is any."""
        before = self._before.get(key)
        if before is not None and (hit := line.buffer.find(before, position, line.end)) >= 0:
            return hit + len(before) - 1
        token = self._tokens[key]
        while (hit := line.buffer.find(token, position, line.end)) >= 0:
            position = hit + len(token)
            opening = self._opens_at(key, line, hit, position)
            if opening is not None:
                return opening
        return None

    def _opens_at(self, key: str, line: Line, hit: int, after: int) -> int | None:
        """Return where the array of the key found at `hit` opens, None when this is no key of an array."""
        buffer, before = line.buffer, hit - 1
        while before > line.start and buffer[before] in SPACE:
            before -= 1
        if before < line.start or buffer[before] not in b"{,":
            return None
        for expected in b":[":
            while after < line.end and buffer[after] in SPACE:
                after += 1
            if after >= line.end or buffer[after] != expected:
                return None
            after += 1
        self._before[key] = buffer[before:after]
        return after - 1

    def _array(self, key: str, line: Line, opening: int) -> Span:
        """Read the array that opens there, by what is known of its beginning."""
        buffer, limit, start = line.buffer, line.end, opening + 1
        while buffer[start] in SPACE and start < limit:
            start += 1
        kept = self._known[key]
        known = kept[0] if kept else None
        if known is None or not known.opens(buffer, start, limit):
            known = self._choose(kept, buffer, start, limit)
        origin = start + len(known.data)
        # What followed such an array in the line before tells where this one ends, if it parses.
        after = self._after.get(key)
        end = buffer.find(after, origin, limit) if after else -1
        if end < 0 or not _take(known, buffer, origin, end):
            end = _walk(known, line, origin)
            self._after[key] = buffer[end : min(end + _AFTER, limit)]
        return Span(key, opening, end + 1, known.values)

    @staticmethod
    def _choose(kept: list[_Known], buffer: bytes, start: int, end: int) -> _Known:
        """Return the array known to begin like this one, cut to what both have, and keep it as the latest."""
        best, count = None, 0
        for known in kept:
            shared = known.shared(buffer, start, end)
            if shared > count:
                best, count = known, shared
            if shared and shared == len(known.ends):
                break
        if best is None:
            best = _Known()
        elif count == len(best.ends):
            kept.remove(best)
        else:
            best = best.until(count)
        kept.insert(0, best)
        del kept[_KEPT:]
        return best


def _take(known: _Known, buffer: bytes, origin: int, end: int) -> bool:
    """Parse what is supposed to be the rest of an array; that it parses proves it, as brackets and quotes match."""
    if origin == end:
        return True
    rest = buffer[origin:end].rstrip(SPACE)
    added = rest.lstrip(SPACE)
    if known.ends and added:
        if added[0] != _COMMA:
            return False
        added = added[1:]
    try:
        values = strict(b"[" + added + b"]")
    except ValueError:
        return False
    if values:
        known.add(rest, values)
    return not rest or bool(values)


def _walk(known: _Known, line: Line, origin: int) -> int:
    """Parse an array's rest element by element; return where it closes."""
    size = _PIECE
    while True:
        piece, _ = codecs.utf_8_decode(memoryview(line.buffer)[origin : min(origin + size, line.end)], "strict", False)
        values, ends, closed = _elements(piece, first=not known.ends)
        if closed is not None:
            break
        if origin + size >= line.end:
            raise ValueError("an array does not end")
        size *= 4
    plain = piece.isascii()
    place = last = 0
    base, count = len(known.data), len(known.values)
    for number, end in enumerate(ends, 1):
        place += end - last if plain else len(piece[last:end].encode("utf-8", "surrogatepass"))
        last = end
        known.ends.append(base + place)
        known.counts.append(count + number)
    known.data += memoryview(line.buffer)[origin : origin + place]
    known.values = known.values + values
    return origin + (closed if plain else len(piece[:closed].encode("utf-8", "surrogatepass")))


def _elements(piece: str, *, first: bool) -> tuple[list[Any], list[int], int | None]:
    """Return the elements of an array's rest, where each ends, and where the array has closed, None if it goes on."""
    values: list[Any] = []
    ends: list[int] = []
    position, size = 0, len(piece)
    while True:
        while position < size and piece[position] in " \t\r\n":
            position += 1
        if position >= size:
            return values, ends, None
        if piece[position] == "]":
            return values, ends, position
        if not first or values:
            if piece[position] != ",":
                raise ValueError("a comma is missing between two elements of an array")
            position += 1
            while position < size and piece[position] in " \t\r\n":
                position += 1
        try:
            value, position = scan_element(piece, position)
        except ValueError:
            return values, ends, None
        if position >= size:
            return values, ends, None
        values.append(value)
        ends.append(position)
