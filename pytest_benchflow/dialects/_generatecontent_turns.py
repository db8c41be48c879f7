"""Map the contents of the generateContent format to turns: calls and their results are paired by id, never by order."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import ToolCall, Turn
from pytest_benchflow.dialects._common import arguments_text, listed, text
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What a part may hold besides its one kind of data: nothing of it is part of what was said.
_ASIDE = frozenset(
    {
        "audioMetadata",
        "documentMetadata",
        "mediaProcessing",
        "mediaResolution",
        "partMetadata",
        "speechMetadata",
        "spreadsheetMetadata",
        "thought",
        "thoughtSignature",
        "videoMetadata",
    }
)
# Data that no turn can hold, by the names of the format; a part of any other name is of an unknown type.
_UNMAPPED = frozenset(
    {
        "audioTranscription",
        "codeExecutionResult",
        "executableCode",
        "fileData",
        "functionResponse",
        "inlineData",
        "toolCall",
        "toolResponse",
    }
)
_KNOWN = _ASIDE | _UNMAPPED | {"text", "functionCall"}
_SNAKE = re.compile(r"_([a-z])")


def camel(key: str) -> str:
    """Return a key in camel case: requests may be written with underscores, answers never are."""
    return _SNAKE.sub(lambda found: found[1].upper(), key) if "_" in key else key


def field(holder: Mapping[str, Any], key: str, other: str) -> Any:
    """Return a field of a request by its name, or by the other spelling of it."""
    value = holder.get(key)
    return holder.get(other) if value is None else value


class TurnBuilder:
    """Collects contents in order; what the model said and called between two other turns becomes one turn."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._said = _Said()
        self._open = False
        self._waiting: ToolCall | None = None

    def turns(self) -> list[Turn]:
        """Return the turns of all contents added so far."""
        self._end_model()
        return self._turns

    def system(self, instruction: Any) -> None:
        """Add a system instruction: a content, or its text alone."""
        if isinstance(instruction, str):
            self._turns.append(Turn("system", instruction))
            return
        said = _Said()
        for part in listed(mapping(instruction).get("parts")):
            said.add(part)
        said.refuse_calls()
        if not isinstance(instruction, dict):
            said.unsupported.append(f"systemInstruction {type(instruction).__name__}")
        self._turns.append(Turn("system", "\n".join(said.texts), unsupported=tuple(said.unsupported)))

    def add(self, content: Any) -> None:
        """Add the next content."""
        content = mapping(content)
        role = content.get("role", "user")
        if role == "model":
            self._open = True
            for part in listed(content.get("parts")):
                self._said.add(part)
            return
        self._end_model()
        self._spoken(content, [] if role in ("user", "function") else [f"role {role}"])
        self._waiting = None

    def _spoken(self, content: Mapping[str, Any], unsupported: list[str]) -> None:
        """Add a content that is not the model's: each function response is a turn, texts between them another."""
        begun = len(self._turns)
        said = _Said()
        said.unsupported += unsupported
        if "parts" not in content:
            said.unsupported.append("a content without parts")
        for part in listed(content.get("parts")):
            response = field(part, "functionResponse", "function_response") if isinstance(part, dict) else None
            if response is None:
                said.add(part)
                continue
            self._user(said)
            said = _Said()
            self._turns.append(self._result(mapping(response)))
        self._user(said)
        if len(self._turns) == begun:
            self._turns.append(Turn("user"))

    def _user(self, said: _Said) -> None:
        said.refuse_calls()
        if said.texts or said.unsupported:
            self._turns.append(Turn("user", "\n".join(said.texts), unsupported=tuple(said.unsupported)))

    def _result(self, response: Mapping[str, Any]) -> Turn:
        unsupported = [camel(kind) for part in listed(response.get("parts")) for kind in mapping(part) or ("part",)]
        call_id = text(response.get("id"))
        waiting = self._waiting
        if waiting is not None and waiting.name == response.get("name"):
            # The one call of the turn just before: its result needs no id, or brings one that only the client knows.
            if not call_id or waiting.id == made_id(waiting.name, waiting.arguments):
                call_id = waiting.id
            self._waiting = None
        if not call_id:
            unsupported.append("functionResponse without an id")
        value = response.get("response")
        value = mapping(value).get("output", value) if len(mapping(value)) == 1 else value
        said = arguments_text(value, unsupported)
        return Turn("tool", said, tool_call_id=call_id or None, unsupported=tuple(unsupported))

    def _end_model(self) -> None:
        if self._open:
            turn = self._said.turn()
            self._turns.append(turn)
            self._waiting = turn.tool_calls[0] if len(turn.tool_calls) == 1 else None
            self._said, self._open = _Said(), False


