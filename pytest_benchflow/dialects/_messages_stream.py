"""Put event streams of the messages format together, and take final bodies apart again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.dialects._common import event, events, pieces, text
from pytest_benchflow.records.jsontext import dumps, loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Deltas that add to a text of a block: the field of the delta, which is also the block's.
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking"}


class Assembly:
    """One stream on its way to a message body."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._error: Any = None
        self._ended = False
        self._reason: str | None = None

    def read(self, raw: bytes) -> tuple[Any, str | None]:
        """Return the body and why it is not complete."""
        for number, (_, data) in enumerate(events(raw), 1):
            try:
                self._add(mapping(loads(data)))
            except ValueError:
                self._reason = self._reason or f"event {number} of the stream is cut or not JSON"
        for index, written in self._inputs.items():
            self._set_input(self._blocks.setdefault(index, {}), written)
        body = dict(self._message)
        if body or self._blocks:
            body["content"] = [self._blocks[index] for index in sorted(self._blocks)]
        reason = self._reason
        if self._error is not None:
            body["error"] = self._error
            reason = reason or "an error event came after the status"
        if reason is None and not self._ended:
            reason = "the stream ended without message_stop"
        return body, reason

    def _add(self, part: Mapping[str, Any]) -> None:
        kind = part.get("type")
        index = part["index"] if isinstance(part.get("index"), int) else 0
        if kind == "message_start":
            self._message = dict(mapping(part.get("message")))
        elif kind == "content_block_start":
            self._blocks[index] = dict(mapping(part.get("content_block")))
        elif kind == "content_block_delta":
            self._grow(index, mapping(part.get("delta")))
        elif kind == "message_delta":
            more = {key: value for key, value in part.items() if key not in ("type", "delta", "usage")}
            self._message |= {**more, **mapping(part.get("delta"))}
            if isinstance(part.get("usage"), dict):
                told = {key: value for key, value in part["usage"].items() if value is not None}
                self._message["usage"] = {**mapping(self._message.get("usage")), **told}
        elif kind == "message_stop":
            self._ended = True
        elif kind == "error":
            self._error = part.get("error") or dict(part)

    def _grow(self, index: int, delta: Mapping[str, Any]) -> None:
        kind = text(delta.get("type"))
        block = self._blocks.setdefault(index, {})
        if kind in _DELTAS:
            field = _DELTAS[kind]
            block[field] = text(block.get(field)) + text(delta.get(field))
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + text(delta.get("partial_json"))
        elif kind == "signature_delta":
            block["signature"] = delta.get("signature")
        elif kind == "compaction_delta":
            block.update((key, value) for key, value in delta.items() if key != "type")
        elif kind == "citations_delta":
            block["citations"] = [*sequence(block.get("citations")), delta.get("citation")]
        else:
            self._reason = self._reason or f"unknown delta {kind!r}"

    def _set_input(self, block: dict[str, Any], written: str) -> None:
        if not written:
            return
        try:
            block["input"] = loads(written)
        except ValueError:
            # Half an input is kept as it came, beside the empty one its block started with.
            block["partial_json"] = written
            self._reason = self._reason or "the input of a tool call is cut or not JSON"


def disassemble(body: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the events that lead to a final message body."""
    for kind, values in _steps(body):
        yield event({"type": kind, **values}, kind)


def _steps(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    usage = body.get("usage")
    last = {key: body[key] for key in ("stop_reason", "stop_sequence") if key in body}
    opening = {**body, "content": [], **dict.fromkeys(last)}
    if isinstance(usage, dict) and "output_tokens" in usage:
        opening["usage"] = {**usage, "output_tokens": 1}
    yield "message_start", {"message": opening}
    for index, block in enumerate(map(mapping, sequence(body.get("content")))):
        yield from _block_steps(index, block)
    ending: dict[str, Any] = {"delta": last}
    if isinstance(usage, dict):
        ending["usage"] = usage
    yield "message_delta", ending
    yield "message_stop", {}


def _block_steps(index: int, block: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    opening = dict(block)
    deltas: list[dict[str, Any]] = []
    field = str(block.get("type"))
    if field in ("text", "thinking") and isinstance(block.get(field), str):
        opening[field] = ""
        deltas += ({"type": f"{field}_delta", field: piece} for piece in pieces(block[field]))
        if isinstance(block.get("signature"), str):
            opening["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif field == "tool_use" and "input" in block:
        opening["input"] = {}
        written = dumps(block["input"]).decode()
        deltas += ({"type": "input_json_delta", "partial_json": piece} for piece in pieces(written))
    yield "content_block_start", {"index": index, "content_block": opening}
    for delta in deltas:
        yield "content_block_delta", {"index": index, "delta": delta}
    yield "content_block_stop", {"index": index}
