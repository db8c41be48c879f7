"""What an invented agent did, whatever protocol it spoke."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.corpus.text import WORDS

if TYPE_CHECKING:
    from benchmarks.corpus.text import Text

Json = dict[str, Any]


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: Json
    output: str


@dataclass(frozen=True)
class Turn:
    """One answer of the model, and the output of the tools it called."""

    text: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    parameters: Json


def make_tools(text: Text, count: int) -> list[Tool]:
    return [_make_tool(text, index) for index in range(count)]


def _make_tool(text: Text, index: int) -> Tool:
    names = ["command", *text.rng.sample(WORDS, 3)]
    name = "terminal" if index == 0 else f"{text.word()}_{index}"
    description = text.prose(260)
    properties = {
        each: {"type": text.rng.choice(("string", "integer", "boolean")), "description": text.prose(70)}
        for each in names
    }
    return Tool(name, description, {"type": "object", "properties": properties, "required": names[:1]})


def make_turn(text: Text, tools: list[Tool], serial: str, tool_bytes: int) -> Turn:
    """Make a turn of one call, or of two that share `tool_bytes`; `serial` makes its ids unique."""
    count = 2 if text.rng.random() < 0.15 else 1
    calls = tuple(_make_call(text, tools, f"{serial}{index}", tool_bytes, count) for index in range(count))
    return Turn(text=text.prose(text.rng.randint(60, 400)), calls=calls)


def _make_call(text: Text, tools: list[Tool], serial: str, tool_bytes: int, share: int) -> ToolCall:
    rng = text.rng
    call_id = f"call_{serial}{rng.getrandbits(64):016x}"
    tool = rng.choice(tools)
    arguments: Json = {"command": f"grep -rn {text.word()} src/ && sed -n '1,40p' {text.word()}.py"}
    for key in list(tool.parameters["properties"])[1:2]:
        arguments[key] = text.word()
    output = text.tool_output(int(tool_bytes * rng.uniform(0.5, 1.5) / share))
    return ToolCall(call_id, tool.name, arguments, output)
