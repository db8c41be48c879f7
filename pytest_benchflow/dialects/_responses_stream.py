"""Put event streams of the responses format together, and take final bodies apart again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.dialects._common import event, events, pieces, text
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})

# Events that add to a text: the item's list (None: the item itself), the field, and the type of a part made for it.
_DELTAS: dict[str, tuple[str | None, str, str]] = {
    "response.output_text.delta": ("content", "text", "output_text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "text", "reasoning_text"),
    "response.reasoning_summary_text.delta": ("summary", "text", "summary_text"),
    "response.function_call_arguments.delta": (None, "arguments", ""),
    "response.custom_tool_call_input.delta": (None, "input", ""),
    "response.mcp_call_arguments.delta": (None, "arguments", ""),
    "response.code_interpreter_call_code.delta": (None, "code", ""),
}


class Assembly:
    """One stream on its way to a response body."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._error: dict[str, Any] | None = None
        self._ended = False

    def read(self, raw: bytes) -> tuple[Any, str | None]:
        """Return the body and why it is not complete."""
        reason: str | None = None
        for number, (_, data) in enumerate(events(raw), 1):
            if data.strip() == b"[DONE]":
                continue
            try:
                self._add(mapping(loads(data)))
            except ValueError:
                reason = reason or f"event {number} of the stream is cut or not JSON"
        body = dict(self._response)
        if self._items and not body.get("output"):
            # Some servers leave the final output empty and send the items as events only.
            body["output"] = [self._items[index] for index in sorted(self._items)]
        if self._error is not None:
            body["error"] = self._error
            reason = reason or "an error event came after the status"
        if reason is None and not self._ended:
            reason = "the stream ended without a terminal event"
        return body, reason

    def _add(self, part: Mapping[str, Any]) -> None:
        kind = text(part.get("type"))
        if isinstance(part.get("response"), dict):
            self._response = part["response"]
            self._ended = self._ended or kind in _TERMINAL
        elif kind == "error" or (not kind and "error" in part):
            nested = part.get("error")
            self._error = nested if isinstance(nested, dict) else {k: v for k, v in part.items() if k != "type"}
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._items[_index(part, "output_index")] = dict(mapping(part.get("item")))
        elif kind in ("response.content_part.added", "response.content_part.done"):
            _put(_list_in(self._item(part), "content"), _index(part, "content_index"), part.get("part"))
        elif kind in ("response.reasoning_summary_part.added", "response.reasoning_summary_part.done"):
            _put(_list_in(self._item(part), "summary"), _index(part, "summary_index"), part.get("part"))
        elif kind in _DELTAS:
            self._grow(part, *_DELTAS[kind])

    def _item(self, part: Mapping[str, Any]) -> dict[str, Any]:
        return self._items.setdefault(_index(part, "output_index"), {})

    def _grow(self, part: Mapping[str, Any], place: str | None, field: str, kind: str) -> None:
        target = self._item(part)
        if place is not None:
            parts = _list_in(target, place)
            index = min(_index(part, f"{place}_index"), len(parts))
            if index == len(parts):
                parts.append({"type": kind})
            elif not isinstance(parts[index], dict):
                parts[index] = {"type": kind}
            target = parts[index]
        target[field] = text(target.get(field)) + text(part.get("delta"))


def _list_in(item: dict[str, Any], key: str) -> list[Any]:
    """Return a list of an item, made where the item has none."""
    if not isinstance(item.get(key), list):
        item[key] = []
    found: list[Any] = item[key]
    return found


def _index(part: Mapping[str, Any], key: str) -> int:
    value = part.get(key)
    return value if isinstance(value, int) and value >= 0 else 0


def _put(parts: list[Any], index: int, part: Any) -> None:
    if index < len(parts):
        parts[index] = dict(mapping(part))
    else:
        parts.append(dict(mapping(part)))


def disassemble(body: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the events that lead to a final response body."""
    status = body.get("status", "completed")
    opening = {**body, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    for number, (kind, values) in enumerate(_steps(body, opening, status)):
        yield event({"type": kind, "sequence_number": number, **values}, kind)


def _steps(body: Mapping[str, Any], opening: Mapping[str, Any], status: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": opening}
    yield "response.in_progress", {"response": opening}
    for index, item in enumerate(map(mapping, sequence(body.get("output")))):
        place = {"output_index": index}
        yield "response.output_item.added", {**place, "item": _emptied(item)}
        yield from _item_steps(item, {**place, "item_id": item.get("id")})
        yield "response.output_item.done", {**place, "item": item}
    terminal = f"response.{status}"
    yield terminal if terminal in _TERMINAL else "response.completed", {"response": body}


def _emptied(item: Mapping[str, Any]) -> dict[str, Any]:
    empty: dict[str, Any] = {"content": [], "summary": [], "arguments": "", "input": ""}
    emptied = {key: empty.get(key, value) for key, value in item.items()}
    if "status" in emptied:
        emptied["status"] = "in_progress"
    return emptied


def _item_steps(item: Mapping[str, Any], place: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if item.get("type") == "function_call":
        whole = text(item.get("arguments"))
        for piece in pieces(whole):
            yield "response.function_call_arguments.delta", {**place, "delta": piece}
        yield "response.function_call_arguments.done", {**place, "arguments": whole}
    elif item.get("type") == "custom_tool_call":
        whole = text(item.get("input"))
        for piece in pieces(whole):
            yield "response.custom_tool_call_input.delta", {**place, "delta": piece}
        yield "response.custom_tool_call_input.done", {**place, "input": whole}
    elif item.get("type") == "message":
        for number, part in enumerate(map(mapping, sequence(item.get("content")))):
            here = {**place, "content_index": number}
            field = "refusal" if part.get("type") == "refusal" else "text"
            kind = "refusal" if field == "refusal" else "output_text"
            whole = text(part.get(field))
            yield "response.content_part.added", {**here, "part": {**part, field: ""}}
            for piece in pieces(whole):
                yield f"response.{kind}.delta", {**here, "delta": piece}
            yield f"response.{kind}.done", {**here, field: whole}
            yield "response.content_part.done", {**here, "part": part}
