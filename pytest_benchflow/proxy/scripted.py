"""A model whose answers are written down beforehand: for tests, and for making recordings."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Mapping  # noqa: TC003 - read by pydantic
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.errors import ProviderError, UsageError
from pytest_benchflow.proxy._bodies import answer_body
from pytest_benchflow.records.jsontext import dumps, loads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from pytest_benchflow.contracts import Dialect, ModelRequest


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a scripted answer; `arguments` is an object, or the JSON text as it is."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptTurn:
    """One answer. Turns are used in order; one with `match` only by a request that holds that text."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    text: str | None = None
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    refusal: str | None = None
    finish: str | None = None  # the format's own word, over stop or tool_calls
    usage: bool = True
    delay: float = 0.0  # seconds before the answer begins
    pause: float = 0.0  # seconds before each event of a stream
    status: int = 200
    error: str | None = None  # what the error body of a status says
    cut: int | None = None  # end the answer abruptly after so many bytes
    hang: bool = False  # never answer
    match: str | None = None
    repeat: bool = False  # answer every request that matches, not only one


class ScriptedUpstream:
    """An upstream that gives the answers of a script; `requests` are those it was sent."""

    def __init__(self, turns: Iterable[ScriptTurn]) -> None:
        self.requests: list[ModelRequest] = []
        self._turns = [(number, turn) for number, turn in enumerate(turns, 1)]

    async def send(self, request: ModelRequest) -> ModelResponse:
        """Answer with the next turn of the script. Raises: ProviderError when it has no more."""
        self.requests.append(request)
        dialect = dialect_for(request.path)
        if dialect is None:
            raise ProviderError(f"the scripted model does not speak {request.path}")
        number, turn = self._next(request.body)
        if turn.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(turn.delay)
        if turn.status != 200:
            raw = dialect.error_body(turn.status, turn.error or "scripted failure", "scripted")
            return ModelResponse(turn.status, {"Content-Type": "application/json"}, _whole(raw, turn))
        asked = loads(request.body)
        body = answer_body(dialect.name, turn, number, asked)
        if dialect.streams(request.path, asked):
            headers = {"Content-Type": "text/event-stream; charset=utf-8"}
            return ModelResponse(200, headers, _stream(dialect, body, asked, turn))
        return ModelResponse(200, {"Content-Type": "application/json"}, _whole(dumps(body), turn))

    async def close(self) -> None:
        """Do nothing: a script holds no connection."""

    def _next(self, body: bytes) -> tuple[int, ScriptTurn]:
        matching = [each for each in self._turns if each[1].match and json.dumps(each[1].match)[1:-1].encode() in body]
        for number, turn in matching or [each for each in self._turns if each[1].match is None]:
            if not turn.repeat:
                self._turns.remove((number, turn))
            return number, turn
        raise ProviderError("the script of the model has no more turns for this request")


def load_script(path: Path) -> list[ScriptTurn]:
    """Read a script: a TOML or JSON file with a list `turns`. Raises: UsageError naming file, turn and key."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as a script of a model ({error})") from None
    turns = data.get("turns") if isinstance(data, dict) else data
    if not isinstance(turns, list):
        raise UsageError(f"{path}: holds no list of turns ([[turns]] in TOML)")
    return [_turn(path, number, turn) for number, turn in enumerate(turns, 1)]


def _turn(path: Path, number: int, values: Any) -> ScriptTurn:
    try:
        return TypeAdapter(ScriptTurn).validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part + 1) if isinstance(part, int) else part for part in first["loc"])
        allowed = ", ".join(each.name for each in fields(Call if "calls" in first["loc"] else ScriptTurn))
        raise UsageError(f"{path}: turn {number}: {place}: {first['msg']}; it takes {allowed}") from None


async def _whole(raw: bytes, turn: ScriptTurn) -> AsyncIterator[bytes]:
    yield raw if turn.cut is None else raw[: turn.cut]
    if turn.cut is not None:
        raise ProviderError(f"the script cut its answer after {turn.cut} bytes")


async def _stream(
    dialect: Dialect, body: Mapping[str, Any], asked: Mapping[str, Any], turn: ScriptTurn
) -> AsyncIterator[bytes]:
    left = turn.cut
    for part in dialect.disassemble(body, asked):
        await asyncio.sleep(turn.pause)
        if left is not None:
            yield part[:left]
            left -= len(part)
            if left <= 0:
                raise ProviderError(f"the script cut its answer after {turn.cut} bytes")
        else:
            yield part
