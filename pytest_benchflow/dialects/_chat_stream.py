"""Put event streams of the chat completions format together, and take final bodies apart again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.dialects._common import event, events, pieces
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CHUNK, _WHOLE = "chat.completion.chunk", "chat.completion"
# Strings that each piece of a stream may repeat; others go on.
_REPEATED = frozenset({"role", "id", "type"})
_LONG = {"function": "arguments", "custom": "input"}


class Assembly:
    """One chat stream on its way to a chat.completion body."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[int | str, dict[str, Any]]] = {}

    def read(self, raw: bytes) -> tuple[Any, str | None]:
        """Return the body and why it is not complete."""
        done = False
        reason: str | None = None
        for number, (_, data) in enumerate(events(raw), 1):
            if data.strip() == b"[DONE]":
                # Clients read no further.
                done = True
                break
            try:
                chunk = loads(data)
            except ValueError:
                reason = reason or f"event {number} of the stream is cut or not JSON"
                continue
            self._add(mapping(chunk))
        body = {**self._body, "choices": [self._choices[index] for index in sorted(self._choices)]}
        if body.get("object") == _CHUNK:
            body["object"] = _WHOLE
        if reason is None and body.get("error"):
            reason = "an error event came after the status"
        if reason is None and not done:
            reason = "the stream ended without [DONE]"
        if reason is None and not self._choices:
            reason = "the stream held no choice"
        return body, reason

    def _add(self, chunk: Mapping[str, Any]) -> None:
        for key, value in chunk.items():
            if key != "choices" and (value is not None or key not in self._body):
                self._body[key] = value
        for choice in sequence(chunk.get("choices")):
            self._add_choice(mapping(choice))

    def _add_choice(self, part: Mapping[str, Any]) -> None:
        index = part["index"] if isinstance(part.get("index"), int) else 0
        # A choice whose end never came must not look like one of an old log, which has no such key.
        choice = self._choices.setdefault(index, {"index": index, "message": {}, "finish_reason": None})
        for key, value in part.items():
            if key in ("index", "delta", "message"):
                continue
            if key == "logprobs" and isinstance(value, dict) and isinstance(choice.get(key), dict):
                _grow(choice[key], value)
            elif value is not None or key not in choice:
                choice[key] = value
        # Some servers send an answer that they have whole as one event, in its final shape.
        delta = mapping(part.get("delta") or part.get("message"))
        message = choice["message"]
        _grow(message, {key: value for key, value in delta.items() if key != "tool_calls"})
        if delta.get("tool_calls") == []:
            message.setdefault("tool_calls", [])
        for call in sequence(delta.get("tool_calls")):
            self._add_call(index, message, mapping(call))

    def _add_call(self, index: int, message: dict[str, Any], part: Mapping[str, Any]) -> None:
        calls = self._calls.setdefault(index, {})
        key, name = part.get("index"), part.get("id")
        if not isinstance(key, int):
            # Without an index a new id opens a call and everything else continues the last one.
            key = name if isinstance(name, str) and name else next(reversed(calls), "")
        if key not in calls:
            calls[key] = {}
            message.setdefault("tool_calls", []).append(calls[key])
        _grow(calls[key], {field: value for field, value in part.items() if field != "index" and value is not None})


def _grow(target: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Append strings, lists and objects of `part` to those of `target`; other values replace what was there."""
    for key, value in part.items():
        old = target.get(key)
        if isinstance(old, str) and isinstance(value, str):
            repeated = key in _REPEATED or (key == "name" and old == value)
            target[key] = value if repeated else old + value
        elif isinstance(old, list) and isinstance(value, list):
            old.extend(value)
        elif isinstance(old, dict) and isinstance(value, dict):
            _grow(old, value)
        elif value is not None or key not in target:
            target[key] = value


def disassemble(body: Mapping[str, Any], *, usage_apart: bool) -> Iterator[bytes]:
    """Yield the chunks that lead to a final body; `usage_apart` gives the usage a chunk of its own."""
    head = {key: value for key, value in body.items() if key not in ("choices", "usage")}
    if head.get("object") == _WHOLE:
        head["object"] = _CHUNK
    last: dict[str, Any] = {"choices": []}
    for choice in sequence(body.get("choices")):
        for part in _choice_parts(mapping(choice)):
            if last["choices"]:
                yield event({**head, **last})
            last = {"choices": [part]}
    if "usage" in body:
        if usage_apart:
            yield event({**head, **last})
            last = {"choices": []}
        last["usage"] = body["usage"]
    yield event({**head, **last})
    yield b"data: [DONE]\n\n"


def _choice_parts(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    index = choice.get("index", 0)
    message = mapping(choice.get("message"))
    calls = sequence(message.get("tool_calls"))
    texts = {key: value for key, value in message.items() if isinstance(value, str) and key not in _REPEATED}
    rest = {key: value for key, value in message.items() if key not in texts and not (key == "tool_calls" and calls)}
    yield {"index": index, "delta": rest, "finish_reason": None}
    for key, value in texts.items():
        for piece in pieces(value):
            yield {"index": index, "delta": {key: piece}, "finish_reason": None}
    for number, call in enumerate(map(mapping, calls)):
        for part in _call_parts(call):
            yield {"index": index, "delta": {"tool_calls": [{**part, "index": number}]}, "finish_reason": None}
    others = {key: value for key, value in choice.items() if key not in ("index", "message")}
    yield {"index": index, "delta": {}, **others}


def _call_parts(call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind = "custom" if "custom" in call else "function"
    asked, long = mapping(call.get(kind)), _LONG[kind]
    whole = asked.get(long)
    if not isinstance(whole, str):
        yield dict(call)
        return
    yield {**call, kind: {**asked, long: ""}}
    for piece in pieces(whole):
        yield {kind: {long: piece}}
