"""What the agent did: its tool calls from the exchanges and the protocol's events, each once and with its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.checks._evidence import fresh_content, once, rebuilt
from pytest_benchflow.checks._spoken import spoken
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    import re

    from pytest_benchflow.records.rollout import Rollout

# Where the parts of an answer or of a history's item are, in any wire format.
_INSIDE = frozenset({"choices", "message", "output", "candidates", "content", "parts", "tool_calls"})
# One of these keys is in each call and in each result.
_TELLING = frozenset({"type", "function", "functionCall", "functionResponse", "tool_call_id"})
# Anthropic's tool results and Gemini's stand in a user's messages, so that those are looked at.
_NO_ACTORS = ("system", "developer")


@dataclass(slots=True)
class Action:
    """One tool call, as it was recorded; few are ever looked into, so that what they hold is read when asked for."""

    tool: str
    given: Any  # arguments: JSON text, or a JSON value
    exchange: int | None = None  # the first that shows it
    event: int | None = None  # its 1-based line of acp_trajectory.jsonl
    returned: Any = None  # the content of its result, None when none is recorded

    @property
    def arguments(self) -> Any:
        """Return the arguments as a JSON value, or as the text that is none."""
        return _parsed(self.given)

    @property
    def output(self) -> str | None:
        """Return the text of its result, None when none is recorded."""
        return self.returned if self.returned is None or isinstance(self.returned, str) else text_of(self.returned)

    def may_mention(self, marks: re.Pattern[str]) -> bool:
        """Tell whether the arguments hold one of some words; in JSON text escapes could hide one."""
        plain = isinstance(self.given, str) and "\\" not in self.given
        return marks.search(self.given if plain else text_of(self.arguments)) is not None

    @property
    def place(self) -> str:
        """Return where a reader finds it."""
        event = f"acp_trajectory.jsonl:{self.event}" if self.event is not None else None
        exchange = f"exchange {self.exchange}" if self.exchange is not None else None
        return ", ".join(part for part in (exchange, event) if part)


def actions(rollout: Rollout) -> list[Action]:
    """Return the agent's tool calls in the order in which they show; a call that was never used is none."""
    return _collected(rollout)[0]


def actions_by_id(rollout: Rollout) -> dict[str, Action]:
    """Return by the id of the call those that the exchanges show; of an id that is used again the last."""
    return _collected(rollout)[1]


@once
def _collected(rollout: Rollout) -> tuple[list[Action], dict[str, Action]]:
    try:
        calls, named = _called(rollout)
    except RecordError:
        calls, named = [], {}
    try:
        events = rollout.events
    except RecordError:
        events = []
    shown: dict[str, Action] = {}
    for line, event in enumerate(events, 1):
        if event.get("type") in ("tool_call", "tool_call_update") and event.get("phase") not in ("verifier", "harness"):
            call_id = event_id(event) or f"line {line}"
            action = named.get(call_id) or shown.get(call_id)
            if action is None:
                action = shown[call_id] = Action("", {})
                calls.append(action)
            _add_event(action, line, event)
    return calls, named


def event_id(event: dict[str, Any]) -> str:
    """Return the id of the tool call that an event of the protocol tells of, "" when it has none."""
    return str(event.get("tool_call_id") or event.get("toolCallId") or "")


def _called(rollout: Rollout) -> tuple[list[Action], dict[str, Action]]:
    """Return the calls that the exchanges show, and the latest of each id."""
    facts = rebuilt(rollout).exchanges
    # What cannot be mapped is no step, though the agent may well have acted on it.
    used = [exchange["selected"] or exchange["reason"] == "unsupported_item" for exchange in facts]
    calls: list[Action] = []
    named: dict[str, Action] = {}
    for index, value, answer in fresh_content(rollout):
        if not isinstance(value, dict) or value.get("role") in _NO_ACTORS:
            continue
        for node in _telling(value):
            result = _result(node)
            if result is not None:
                if result[0] in named and not answer:
                    named[result[0]].returned = result[1]
                continue
            call = _call(node)
            if call is not None and (not answer or used[index]):
                call_id, tool, given = call
                known = named.get(call_id)
                if known is None or known.given != given or known.tool != tool:
                    known = named[call_id] = Action(tool, given, index)
                    calls.append(known)
    calls += [Action(tool, given, index, None, said) for index, tool, given, said in spoken(rebuilt(rollout).records)]
    return calls, named


