"""Who gets in, what goes upstream, and that each request ends as exactly one line."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import socket
import weakref
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from pytest_benchflow.proxy.gateway import Gateway
from pytest_benchflow.proxy.http import HttpUpstream
from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rundir import RunDir
from tests.unit.proxy.door import CHAT, GEMINI, PATHS, asking, door, run, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pytest_benchflow.contracts import ModelRequest

HELLO = ScriptTurn(text="hello", repeat=True)


def sent(upstream: ScriptedUpstream) -> ModelRequest:
    return upstream.requests[-1]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_an_answer_reaches_the_agent_and_the_record_alike(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream) as agent:
            body = json.dumps(
                {"model": "m", "messages": [], "input": [], "n": 1.50, "é": "é\u2028"}, ensure_ascii=False
            )
            answer = await agent.post(body.encode(), path)
            assert answer.status == 200
            assert sent(upstream).body == body.encode()
            (record,) = agent.records()
            assert record["request"]["body"] == json.loads(body)
            assert record["response"]["body"] == answer.json
            assert (record["response"]["status_code"], record["error"]) == (200, None)
            assert (record["request"]["method"], record["request"]["path"]) == ("POST", path)
            assert record["metadata"]["raw_sha256"] == hashlib.sha256(body.encode()).hexdigest()
            assert record["metadata"]["started_seq"] == 0
            assert record["metadata"]["client_gone"] is False
            assert record["duration_ms"] > 0

    run(work())


def test_the_token_in_a_query_opens_the_door_and_goes_no_further(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream) as agent:
            assert (await agent.post({"contents": []}, f"{GEMINI}?key={agent.token}&x=1", headers={})).status == 200
            assert sent(upstream).path == f"{GEMINI}?x=1"
            assert agent.token not in agent.rundir.llm.read_text(encoding="utf-8")
            assert (await agent.post({"contents": []}, f"{GEMINI}?key=bf-wrong", headers={})).status == 401

    run(work())


@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "x-goog-api-key"])
def test_the_token_opens_the_door_and_stays_here(tmp_path: Path, header: str) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream) as agent:
            value = f"Bearer {agent.token}" if header == "Authorization" else agent.token
            assert (await agent.post(asking(agent.token), headers={header: value, "X-Kept": "1"})).status == 200
            assert header not in sent(upstream).headers
            assert sent(upstream).headers["X-Kept"] == "1"
            assert agent.token not in agent.rundir.llm.read_text(encoding="utf-8")

    run(work())


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}, {"x-api-key": "bf-"}],
    ids=["none", "wrong", "basic", "prefix"],
)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_nobody_else_gets_in_and_the_attempt_is_recorded(tmp_path: Path, path: str, headers: dict[str, str]) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream) as agent:
            answer = await agent.post(asking("let me in"), path, headers=headers)
            assert answer.status == 401
            assert answer.json["error"]["message"]
            assert ("type" in answer.json) == (path == PATHS["messages"])
            assert upstream.requests == []
            (record,) = agent.records()
            assert record["error"]["type"] == "unauthorized"
            assert record["response"]["status_code"] == 401

    run(work())


def test_a_token_is_of_one_rollout_and_void_after_its_close(tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path / "a", ScriptedUpstream([HELLO])) as one:
            async with door(tmp_path / "b", ScriptedUpstream([HELLO])) as other:
                assert one.token != other.token
                foreign = {"x-api-key": other.token}
                assert (await one.post(asking("x"), headers=foreign)).status == 401
            first, second = await one.endpoint.close(), await one.endpoint.close()
            assert first == second
            with pytest.raises(aiohttp.ClientConnectionError):
                await one.post(asking("x"))

    run(work())


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
def test_the_model_list_is_answered_here_and_is_no_exchange(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream) as agent:
            answer = await agent.post(b"", path, method="GET")
            assert [model["id"] for model in answer.json["data"]] == ["m"]
            assert (upstream.requests, agent.records()) == ([], [])

    run(work())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"),
        ("GET", "/model/info"),
        ("GET", CHAT),
        ("POST", "/v1/chat/completions/../../admin"),
        ("POST", "/v1/models/gemini:countTokens"),
        ("DELETE", "/"),
    ],
    ids=["embeddings", "model-info", "get", "dots", "other-format", "root"],
)
def test_any_other_path_is_refused_and_recorded(tmp_path: Path, method: str, path: str) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream) as agent:
            assert (await agent.post(b"", path, method=method)).status == 404
            assert upstream.requests == []
            (record,) = agent.records()
            assert (record["error"]["type"], record["response"]["status_code"]) == ("unknown_path", 404)

    run(work())


def test_controls_are_stripped_from_headers_query_and_body(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream) as agent:
            body = asking("x", num_retries=9, api_base="http://evil", api_key="k", litellm_metadata={}, temperature=0.1)
            headers = {"x-api-key": agent.token, "x-litellm-timeout": "1", "num-retries": "3", "anthropic-version": "v"}
            path = CHAT + "?api_base=http://evil&keep=%20a&key=k"
            assert (await agent.post(body, path, headers=headers)).status == 200
            assert json.loads(sent(upstream).body) == asking("x", temperature=0.1)
            assert sent(upstream).path == CHAT + "?keep=%20a"
            kept = {name.lower() for name in sent(upstream).headers}
            assert "anthropic-version" in kept
            assert not kept & {"x-litellm-timeout", "num-retries", "authorization", "x-api-key", "host"}
            (record,) = agent.records()
            assert record["request"]["body"] == asking("x", temperature=0.1)
            assert record["request"]["path"] == CHAT
            assert sorted(record["metadata"]["stripped"]) == [
                "api_base",
                "api_base",
                "api_key",
                "key",
                "litellm_metadata",
                "num_retries",
            ]

    run(work())


def test_nested_names_that_look_like_controls_are_the_agents_business(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream) as agent:
            body = json.dumps(asking("api_base num_retries", metadata={"api_key": "mine"}), indent=2).encode()
            await agent.post(body)
            assert sent(upstream).body == body

    run(work())


# The body, how it is recorded, and whether as text; what is no JSON object goes no further.
ODD_BODIES: dict[str, tuple[bytes, Any, bool]] = {
    "text": (b"not json", "not json", True),
    "nan": (b'{"messages": [NaN]}', '{"messages": [NaN]}', True),
    "invalid-utf-8": (b'{"a": "\xff"}', '{"a": "\\xff"}', True),
    "empty": (b"", None, False),
    "list": (b"[1,\n2]", [1, 2], False),
    "closing-early": (b"1]],[[2", "1]],[[2", True),
    "surrogate": (b'{"messages": ["\\ud83d"]}', {"messages": ["\ud83d"]}, False),
    "pretty": (b'{\r\n "messages": [\n "a\\nb" ] }\n', {"messages": ["a\nb"]}, False),
    "separator": ('{"messages": ["\u2028"]}'.encode(), {"messages": ["\u2028"]}, False),
    "deep": (b"[" * 3000 + b"]" * 3000, "[" * 3000 + "]" * 3000, True),
    "big-number": (b'{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}, False),
}


@pytest.mark.parametrize("case", ODD_BODIES.values(), ids=ODD_BODIES.keys())
def test_no_body_breaks_the_recorder(tmp_path: Path, case: tuple[bytes, Any, bool]) -> None:
    raw, recorded, as_text = case
    upstream = ScriptedUpstream([HELLO])

    async def work() -> None:
        async with door(tmp_path, upstream) as agent:
            passes = isinstance(recorded, dict)
            assert (await agent.post(raw)).status == (200 if passes else 400)
            assert [request.body for request in upstream.requests] == [raw] * passes, "what goes upstream is what came"
            text = agent.rundir.llm.read_bytes()
            assert text.count(b"\n") == 1
            record = json.loads(text)
            assert record["request"]["body"] == recorded
            assert (record["metadata"].get("request_body") == "text") == as_text
            assert len(agent.records()) == 1, "the package's own reader reads it too"

    run(work())


@pytest.mark.parametrize("path", [*PATHS.values(), GEMINI], ids=[*PATHS, "generateContent"])
@pytest.mark.parametrize("raw", [b'{"a": "\xff"}', b"not json", b"", b"[1]"], ids=["utf-8", "text", "empty", "list"])
def test_a_body_that_is_no_json_object_is_refused_in_the_formats_words_and_recorded_once(
    tmp_path: Path, path: str, raw: bytes
) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream) as agent:
            answer = await agent.post(raw, path)
            assert (answer.status, upstream.requests) == (400, [])
            assert "not a JSON object" in answer.json["error"]["message"]
            kind = answer.json["error"].get("status" if path == GEMINI else "type")
            assert kind == ("INVALID_ARGUMENT" if path == GEMINI else "invalid_request_error")
            assert answer.json.get("type") == ("error" if path == PATHS["messages"] else None)
            (record,) = agent.records()
            assert (record["response"]["status_code"], record["error"]["type"]) == (400, "invalid_request_error")

    run(work())


def test_a_body_of_70_mib_passes_and_is_recorded(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([ScriptTurn(text="y" * (70 << 20))])
        async with door(tmp_path, upstream) as agent:
            answer = await agent.post(asking("x" * (70 << 20)))
            assert answer.status == 200
            assert len(sent(upstream).body) > 70 << 20
            assert agent.rundir.llm.stat().st_size > 140 << 20

    run(work())


def test_a_body_is_read_only_with_the_token(tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path, ScriptedUpstream([HELLO])) as agent:
            reader, writer = await asyncio.open_connection("127.0.0.1", await agent.endpoint.port())
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nonly a part".encode())
            assert b" 401 " in await reader.readline(), "it is refused although the body never comes"
            writer.close()
            (record,) = agent.records()
            assert record["request"]["body"] is None
            assert (record["metadata"]["request_body"], record["metadata"]["request_bytes"]) == ("left out", 1_000_000)

    run(work())


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
@pytest.mark.parametrize("told", [True, False], ids=["told", "chunked"])
def test_a_body_too_long_to_pass_on_is_refused_and_recorded(tmp_path: Path, path: str, told: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 1000

    async def work() -> None:
        upstream = ScriptedUpstream([HELLO])
        async with door(tmp_path, upstream, gateway=Gateway(longest_body=4096)) as agent:
            headers = {"x-api-key": agent.token}
            for size, status in ((5000, 413), (4096, 200)):
                whole = b'{"text":"' + b"x" * (size - 11) + b'"}'
                data = chunks() if size > 4096 and not told else whole
                async with agent.session.post(agent.url + path, data=data, headers=headers) as answer:
                    assert answer.status == status
                    said = await answer.json()
                    assert bool(said.get("error")) == (status == 413)
                    assert status == 200 or ("type" in said) == (path == PATHS["messages"])
            assert len(upstream.requests) == 1
            refused, _ = agent.records()
            assert (refused["error"]["type"], refused["response"]["status_code"]) == ("too_large", 413)
            assert refused["request"]["body"] is None
            assert refused["metadata"]["request_bytes"] == (5000 if told else None)

    run(work())


def test_a_long_body_that_asks_for_leave_first_gets_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path, ScriptedUpstream([HELLO])) as agent:
            headers = {"x-api-key": agent.token, "Expect": "100-continue"}
            assert (await agent.post(asking("x" * 100_000), headers=headers)).status == 200

    run(work())


def test_a_socket_made_elsewhere_serves_the_same_endpoint(tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path, ScriptedUpstream([HELLO])) as agent:
            listener = socket.create_server(("127.0.0.1", 0))
            await agent.endpoint.adopt(listener)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}{CHAT}"
            async with agent.session.post(url, json=asking("x"), headers={"x-api-key": agent.token}) as answer:
                assert answer.status == 200
            assert (await agent.post(asking("y"))).status == 200
            assert len(agent.records()) == 2

    run(work())


def test_who_is_cancelled_while_it_begins_to_listen_leaves_nothing_that_listens(tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path, ScriptedUpstream([HELLO])) as agent:
            listener = socket.create_server(("127.0.0.1", 0))
            beginning = asyncio.create_task(agent.endpoint.adopt(listener))
            # It serves from its first turn on, and is ready after one more.
            await asyncio.sleep(0)
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
        assert listener.fileno() == -1

    run(work())


def test_lines_come_in_the_order_exchanges_end(tmp_path: Path) -> None:
    async def work() -> None:
        turns = [ScriptTurn(text="slow", delay=0.4, match="slow"), ScriptTurn(text="fast", match="fast")]
        async with door(tmp_path, ScriptedUpstream(turns)) as agent:
            slow = asyncio.create_task(agent.post(asking("slow")))
            await asyncio.sleep(0.1)
            await agent.post(asking("fast"))
            assert agent.rundir.llm_pending.read_bytes().count(b"\n") == 2
            await slow
            assert [record["metadata"]["started_seq"] for record in agent.records()] == [1, 0]
            assert agent.rundir.llm_pending.read_bytes() == b""

    run(work())


def test_secrets_are_taken_out_of_requests_and_answers(tmp_path: Path) -> None:
    async def work() -> None:
        secret = "s3cret-value-of-the-host"
        upstream = ScriptedUpstream(
            [ScriptTurn(text=f"it is {secret}", calls=(Call("sh", {"cmd": f"echo {secret}"}),))]
        )
        async with door(tmp_path, upstream, secrets=[secret]) as agent:
            answer = await agent.post(asking(f"tell {secret}"))
            assert secret in answer.raw.decode()
            assert secret.encode() in sent(upstream).body
            assert secret not in agent.rundir.llm.read_text(encoding="utf-8")
            assert agent.records()[0]["metadata"]["redactions"] == 3

    run(work())


def test_law_1_holds_with_32_streams_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        turns = [
            ScriptTurn(text=f"answer {number} " * 50, match=f"question {number}.", pause=0.001) for number in range(32)
        ]
        async with door(tmp_path, ScriptedUpstream(turns)) as agent:
            asked = (agent.post(asking(f"question {number}.", stream=True)) for number in range(32))
            answers = await asyncio.gather(*asked)
            assert all(answer.raw.endswith(b"data: [DONE]\n\n") for answer in answers)
            records = agent.records()
            assert sorted(record["metadata"]["started_seq"] for record in records) == list(range(32))
            for record in records:
                number = record["request"]["body"]["messages"][0]["content"].split()[1].strip(".")
                said = record["response"]["body"]["choices"][0]["message"]["content"]
                assert said == f"answer {number} " * 50
                assert record["error"] is None

    run(work())


def test_an_endpoint_closed_in_the_middle_records_what_was_open(tmp_path: Path) -> None:
    async def work() -> None:
        gateway = Gateway()
        rundir = RunDir(tmp_path).create()
        upstream = ScriptedUpstream([ScriptTurn(hang=True)])
        endpoint = await gateway.open(rundir=rundir, upstream=upstream, redactor=Redactor(), model="m", drain=False)
        url = f"http://127.0.0.1:{await endpoint.port()}{CHAT}"
        headers = {"x-api-key": endpoint.token}
        async with aiohttp.ClientSession() as session:
            hanging = asyncio.create_task(session.post(url, json=asking("x"), headers=headers))
            await until(lambda: upstream.requests)
            assert len(endpoint.open_requests) == 1
            report = await endpoint.close()
            with pytest.raises(aiohttp.ClientError):
                await hanging
        assert (report.received, report.recorded, len(report.in_flight)) == (1, 1, 1)
        record = json.loads(rundir.llm.read_bytes())
        assert (record["error"]["type"], record["response"]) == ("closed", None)
        assert record["request"]["request_id"] == report.in_flight[0]

    run(work())


@pytest.mark.parametrize("again", [False, True], ids=["for-good", "for-another-try"])
def test_a_request_that_its_client_gave_up_is_open_until_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr("pytest_benchflow.proxy.gateway._CLOSING_GRACE_SECONDS", 0.1)

    async def work() -> None:
        rundir = RunDir(tmp_path).create()
        upstream = ScriptedUpstream([ScriptTurn(hang=True), ScriptTurn(text="hello")])
        endpoint = await Gateway().open(rundir=rundir, upstream=upstream, redactor=Redactor(), model="m")
        url = f"http://127.0.0.1:{await endpoint.port()}{CHAT}"
        headers = {"api-key": endpoint.token}
        async with aiohttp.ClientSession() as session:
            impatient = asyncio.create_task(session.post(url, json=asking("x"), headers=headers))
            await until(lambda: upstream.requests)
            impatient.cancel()
            await asyncio.wait([impatient])
            if again:
                async with session.post(url, json=asking("x"), headers=headers) as answer:
                    assert answer.status == 200
            assert len(endpoint.open_requests) == int(not again)
            report = await endpoint.close()
        assert (report.received, len(report.in_flight)) == (1 + again, int(not again))
        errors = {record["metadata"]["started_seq"]: record["error"] for record in read_records(rundir.llm)}
        assert errors[0]["type"] == "client_gone"
        assert len(errors) == report.recorded == report.received

    run(work())


@pytest.mark.parametrize("hang", [False, True], ids=["answered", "hanging"])
def test_a_request_that_races_with_the_close_is_one_line_or_none(tmp_path: Path, hang: bool) -> None:
    async def round_of(ticks: int, keys: int) -> None:
        rundir = RunDir(tmp_path / f"{ticks}-{keys}").create()
        upstream = ScriptedUpstream([ScriptTurn(text="hello", hang=hang, repeat=True)])
        endpoint = await Gateway().open(
            rundir=rundir, upstream=upstream, redactor=Redactor(), model="m", drain=not hang
        )
        port, body = await endpoint.port(), json.dumps(asking("x"))
        request = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nx-api-key: "
        clients = []
        for number in range(16):
            # Nothing here yields: the close begins a known number of turns of the loop after the requests came.
            clients.append(socket.create_connection(("127.0.0.1", port)))
            token = endpoint.token if number < keys else "wrong"
            clients[-1].sendall(f"{request}{token}\r\n\r\n{body}".encode() * 2)
        for _ in range(ticks):
            await asyncio.sleep(0)
        report = await endpoint.close()
        await asyncio.sleep(0.02)
        for client in clients:
            client.close()
        lines = len(list(read_records(rundir.llm))) if rundir.llm.exists() else 0
        assert report.received == report.recorded == lines
        assert not rundir.llm_pending.exists()

    async def work() -> None:
        for ticks in range(16):
            for keys in (0, 16):
                await round_of(ticks, keys)

    run(work())


def test_an_endpoint_closes_its_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(ScriptedUpstream([HELLO])) as url:
            upstream = HttpUpstream(url, api_key=None, model="m")
            rundir = RunDir(tmp_path).create()
            endpoint = await Gateway().open(rundir=rundir, upstream=upstream, redactor=Redactor(), model="m")
            headers = {"x-api-key": endpoint.token}
            async with aiohttp.ClientSession() as session:
                target = f"http://127.0.0.1:{await endpoint.port()}{CHAT}"
                async with session.post(target, json=asking("x"), headers=headers) as answer:
                    assert answer.status == 200
            await endpoint.close()

    run(work())
    gc.collect()  # a client session that was left open says so now, and that is an error here


def test_a_closed_endpoint_is_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        gateway = Gateway()
        endpoint = await gateway.open(
            rundir=RunDir(tmp_path).create(), upstream=ScriptedUpstream([]), redactor=Redactor(), model="m"
        )
        await endpoint.port()
        await endpoint.close()
        seen = weakref.ref(endpoint)
        del endpoint
        await asyncio.sleep(0)
        gc.collect()
        assert seen() is None
        await gateway.close()

    run(work())
