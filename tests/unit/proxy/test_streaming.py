"""Streams pass piece by piece and are put together beside; clients leave; wires break."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.proxy._bodies import answer_body
from pytest_benchflow.proxy.http import HttpUpstream
from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from tests.unit.proxy.door import CHAT, STREAMS, asking, door, run, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pytest_benchflow.contracts import ModelRequest

LONG = ScriptTurn(text="Grüße ☃ " * 20, calls=(Call("shell", {"cmd": "ls"}),))


class Pieces:
    """An upstream whose stream comes in pieces of a given size."""

    replays = False

    def __init__(self, raw: bytes, size: int, kind: str) -> None:
        self._raw, self._size, self._kind = raw, size, kind

    async def send(self, request: ModelRequest) -> ModelResponse:
        assert request.path in STREAMS.values()
        return ModelResponse(200, {"content-type": self._kind}, self._chunks())

    async def _chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._raw), self._size):
            yield self._raw[start : start + self._size]

    async def close(self) -> None:
        return None


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000], ids=lambda size: f"{size}-bytes")
def test_where_chunks_end_does_not_matter(tmp_path: Path, name: str, size: int) -> None:
    path = STREAMS[name]
    dialect = dialect_for(path)
    assert dialect is not None
    body = answer_body(dialect.name, LONG, 1, {"model": "m"})
    raw = b"".join(dialect.disassemble(body, {"stream_options": {"include_usage": True}}, path))
    kind = "application/json" if name == "generateContent-array" else "text/event-stream"

    async def work() -> None:
        async with door(tmp_path, Pieces(raw, size, kind)) as agent:
            answer = await agent.post(asking("x", stream=True), path)
            assert answer.raw == raw
            assert answer.headers["Content-Type"] == kind
            (record,) = agent.records()
            assert (record["response"]["body"], record["error"]) == (body, None)
            assert record["metadata"]["stream"] is True

    run(work())


def test_what_comes_after_the_end_of_a_chat_stream_is_passed_on_and_not_taken_for_the_answer(tmp_path: Path) -> None:
    chat = dialect_for(CHAT)
    assert chat is not None
    body = answer_body(chat.name, LONG, 1, {"model": "m"})
    raw = b"".join(chat.disassemble(body, {}, CHAT))
    more = b'data: {"choices": [{"index": 0, "delta": {"content": " and more"}}], "extra": 1}\n\n: bye\n\njunk'

    async def work() -> None:
        async with door(tmp_path, Pieces(raw + more, 50, "text/event-stream")) as agent:
            answer = await agent.post(asking("x", stream=True))
            (record,) = agent.records()
        assert answer.raw == raw + more
        found = record["response"]["body"]
        assert (found["choices"], record["error"]) == (body["choices"], None)
        assert "extra" not in found

    run(work())


def test_the_first_piece_arrives_before_the_last_is_made(tmp_path: Path) -> None:
    async def work() -> None:
        turn = ScriptTurn(text="one two three four five six seven eight nine", pause=0.2)
        async with door(tmp_path, ScriptedUpstream([turn])) as agent:
            begun = time.monotonic()
            headers = {"x-api-key": agent.token}
            async with agent.session.post(agent.url + CHAT, json=asking("x", stream=True), headers=headers) as answer:
                assert await answer.content.readany()
                first = time.monotonic() - begun
                await answer.read()
            assert first < (time.monotonic() - begun) / 2

    run(work())


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_over_real_http_is_the_same(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        async with (
            serving(ScriptedUpstream([LONG])) as url,
            door(tmp_path, HttpUpstream(url, api_key="k", model="m")) as agent,
        ):
            answer = await agent.post(asking("x", stream=True), STREAMS[name])
            assert (answer.status, answer.cut) == (200, False)
            (record,) = agent.records()
            asked = asking("x", stream=True)
            assert record["response"]["body"] == answer_body(str(name).removesuffix("-array"), LONG, 1, asked)
            assert record["error"] is None

    run(work())


@pytest.mark.parametrize("live", [True, False], ids=["over-http", "in-process"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_cut_stream_is_cut_for_the_agent_and_recorded_as_partial(tmp_path: Path, name: str, *, live: bool) -> None:
    turn = ScriptTurn(text="x" * 2000, cut=1500)

    async def check(upstream: HttpUpstream | ScriptedUpstream) -> None:
        async with door(tmp_path, upstream) as agent:
            answer = await agent.post(asking("x", stream=True), STREAMS[name])
            assert answer.cut
            (record,) = agent.records()
            assert record["error"]["type"] == "incomplete_stream"
            dialect = dialect_for(STREAMS[name])
            assert dialect is not None
            response = record["response"]
            assert dialect.outcome(response["status_code"], response["body"], record["error"]).kind == "partial"
            assert dialect.usage(response["body"]) is None or name == "messages"

    async def work() -> None:
        scripted = ScriptedUpstream([turn])
        if not live:
            await check(scripted)
            return
        async with serving(scripted) as url:
            await check(HttpUpstream(url, api_key=None, model="m"))

    run(work())


def test_a_whole_answer_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            serving(ScriptedUpstream([ScriptTurn(text="x" * 2000, cut=1500)])) as url,
            door(tmp_path, HttpUpstream(url, api_key=None, model="m")) as agent,
        ):
            answer = await agent.post(asking("x"))
            assert answer.status == 502
            (record,) = agent.records()
            assert record["error"]["type"] == "provider"
            assert record["metadata"]["upstream_status"] == 200

    run(work())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_answer_nobody_waits_for_is_drained_and_recorded(tmp_path: Path, *, stream: bool) -> None:
    async def work() -> None:
        turn = ScriptTurn(text="a late answer, but a billed one", delay=0.2, pause=0.05)
        async with door(tmp_path, ScriptedUpstream([turn])) as agent:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(agent.post(asking("x", stream=stream)), 0.1 if not stream else 0.35)
            await until(agent.records)
            (record,) = agent.records()
            assert record["metadata"]["client_gone"] is True
            assert record["response"]["body"]["choices"][0]["message"]["content"] == turn.text
            assert record["response"]["body"]["usage"]["total_tokens"] > 0
            assert record["error"] is None

    run(work())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_without_draining_the_call_ends_with_its_client(tmp_path: Path, *, stream: bool) -> None:
    async def work() -> None:
        turn = ScriptTurn(text="never heard " * 100, delay=0 if stream else 60, pause=0.5)
        async with door(tmp_path, ScriptedUpstream([turn]), drain=False) as agent:
            begun = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(agent.post(asking("x", stream=stream)), 1.2)
            await until(agent.records)
            assert time.monotonic() - begun < 10
            (record,) = agent.records()
            assert record["error"]["type"] == "client_gone"
            assert record["metadata"]["client_gone"] is True
            assert (record["response"] is not None) == stream, "what came before the cut is kept"

    run(work())


def test_the_same_request_sent_again_while_the_first_runs_gives_two_lines(tmp_path: Path) -> None:
    async def work() -> None:
        turns = [ScriptTurn(text="late", delay=0.5), ScriptTurn(text="in time")]
        async with door(tmp_path, ScriptedUpstream(turns)) as agent:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(agent.post(asking("x")), 0.2)
            assert (await agent.post(asking("x"))).status == 200
            await until(lambda: len(agent.records()) == 2)
            assert [r["metadata"]["started_seq"] for r in agent.records()] == [1, 0]
            assert [r["metadata"]["client_gone"] for r in agent.records()] == [False, True]

    run(work())


def test_a_client_that_leaves_within_its_request_has_a_line(tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path, ScriptedUpstream([])) as agent:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(agent.url.rpartition(":")[2]))
            head = (
                f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {agent.token}\r\nContent-Length: 999\r\n\r\n"
            )
            writer.write(head.encode() + b'{"half')
            await writer.drain()
            await until(lambda: agent.endpoint.open_requests)
            writer.close()
            await writer.wait_closed()
            await until(agent.records)
            (record,) = agent.records()
            assert (record["error"]["type"], record["response"]) == ("client_gone", None)
            assert not await reader.read()

    run(work())


def test_an_encoded_answer_reaches_the_agent_as_it_understands_it(tmp_path: Path) -> None:
    async def work() -> None:
        asked: list[str | None] = []

        async def gzipping(request: web.Request) -> web.Response:
            asked.append(request.headers.get("Accept-Encoding"))
            answer = web.json_response({"choices": [{"message": {"content": "x" * 5000}}]})
            answer.enable_compression(web.ContentCoding.gzip)
            return answer

        app = web.Application()
        app.router.add_post(CHAT, gzipping)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            async with door(
                tmp_path, HttpUpstream(f"http://127.0.0.1:{site.port}/v1", api_key=None, model="m")
            ) as agent:
                answer = await agent.post(asking("x"))
                assert asked == ["identity"]
                assert "Content-Encoding" not in answer.headers
                assert json.loads(answer.raw)["choices"][0]["message"]["content"] == "x" * 5000
                assert agent.records()[0]["response"]["body"] == answer.json
        finally:
            await runner.cleanup()

    run(work())


def test_a_connection_serves_many_exchanges(tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path, ScriptedUpstream([ScriptTurn(text="x", repeat=True)])) as agent:
            connector = aiohttp.TCPConnector(limit=1)
            async with aiohttp.ClientSession(connector=connector) as session:
                for stream in (False, True, False, True):
                    body = asking("x", stream=stream)
                    headers = {"x-api-key": agent.token}
                    async with session.post(agent.url + CHAT, json=body, headers=headers) as answer:
                        await answer.read()
            assert len(agent.records()) == 4

    run(work())