def _telling(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what may be a call or a result in an answer or an item of a history, itself too, in order."""
    found: list[dict[str, Any]] = []
    todo: list[Any] = [value]
    for item in todo:
        if type(item) is dict:
            if not _TELLING.isdisjoint(item):
                found.append(item)
            for key, child in item.items():
                if key in _INSIDE and type(child) is not str:
                    todo.append(child)
        elif type(item) is list:
            todo += item
    return found


def _call(node: dict[str, Any]) -> tuple[str, str, Any] | None:
    """Return (id, tool, arguments) when a part of an answer is a tool call."""
    kind, function = node.get("type"), node.get("function")
    if isinstance(function, dict) and "arguments" in function:
        return str(node.get("id")), str(function.get("name")), function["arguments"]
    if kind == "function_call":
        return str(node.get("call_id")), str(node.get("name")), node.get("arguments")
    if kind == "custom_tool_call":
        return str(node.get("call_id")), str(node.get("name")), node.get("input")
    if kind in ("local_shell_call", "shell_call"):
        return str(node.get("call_id") or node.get("id")), "shell", node.get("action")
    if kind == "apply_patch_call":
        return str(node.get("call_id")), "apply_patch", node.get("operation")
    if kind == "tool_use":
        return str(node.get("id")), str(node.get("name")), node.get("input")
    function = node.get("functionCall")
    if isinstance(function, dict):
        arguments = function.get("args")
        # Gemini's calls need no id: then what they ask for tells them apart.
        return str(function.get("id") or (function.get("name"), arguments)), str(function.get("name")), arguments
    return None


def _result(node: dict[str, Any]) -> tuple[str, Any] | None:
    """Return (id, content) when an item of a history is a tool's result."""
    kind = node.get("type")
    if node.get("role") == "tool" and node.get("tool_call_id") is not None:
        return str(node["tool_call_id"]), node.get("content")
    if isinstance(kind, str) and kind.endswith("_call_output"):
        return str(node.get("call_id") or node.get("id")), node.get("output")
    if kind == "tool_result":
        return str(node.get("tool_use_id")), node.get("content")
    response = node.get("functionResponse")
    if isinstance(response, dict) and response.get("id") is not None:
        return str(response["id"]), response.get("response")
    return None


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def text_of(value: Any) -> str:
    """Return the text in a content: a string, or the strings of its parts, one a line."""
    texts: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            stack.extend(child for key, child in reversed(item.items()) if key not in ("type", "id"))
    return "\n".join(texts)


def _add_event(action: Action, line: int, event: dict[str, Any]) -> None:
    """Add what an event of the protocol says of a call; the exchanges say it better where they have it."""
    if action.event is None:
        action.event = line
    if action.exchange is not None:
        return
    content = [part for part in sequence(event.get("content")) if isinstance(part, dict)]
    said = [part.get("content") for part in content if part.get("type") != "diff"]
    if said and event.get("status") in ("completed", "failed"):
        action.returned = said
    given = event.get("raw_input") or event.get("rawInput")
    kind, title = str(event.get("kind") or ""), str(event.get("title") or "")
    action.tool = action.tool or kind or title
    if isinstance(given, dict) and "arguments" in given:
        action.tool, given = str(given.get("tool") or kind), _parsed(given["arguments"])
    if isinstance(given, dict) and given:
        action.given = given
    elif not action.given:
        action.given = _from_title(kind, title, event, content)


def _from_title(kind: str, title: str, event: dict[str, Any], content: list[dict[str, Any]]) -> dict[str, Any]:
    """Return arguments for an event that shows none: the command or the files it names to a user."""
    if kind == "execute":
        return {"command": title.rpartition(": $ ")[2].removeprefix("$ ").strip("`")}
    diff: dict[str, Any] = next((part for part in content if part.get("type") == "diff"), {})
    if diff:
        return {"path": diff.get("path"), "content": diff.get("newText") or diff.get("new_text") or ""}
    places = [mapping(place).get("path") for place in sequence(event.get("locations"))]
    path = next((place for place in places if isinstance(place, str)), None)
    if path is None:
        path = title.partition(" ")[2].strip("`'\"") if kind in ("read", "edit", "delete") else None
    return {"path": path} | ({"content": ""} if kind in ("edit", "delete", "move") else {}) if path else {}
