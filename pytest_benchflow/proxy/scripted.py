"""A model whose answers are written down beforehand: for tests, and for making recordings."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.errors import ProviderError
from pytest_benchflow.proxy._bodies import answer_body
from pytest_benchflow.records.jsontext import dumps, loads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from pytest_benchflow.contracts import Dialect, ModelRequest
    from pytest_benchflow.proxy.script import ScriptTurn


class ScriptedUpstream:
    """An upstream that gives the answers of a script; `requests` are those it was sent."""

    replays = False

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
        return await respond(dialect, request, turn, number)

    async def close(self) -> None:
        """Do nothing: a script holds no connection."""

    def _next(self, body: bytes) -> tuple[int, ScriptTurn]:
        matching = [each for each in self._turns if each[1].match and json.dumps(each[1].match)[1:-1].encode() in body]
        for number, turn in matching or [each for each in self._turns if each[1].match is None]:
            if not turn.repeat:
                self._turns.remove((number, turn))
            return number, turn
        raise ProviderError("the script of the model has no more turns for this request")


async def respond(dialect: Dialect, request: ModelRequest, turn: ScriptTurn, number: int) -> ModelResponse:
    """Answer a request with a turn, streamed where it asks for that; `number` makes the ids of the answer."""
    await asyncio.sleep(turn.delay)
    if turn.status != 200:
        raw = dialect.error_body(turn.status, turn.error or "scripted failure", "scripted")
        return ModelResponse(turn.status, {"Content-Type": "application/json"}, _whole(raw, turn))
    asked = loads(request.body)
    body = answer_body(dialect.name, turn, number, asked)
    streamed = dialect.streams(request.path, asked)
    if streamed:
        parts = dialect.disassemble(body, asked, request.path)
        return ModelResponse(200, {"Content-Type": f"{streamed}; charset=utf-8"}, _stream(parts, turn))
    return ModelResponse(200, {"Content-Type": "application/json"}, _whole(dumps(body), turn))


async def _whole(raw: bytes, turn: ScriptTurn) -> AsyncIterator[bytes]:
    yield raw if turn.cut is None else raw[: turn.cut]
    if turn.cut is not None:
        raise ProviderError(f"the script cut its answer after {turn.cut} bytes")


async def _stream(parts: Iterable[bytes], turn: ScriptTurn) -> AsyncIterator[bytes]:
    left = turn.cut
    for part in parts:
        await asyncio.sleep(turn.pause)
        if left is not None:
            yield part[:left]
            left -= len(part)
            if left <= 0:
                raise ProviderError(f"the script cut its answer after {turn.cut} bytes")
        else:
            yield part