class _Said:
    """The parts of one turn, sorted."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.unsupported: list[str] = []
        self._calls: list[ToolCall] = []
        self._reasoning = 0

    def add(self, part: Any) -> None:
        """Add the next part; what a turn cannot hold is named."""
        if not isinstance(part, dict):
            self.unsupported.append(f"part {type(part).__name__}")
            return
        thought = part.get("thought") is True
        for key, value in part.items():
            kind = camel(key)
            if value is None:
                continue
            if kind == "text":
                if thought:
                    self._reasoning += 1
                elif isinstance(value, str):
                    self.texts.append(value)
                else:
                    self.unsupported.append(f"text {type(value).__name__}")
            elif kind == "functionCall":
                self._call(mapping(value))
            elif kind == "thoughtSignature":
                # One that stands alone is a part of its own, left out like other reasoning.
                self._reasoning += part.keys() <= {"thought", "thoughtSignature"}
            elif kind not in _ASIDE:
                self.unsupported.append(kind)

    def turn(self) -> Turn:
        """Return what was added as the model's turn."""
        calls = self._calls
        if any(not call.id for call in calls):
            if len(calls) == 1:
                call = calls[0]
                calls = [ToolCall(made_id(call.name, call.arguments), call.name, call.arguments)]
            else:
                self.unsupported.append("functionCall without an id beside another")
        return Turn("assistant", "".join(self.texts), tuple(calls), None, self._reasoning, tuple(self.unsupported))

    def refuse_calls(self) -> None:
        """Name calls that someone other than the model made."""
        self.unsupported += ["functionCall"] * len(self._calls)

    def _call(self, call: Mapping[str, Any]) -> None:
        if field(call, "partialArgs", "partial_args") is not None or field(call, "willContinue", "will_continue"):
            self.unsupported.append("functionCall in fragments")
        if not text(call.get("name")):
            self.unsupported.append("functionCall without a name")
        arguments = call.get("args")
        arguments = "{}" if arguments is None else arguments_text(arguments, self.unsupported)
        self._calls.append(ToolCall(text(call.get("id")), text(call.get("name")), arguments))


def model_turn(parts: Iterable[Any]) -> Turn:
    """Return the turn of an answer's parts."""
    said = _Said()
    for part in parts:
        said.add(part)
    return said.turn()


def unknown_part(parts: Iterable[Any]) -> str | None:
    """Return why an answer that holds these parts is not complete, None when all are of known types."""
    for part in parts:
        for key, value in mapping(part).items():
            if camel(key) not in _KNOWN:
                return f"unknown part {key!r}"
            if key == "functionCall" and ("partialArgs" in mapping(value) or mapping(value).get("willContinue")):
                return "a functionCall in fragments"
        if not isinstance(part, dict):
            return f"a part that is {type(part).__name__}"
    return None


def made_id(name: str, arguments: str) -> str:
    """Return the id of a call that came without one: the same wherever the same call is seen."""
    with suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments), sort_keys=True)
    digest = hashlib.sha256(f"{name}\0{arguments}".encode(errors="surrogatepass")).hexdigest()
    return f"{name or 'call'}-{digest[:16]}"
