"""A scripted model for agents that nobody knows: it answers by what a request holds, with a tool that it offers."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.errors import ProviderError
from pytest_benchflow.proxy.script import Call
from pytest_benchflow.proxy.scripted import respond
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_benchflow.contracts import ModelRequest, ModelResponse, Turn
    from pytest_benchflow.proxy.script import ScriptTurn

_COMMAND = re.compile(r"(shell_?)?(command|cmd)(_?line|_?string)?|script", re.IGNORECASE)
_RUNS_COMMANDS = re.compile(r"bash|shell|terminal|exec|command|\brun", re.IGNORECASE)
_FILLER = {"boolean": False, "integer": 1, "number": 1, "array": [], "object": {}}


@dataclass(frozen=True, slots=True)
class CommandTool:
    """A tool that runs a shell command: `key` is the argument it takes it in, as a string or a list of words."""

    name: str
    key: str
    words: bool
    others: Mapping[str, Any]  # a value for each other argument that must be given

    def call(self, command: str) -> Call:
        """Return a call of the tool that runs `command` in a POSIX shell."""
        return Call(self.name, {**self.others, self.key: ["sh", "-c", command] if self.words else command})


def command_tool(tools: Sequence[Mapping[str, Any]]) -> CommandTool | None:
    """Return the tool that runs a shell command among chat-style definitions, None when none does.

    One whose name says so comes first; of its schema, a required argument called command or cmd decides.
    """
    found = [tool for each in tools if (tool := _as_command_tool(mapping(each.get("function")))) is not None]
    return next((tool for tool in found if _RUNS_COMMANDS.search(tool.name)), found[0] if found else None)


def _as_command_tool(function: Mapping[str, Any]) -> CommandTool | None:
    schema = mapping(function.get("parameters"))
    properties = mapping(schema.get("properties"))
    required = [name for name in sequence(schema.get("required")) if name in properties]
    for key in required:
        kind = _kind(properties[key])
        if _COMMAND.fullmatch(key) and kind in ("string", "array") and isinstance(function.get("name"), str):
            others = {name: _filler(properties[name]) for name in required if name != key}
            return CommandTool(function["name"], key, kind == "array", others)
    return None


def _kind(schema: Any) -> str:
    """Return the first type that a schema allows, null aside; Google writes them in capitals."""
    schema = mapping(schema)
    told = schema.get("type")
    kinds = [told] if isinstance(told, str) else sequence(told)
    kinds = kinds or [_kind(each) for each in sequence(schema.get("anyOf") or schema.get("oneOf"))]
    return next((kind for each in kinds if (kind := str(each).lower()) != "null"), "string")


def _filler(schema: Any) -> Any:
    schema = mapping(schema)
    allowed = sequence(schema.get("enum"))
    if "default" in schema or allowed:
        return schema["default"] if "default" in schema else allowed[0]
    return _FILLER.get(_kind(schema), "run a command")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the probe understands it; `at` is in seconds of the monotonic clock."""

    turns: Sequence[Turn]
    tools: tuple[str, ...]  # the names of those it offers
    tool: CommandTool | None
    streamed: bool
    first: bool  # no request came before it, with tools or without as it is: what stands beside the work is apart
    at: float = field(default_factory=time.monotonic)

    def results(self) -> list[Turn]:
        """Return the results of tools that the request carries."""
        return [turn for turn in self.turns if turn.role == "tool"]


class ProbeModel:
    """An upstream whose `answer` turns each request into what is said to it; `heard` are the requests so far."""

    replays = False

    def __init__(self, answer: Callable[[Asked], ScriptTurn]) -> None:
        self.heard: list[Asked] = []
        self.hanging = asyncio.Event()  # a request is left without an answer
        self._answer = answer
        self._over = asyncio.Event()

    async def send(self, request: ModelRequest) -> ModelResponse:
        """Answer as the script says. Raises: ProviderError when it leaves the request without an answer."""
        dialect = dialect_for(request.path)
        if dialect is None:
            raise ProviderError(f"the scripted model does not speak {request.path}")
        body = loads(request.body)
        offered = dialect.tools(body)
        asked = Asked(
            turns=dialect.request_turns(body),
            tools=tuple(str(mapping(each.get("function")).get("name")) for each in offered),
            tool=command_tool(offered),
            streamed=dialect.streams(request.path, body) is not None,
            first=all(bool(other.tools) != bool(offered) for other in self.heard),
        )
        self.heard.append(asked)
        turn = self._answer(asked)
        if turn.hang:
            self.hanging.set()
            await self._over.wait()
            raise ProviderError("the scripted model never answered")
        return await respond(dialect, request, turn, len(self.heard))

    def give_up(self) -> None:
        """End the requests that were left without an answer."""
        self._over.set()

    async def close(self) -> None:
        """End what hangs; safe to call twice."""
        self.give_up()
