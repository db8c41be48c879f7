"""A token writes into the record of its own rollout only, and for no longer than that lasts."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.proxy.gateway import Gateway
from pytest_benchflow.proxy.script import ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rundir import RunDir
from tests.unit.proxy.door import CHAT, GEMINI, asking, door, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HELLO = ScriptTurn(text="hello", repeat=True)
WAYS: dict[str, Callable[[str], tuple[str, dict[str, str]]]] = {
    "bearer": lambda token: (CHAT, {"Authorization": f"Bearer {token}"}),
    "x-api-key": lambda token: (CHAT, {"x-api-key": token}),
    "x-goog-api-key": lambda token: (GEMINI, {"x-goog-api-key": token}),
    "api-key": lambda token: (CHAT, {"api-key": token}),
    "query": lambda token: (f"{GEMINI}?key={token}", {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_token_opens_one_rollouts_door_only(tmp_path: Path, way: str) -> None:
    async def work() -> None:
        gateway, upstreams = Gateway(), (ScriptedUpstream([HELLO]), ScriptedUpstream([HELLO]))
        async with (
            door(tmp_path / "one", upstreams[0], gateway=gateway) as one,
            door(tmp_path / "other", upstreams[1], gateway=gateway) as other,
        ):
            path, headers = WAYS[way](one.token)
            said = {**asking("what one says"), "contents": []}
            assert (await one.post(said, path, headers=headers)).status == 200
            assert (await other.post(said, path, headers=headers)).status == 401
            assert (len(upstreams[0].requests), len(upstreams[1].requests)) == (1, 0)
            assert [record["response"]["status_code"] for record in one.records()] == [200]
            # That somebody tried is told, without a word of what was said.
            (attempt,) = other.records()
            assert (attempt["error"]["type"], attempt["request"]["body"]) == ("unauthorized", None)
            assert b"what one says" not in other.rundir.llm.read_bytes()
            assert one.token.encode() not in other.rundir.llm.read_bytes() + one.rundir.llm.read_bytes()

    run(work())


@pytest.mark.parametrize("path", [CHAT, "/v1/models"], ids=["call", "models"])
def test_a_token_ends_with_its_rollout_even_on_a_connection_that_is_still_open(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        gateway, rundir = Gateway(), RunDir(tmp_path / "ended").create()
        upstream = ScriptedUpstream([HELLO])
        ended = await gateway.open(rundir=rundir, upstream=upstream, redactor=Redactor(), model="m")
        token, body = ended.token, json.dumps(asking("x"))
        head = f"Host: x\r\nx-api-key: {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        request = f"{'POST' if path == CHAT else 'GET'} {path} HTTP/1.1\r\n{head}{body}".encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", await ended.port())
        writer.write(request)
        assert b" 200 " in await reader.readline()
        before = len(upstream.requests)
        closing = asyncio.ensure_future(ended.close())
        writer.write(request)
        report = await closing
        left = await reader.read()
        assert left.count(b"HTTP/1.1 200") == 0, "it is answered once, before the close"
        writer.close()
        async with door(tmp_path / "later", ScriptedUpstream([HELLO]), gateway=gateway) as later:
            assert (await later.post(asking("x"), headers={"x-api-key": token})).status == 401
        assert len(upstream.requests) == before
        lines = list(read_records(rundir.llm)) if rundir.llm.exists() else []
        assert report.received == report.recorded == len(lines) == before
        assert ended.token == ""

    run(work())


@pytest.mark.parametrize("shown", ["", "bf-", "Bearer ", "\u00e9"], ids=["empty", "prefix", "scheme", "not-ascii"])
def test_no_empty_key_opens_a_door_whose_token_is_void(tmp_path: Path, shown: str) -> None:
    async def work() -> None:
        async with door(tmp_path, ScriptedUpstream([HELLO])) as agent:
            agent.endpoint.token = ""
            headers = {"x-api-key": shown, "Authorization": f"Bearer {shown}"}
            assert (await agent.post(asking("x"), f"{CHAT}?key=", headers=headers)).status == 401

    run(work())
