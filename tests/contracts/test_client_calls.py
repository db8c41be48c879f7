"""The providers' own clients before the gateway, over HTTP: answers, refusals and what is new stay as they are.

The clients are no dependency of ours: continuous integration installs them into an environment of their own.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.proxy.http import HttpUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.records.jsontext import loads
from tests.contracts.dialectrig import RIGS, Said
from tests.contracts.test_official_clients import ASK, CALLS, LONG, TOKENS, agrees, pytestmark
from tests.contracts.wirestreams import STREAMS, USAGE
from tests.unit.proxy.door import door, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from pytest_benchflow.contracts import ModelRequest
    from tests.unit.proxy.door import Door

__all__ = ["pytestmark"]

SAID = Said(LONG, LONG.upper(), CALLS, TOKENS)
# What a provider may add tomorrow, in a request and in an answer.
NEW = {"unheard_of": {"n": 1.5, "list": [None, "☃"]}}
# The reasoning effort as each client sends it, and where it is in the body.
EFFORTS: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "chat": ({"reasoning_effort": "xhigh"}, ("reasoning_effort",), "xhigh"),
    "responses": ({"reasoning": {"effort": "minimal"}}, ("reasoning", "effort"), "minimal"),
    "messages": ({"output_config": {"effort": "max"}}, ("output_config", "effort"), "max"),
    "generateContent": (
        {"thinking_config": {"thinking_level": "HIGH"}},
        ("generationConfig", "thinkingConfig", "thinking_level"),
        "HIGH",
    ),
}


class Provider:
    """Gives one answer, whole or as a stream as it is asked, and keeps what came."""

    replays = False

    def __init__(self, name: str, body: dict[str, Any], status: int = 200) -> None:
        self._dialect, self._body, self._status = RIGS[name].dialect, body, status
        self.requests: list[ModelRequest] = []

    async def send(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        asked = loads(request.body)
        streamed = self._dialect.streams(request.path, asked)
        if streamed and self._status == 200:
            parts: Iterable[bytes] = self._dialect.disassemble(self._body, asked, request.path)
            return ModelResponse(200, {"Content-Type": streamed}, _each(parts))
        headers = {"Content-Type": "application/json", "Retry-After": "17", "x-request-id": "req-1"}
        return ModelResponse(self._status, headers, _each([json.dumps(self._body).encode()]))

    async def close(self) -> None:
        return None


async def _each(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def ask(name: str, agent: Door, *, stream: bool, **more: Any) -> dict[str, Any]:
    """Return what a client makes of its answer, or of the last event that tells the whole; as JSON."""
    if name == "generateContent":
        return await _ask_gemini(agent, stream=stream, **more)
    if name == "messages":
        anthropic = importlib.import_module("anthropic")
        client = anthropic.AsyncAnthropic(api_key=agent.token, base_url=agent.url, max_retries=0)
        asked = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 99}
        api, final = client.messages, "get_final_message"
    else:
        openai = importlib.import_module("openai")
        client = openai.AsyncOpenAI(api_key=agent.token, base_url=f"{agent.url}/v1", max_retries=0)
        chat = name == "chat"
        asked = {"messages": [{"role": "user", "content": "go"}]} if chat else {"input": "go"}
        api, final = (
            (client.chat.completions, "get_final_completion") if chat else (client.responses, "get_final_response")
        )
    extra = {key: more.pop(key) for key in list(more) if key in NEW}
    async with client:
        if not stream:
            return _plain(await api.create(model="m", extra_body=extra, **asked, **more))
        options = {"stream_options": {"include_usage": True}} if name == "chat" else {}
        async with api.stream(model="m", extra_body=extra, **asked, **options, **more) as events:
            return _plain(await getattr(events, final)())


async def _ask_gemini(agent: Door, *, stream: bool, **more: Any) -> dict[str, Any]:
    genai = importlib.import_module("google.genai")
    extra = {key: more.pop(key) for key in list(more) if key in NEW}
    options = {"base_url": agent.url, **({"extra_body": extra} if extra else {})}
    client = genai.Client(api_key=agent.token, http_options=options)
    last: dict[str, Any] = {}
    try:
        asked = {"model": "m", "contents": "go", "config": more or None}
        if not stream:
            return _gemini_plain(await client.aio.models.generate_content(**asked))
        async for chunk in await client.aio.models.generate_content_stream(**asked):
            last = _gemini_plain(chunk)
        return last
    finally:
        await client.aio.aclose()


def _gemini_plain(answer: Any) -> dict[str, Any]:
    value: dict[str, Any] = loads(
        answer.model_dump_json(by_alias=True, exclude_none=True, exclude={"sdk_http_response"})
    )
    return value


def _plain(answer: Any) -> dict[str, Any]:
    value: dict[str, Any] = answer.to_dict(mode="json")
    return value


@asynccontextmanager
async def through(path: Path, provider: Provider) -> AsyncIterator[Door]:
    """Open a door whose upstream is the provider over HTTP."""
    async with serving(provider) as url, door(path, HttpUpstream(url, api_key="k", model="m")) as agent:
        yield agent


STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
EVERY = pytest.mark.parametrize("name", RIGS)
quiet = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")


@quiet
@EVERY
def test_a_whole_answer_is_recorded_as_the_client_understood_it(tmp_path: Path, name: str) -> None:
    body = RIGS[name].answer(SAID)

    async def work() -> None:
        async with through(tmp_path, Provider(name, body)) as agent:
            theirs = await ask(name, agent, stream=False)
            (record,) = agent.records()
            assert (record["response"]["body"], record["error"], record["metadata"]["stream"]) == (body, None, False)
            assert agrees(body, theirs), f"{body}\n{theirs}"
            dialect = RIGS[name].dialect
            assert dialect.response_turn(body) == dialect.response_turn(theirs)
            assert dialect.usage(body) == dialect.usage(theirs) == RIGS[name].usage(TOKENS)

    run(work())


@quiet
@EVERY
@STREAMED
@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_refusal_is_the_clients_own_error_with_the_providers_words(
    tmp_path: Path, name: str, status: int, *, stream: bool
) -> None:
    body = {**loads(RIGS[name].dialect.error_body(status, "not today", "some_error")), **NEW}

    async def work() -> None:
        async with through(tmp_path, Provider(name, body, status)) as agent:
            with pytest.raises(Exception, match="not today") as raised:
                await ask(name, agent, stream=stream)
            error: Any = raised.value
            told = error.code if name == "generateContent" else error.status_code
            assert (type(error).__module__.split(".")[0] in ("openai", "anthropic", "google"), told) == (True, status)
            if name != "generateContent":
                assert (error.response.headers["retry-after"], error.response.json()) == ("17", body)
            (record,) = agent.records()
            assert (record["response"]["status_code"], record["response"]["body"]) == (status, body)
            assert (record["error"], record["metadata"]["stream"]) == (None, stream)

    run(work())


@quiet
@EVERY
@STREAMED
def test_what_is_new_passes_both_ways_and_so_does_the_effort(tmp_path: Path, name: str, *, stream: bool) -> None:
    given, place, effort = EFFORTS[name]
    body = {**RIGS[name].answer(SAID), **NEW}

    async def work() -> None:
        provider = Provider(name, body)
        async with through(tmp_path, provider) as agent:
            theirs = await ask(name, agent, stream=stream, **NEW, **given)
            (sent,) = provider.requests
            (record,) = agent.records()
            assert hashlib.sha256(sent.body).hexdigest() == record["metadata"]["raw_sha256"], "not a byte was changed"
            found = loads(sent.body)
            assert found["unheard_of"] == NEW["unheard_of"]
            assert RIGS[name].dialect.effort(found) == RIGS[name].dialect.effort(record["request"]["body"])
            for key in place:
                found = found[key]
            assert found == effort
            assert record["response"]["body"] == body
            assert name == "generateContent" or theirs["unheard_of"] == NEW["unheard_of"]
            assert RIGS[name].dialect.usage(record["response"]["body"]) == RIGS[name].usage(TOKENS)

    run(work())


class Wire:
    """Gives a stream in pieces that end anywhere."""

    replays = False

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    async def send(self, request: ModelRequest) -> ModelResponse:
        assert request.method == "POST"
        pieces = (self._raw[start : start + 97] for start in range(0, len(self._raw), 97))
        return ModelResponse(200, {"Content-Type": "text/event-stream"}, _each(pieces))

    async def close(self) -> None:
        return None


@quiet
@EVERY
def test_a_stream_as_providers_write_it_is_recorded_as_the_client_put_it_together(tmp_path: Path, name: str) -> None:
    dialect = RIGS[name].dialect

    async def work() -> None:
        async with (
            serving(Wire(STREAMS[name])) as url,
            door(tmp_path, HttpUpstream(url, api_key="k", model="m")) as agent,
        ):
            theirs = await ASK[name](agent)
            (record,) = agent.records()
            ours = record["response"]["body"]
            assert record["error"] is None
            assert record["metadata"]["response_sha256"] == hashlib.sha256(STREAMS[name]).hexdigest()
            assert agrees(ours, theirs), f"{ours}\n{theirs}"
            assert dialect.outcome(200, ours) == dialect.outcome(200, theirs)
            assert dialect.response_turn(ours) == dialect.response_turn(theirs)
            usage = dialect.usage(ours)
            assert usage == dialect.usage(theirs)
            assert usage is not None
            assert usage[:3] == USAGE[name]

    run(work())
