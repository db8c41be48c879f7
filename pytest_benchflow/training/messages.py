"""Turn turns into the messages trainers read: string contents, JSON-object arguments, one system message first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.records.values import number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_benchflow.contracts import ToolCall, Turn

# Keys that hold a model's private reasoning, at any depth of a recorded answer.
REASONING_KEYS = frozenset({"reasoning_content", "thinking_blocks", "private_reasoning", "provider_specific_fields"})
REASONING_TYPES = frozenset({"reasoning", "thinking", "redacted_thinking"})
# Keys of a message that hold it; elsewhere they are settings, or arguments of a call.
REASONING_TEXTS = frozenset({"reasoning", "thinking", "reasoning_details"})
# One of these is in every key and type above, and in a part that is marked as a thought.
_REASONING_WORDS = (b"reasoning", b"thinking", b"provider_specific_fields", b'"thought"')


class Messages:
    """Make messages of turns, each turn once; `problems` says what no trainer could read."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Turn, dict[str, Any]]] = {}
        self._systems: dict[str, dict[str, Any]] = {}
        self._last: tuple[list[Turn], list[dict[str, Any]]] = ([], [])
        self.problems: dict[str, str] = {}
        self.folded = 0
        self.reasoning = 0
        self.replaced = 0  # lone surrogates, which no trainer's file may hold

    def of(self, turns: list[Turn]) -> list[dict[str, Any]]:
        """Return the messages of a history; later system turns are folded into the leading one."""
        known, made = self._last
        size = len(known)
        added = turns[size:]
        if size and turns[:size] == known and not any(turn.role == "system" for turn in added):
            messages = made + [self.one(turn) for turn in added]
        else:
            messages = self._all(turns)
        self._last = (turns, messages)
        return messages

    def _all(self, turns: Iterable[Turn]) -> list[dict[str, Any]]:
        system: list[str] = []
        messages: list[dict[str, Any]] = []
        for turn in turns:
            if turn.role == "system":
                self.folded += bool(messages)
                system.append(self._clean(turn.text, turn))
            else:
                messages.append(self.one(turn))
        if system:
            messages.insert(0, self._system("\n\n".join(system)))
        return messages

    def _system(self, text: str) -> dict[str, Any]:
        return self._systems.setdefault(text, {"role": "system", "content": text})

    def one(self, turn: Turn) -> dict[str, Any]:
        """Return the message of a user, assistant or tool turn; the same object for the same turn."""
        made = self._made.get(id(turn))
        if made is None:
            message: dict[str, Any] = {"role": turn.role, "content": self._clean(turn.text, turn)}
            if turn.role == "tool":
                message["tool_call_id"] = turn.tool_call_id
            if turn.tool_calls:
                message["tool_calls"] = [self._call(call) for call in turn.tool_calls]
            self.reasoning += turn.reasoning
            # The turn is kept beside its message, so that its id cannot be given to another.
            made = self._made[id(turn)] = (turn, message)
        return made[1]

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = scrub(call.arguments).strip() or "{}"
        try:
            value = orjson.loads(arguments)
            fault = None if isinstance(value, dict) else f"a JSON {type(value).__name__}, not an object"
        except orjson.JSONDecodeError as error:
            fault = f"not JSON ({error})"
        if fault is not None:
            self.problems.setdefault(call.id, f"arguments of the call {call.id} ({call.name}) are {fault}")
            arguments = orjson.dumps({"malformed": arguments}).decode()
        elif arguments != (call.arguments.strip() or "{}"):
            self.problems.setdefault(call.id, f"arguments of the call {call.id} ({call.name}) hold a lone surrogate")
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def _clean(self, text: str, turn: Turn) -> str:
        cleaned: str = scrub(text)
        if cleaned != text:
            self.replaced += 1
            if turn.role == "assistant":
                self.problems.setdefault(f"text {len(self.problems)}", "an answer of the model holds a lone surrogate")
        return cleaned


_SURROGATE = re.compile("[\ud800-\udfff]")


def scrub(value: Any) -> Any:
    """Return the value with every lone surrogate in its strings replaced by U+FFFD, and whole numbers of 64 bits."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        # Most readers of JSON keep such a number as one of floating point, if they can.
        return number(value)
    return value


def without_reasoning(answer: Any) -> Any:
    """Return a recorded answer without its reasoning; parts that hold none are shared, not copied."""
    try:
        text = orjson.dumps(answer)
    except TypeError:
        return _without_reasoning(answer)
    return _without_reasoning(answer) if any(word in text for word in _REASONING_WORDS) else answer


def _without_reasoning(value: Any) -> Any:
    if isinstance(value, list):
        kept = [_without_reasoning(item) for item in value if not _is_reasoning(item)]
        same = len(kept) == len(value) and all(new is old for new, old in zip(kept, value, strict=True))
        return value if same else kept
    if isinstance(value, dict):
        private = REASONING_KEYS | REASONING_TEXTS if value.get("role") == "assistant" else REASONING_KEYS
        items = {key: _without_reasoning(item) for key, item in value.items() if key not in private}
        same = len(items) == len(value) and all(items[key] is value[key] for key in items)
        return value if same else items
    return value


def _is_reasoning(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    return (isinstance(kind, str) and kind in REASONING_TYPES) or item.get("thought") is True
