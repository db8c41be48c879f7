"""Put streams of the generateContent format together, and take final bodies apart again.

A stream is a sequence of whole answers, each with more parts: as server-sent events or as one JSON array.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.dialects._common import event, events, pieces
from pytest_benchflow.records.jsontext import dumps, loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Fields of a candidate whose lists hold what a chunk adds; others are told anew by each chunk.
_GROWING = ("citationMetadata", "logprobsResult")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


class Assembly:
    """One stream on its way to an answer."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._candidates: dict[int, dict[str, Any]] = {}
        self._reason: str | None = None

    def read(self, raw: bytes) -> tuple[Any, str | None]:
        """Return the body and why it is not complete."""
        for chunk in self._chunks(raw):
            self._add(mapping(chunk))
        body = dict(self._body)
        if self._candidates or "candidates" in body:
            body["candidates"] = [self._candidates[index] for index in sorted(self._candidates)]
        reason = self._reason
        if body.get("error"):
            reason = reason or "an error event came after the status"
        blocked = mapping(body.get("promptFeedback")).get("blockReason")
        ends = [candidate.get("finishReason") for candidate in self._candidates.values()]
        if reason is None and not all(ends or [blocked]):
            reason = "the stream ended without a finishReason"
        return body, reason

    def _chunks(self, raw: bytes) -> Iterator[Any]:
        start = raw.lstrip()[:1]
        if start in (b"[", b"{"):
            yield from self._array(raw)
            return
        for number, (_, data) in enumerate(events(raw), 1):
            try:
                yield loads(data)
            except ValueError:
                self._reason = self._reason or f"event {number} of the stream is cut or not JSON"

    def _array(self, raw: bytes) -> Iterator[Any]:
        try:
            whole = loads(raw)
        except ValueError:
            self._reason = "the array of the stream is cut or not JSON"
            yield from _whole_elements(raw)
            return
        yield from whole if isinstance(whole, list) else [whole]

    def _add(self, chunk: Mapping[str, Any]) -> None:
        for key, value in chunk.items():
            if key == "usageMetadata" and isinstance(value, dict):
                self._body[key] = {**mapping(self._body.get(key)), **value}
            elif value is not None or key not in self._body:
                self._body[key] = value
        for place, candidate in enumerate(sequence(chunk.get("candidates"))):
            self._add_candidate(place, mapping(candidate))

    def _add_candidate(self, place: int, part: Mapping[str, Any]) -> None:
        index = part.get("index")
        known = self._candidates.setdefault(index if isinstance(index, int) else place, {})
        for key, value in part.items():
            old = known.get(key)
            if key == "content" and isinstance(value, dict) and isinstance(old, dict):
                known[key] = {**old, **value, "parts": joined(sequence(old.get("parts")), value.get("parts"))}
            elif key in _GROWING and isinstance(value, dict) and isinstance(old, dict):
                known[key] = {**old, **{name: _longer(old.get(name), added) for name, added in value.items()}}
            elif value is not None or key not in known:
                known[key] = value


def joined(parts: list[Any], added: Any) -> list[Any]:
    """Return parts with those of the next chunk: a plain text that goes on is one part, all else stays as it came."""
    added = sequence(added)
    if parts and added and _plain(parts[-1]) and _plain(added[0]) and _same_kind(parts[-1], added[0]):
        return [*parts[:-1], {**parts[-1], "text": parts[-1]["text"] + added[0]["text"]}, *added[1:]]
    return [*parts, *added]


def _plain(part: Any) -> bool:
    # A signature covers the part it came with, so such a part is never joined with another.
    return isinstance(part, dict) and isinstance(part.get("text"), str) and part.keys() <= {"text", "thought"}


def _same_kind(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return first.get("thought") == second.get("thought")


def _longer(old: Any, added: Any) -> Any:
    return [*old, *added] if isinstance(old, list) and isinstance(added, list) else added


def _whole_elements(raw: bytes) -> Iterator[Any]:
    """Yield the elements of a cut JSON array that came whole."""
    depth = start = 0
    for found in _TOKEN.finditer(raw):
        token = found[0]
        if token in b"[{":
            depth += 1
            start = found.start() if depth == 2 else start
        elif token in b"]}":
            depth -= 1
            if depth == 1:
                try:
                    yield loads(raw[start : found.end()])
                except ValueError:
                    return


def disassemble(body: Mapping[str, Any], *, array: bool) -> Iterator[bytes]:
    """Yield the stream that leads to a final body: events, or the pieces of one JSON array."""
    for number, chunk in enumerate(_chunk_bodies(body)):
        if array:
            yield (b"," if number else b"[") + dumps(chunk)
        else:
            yield event(chunk)
    if array:
        yield b"]"


def _chunk_bodies(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    candidates = sequence(body.get("candidates"))
    candidate = mapping(candidates[0]) if len(candidates) == 1 else {}
    content = mapping(candidate.get("content"))
    chunks = list(_part_chunks(content.get("parts")))
    if len(chunks) < 2:
        yield dict(body)
        return
    head = {key: value for key, value in body.items() if key in ("candidates", "modelVersion", "responseId")}
    place = {key: value for key, value in candidate.items() if key in ("content", "index")}
    for parts in chunks[:-1]:
        yield {**head, "candidates": [{**place, "content": {**content, "parts": parts}}]}
    yield {**body, "candidates": [{**candidate, "content": {**content, "parts": chunks[-1]}}]}


def _part_chunks(parts: Any) -> Iterator[list[Any]]:
    """Yield the parts of each chunk; where two texts meet, the end of one and the start of the next share a chunk."""
    chunk: list[Any] = []
    for part in sequence(parts):
        split = [{**part, "text": piece} for piece in pieces(part["text"])] if _plain(part) else [part]
        if chunk and not (_plain(part) and _plain(chunk[-1]) and _same_kind(part, chunk[-1])):
            yield chunk
            chunk = []
        chunk.append(split[0])
        for piece in split[1:]:
            yield chunk
            chunk = [piece]
    if chunk:
        yield chunk
