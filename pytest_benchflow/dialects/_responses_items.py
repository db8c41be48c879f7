"""Map the items of the responses format to turns: a message and its sibling calls are one assistant turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Role, ToolCall, Turn
from pytest_benchflow.dialects._common import add_text, arguments_text, kind_of, text

if TYPE_CHECKING:
    from collections.abc import Mapping

# Calls that a client runs: the item's type, the field with what is asked, and the tool's name when the item has none.
CALLS: dict[str, tuple[str, str | None]] = {
    "function_call": ("arguments", None),
    "custom_tool_call": ("input", None),
    "local_shell_call": ("action", "local_shell"),
    "shell_call": ("action", "shell"),
    "apply_patch_call": ("operation", "apply_patch"),
}
OUTPUTS = frozenset(f"{kind}_output" for kind in CALLS)

ACTION_PARAMETERS: dict[str, dict[str, Any]] = {
    "local_shell": {"type": "object", "properties": {"command": {"type": "array"}}, "required": ["command"]},
    "shell": {"type": "object", "properties": {"commands": {"type": "array"}}, "required": ["commands"]},
    "apply_patch": {"type": "object", "properties": {"type": {"type": "string"}, "path": {"type": "string"}}},
}

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def item_kind(item: Any) -> str:
    """Return the type of an item; messages and references may leave theirs out."""
    if not isinstance(item, dict) or item.get("type") is not None:
        return kind_of(item)
    return "message" if "role" in item else "item_reference" if "id" in item else "no type"


def tool_name(name: str, namespace: Any) -> str:
    """Return the name of a tool, told apart from those of other namespaces."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


class TurnBuilder:
    """Collects items in order; what the assistant said and called between two other turns becomes one turn."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._reasoning = 0
        self._unsupported: list[str] = []
        self._open = False

    def turns(self) -> list[Turn]:
        """Return the turns of all items added so far."""
        self._end_assistant()
        return self._turns

    def add(self, item: Any) -> None:
        """Add the next item; one of an unknown type marks its turn as unsupported."""
        kind = item_kind(item)
        if kind == "message":
            self._message(item)
        elif kind in CALLS:
            self._call(item, *CALLS[kind])
        elif kind in OUTPUTS:
            self._output(item)
        else:
            self._open = True
            if kind == "reasoning":
                self._reasoning += 1
            else:
                self._unsupported.append(f"{kind} {item.get('id')}" if kind == "item_reference" else kind)

    def _message(self, item: Mapping[str, Any]) -> None:
        role = _ROLES.get(text(item.get("role")))
        unsupported = [] if role else [f"role {item.get('role')}"]
        parts = _parts(item.get("content"), unsupported)
        if role == "assistant":
            self._open = True
            self._texts.append("".join(parts))
            self._unsupported += unsupported
            return
        self._end_assistant()
        kept: Role = "system" if role == "system" else "user"
        self._turns.append(Turn(kept, "\n".join(parts), unsupported=tuple(unsupported)))

    def _call(self, item: Mapping[str, Any], field: str, name: str | None) -> None:
        self._open = True
        call_id = text(item.get("call_id"))
        if not call_id:
            self._unsupported.append(f"{item['type']} without a call_id")
        asked = {"input": text(item.get(field))} if field == "input" else item.get(field)
        arguments = arguments_text(asked, self._unsupported)
        own = name or tool_name(text(item.get("name")), item.get("namespace"))
        if not own:
            self._unsupported.append(f"{item['type']} without a name")
        self._calls.append(ToolCall(call_id, own, arguments))

    def _output(self, item: Mapping[str, Any]) -> None:
        self._end_assistant()
        unsupported: list[str] = []
        output = item.get("output")
        if item["type"] == "shell_call_output":
            said = arguments_text(output, unsupported)
        elif item["type"] == "apply_patch_call_output" and output is None:
            said = text(item.get("status"))
        else:
            said = "\n".join(_parts(output, unsupported))
        call_id = text(item.get("call_id"))
        if not call_id and item["type"] == "local_shell_call_output":
            # It names its call in `id`, every other output in `call_id`.
            call_id = text(item.get("id"))
        if not call_id:
            unsupported.append(f"{item['type']} without a call_id")
        self._turns.append(Turn("tool", said, tool_call_id=call_id or None, unsupported=tuple(unsupported)))

    def _end_assistant(self) -> None:
        if not self._open:
            return
        said = "\n".join(each for each in self._texts if each)
        self._turns.append(Turn("assistant", said, tuple(self._calls), None, self._reasoning, tuple(self._unsupported)))
        self._texts, self._calls, self._unsupported = [], [], []
        self._reasoning, self._open = 0, False


def _parts(content: Any, unsupported: list[str]) -> list[str]:
    if isinstance(content, str) or content is None:
        return [content or ""]
    if not isinstance(content, list):
        unsupported.append(f"content {type(content).__name__}")
        return []
    texts: list[str] = []
    for part in content:
        kind = kind_of(part)
        if kind in _TEXTS:
            add_text(part, _TEXTS[kind], texts, unsupported)
        else:
            unsupported.append(kind)
    return texts
