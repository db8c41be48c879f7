"""What a provider answers amiss to a translated request is told as it is, and nothing more is made of it."""

from __future__ import annotations

import gzip
import json
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.dialects.generatecontent import dialect as generatecontent
from pytest_benchflow.errors import ProviderError
from pytest_benchflow.proxy import _litellm_calls
from pytest_benchflow.proxy._routed import RoutedUpstream
from pytest_benchflow.proxy.litellm import Translation, _join
from pytest_benchflow.proxy.routes import provider_route
from pytest_benchflow.proxy.serve import serving
from tests.unit.proxy.door import GEMINI, PATHS, STREAMS, Door, asking, door, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from pytest_benchflow.contracts import ModelRequest

    OpenDoor = Callable[["Says"], AbstractAsyncContextManager[Door]]

STREAM = {"Content-Type": "text/event-stream"}
JSON = {"Content-Type": "application/json"}
BEGUN = b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","content":[],"usage":{}}}\n\n'
OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"too busy"}}\n\n'


class Says:
    """A provider that says the same to everybody; `requests` are those it was sent."""

    replays = False

    def __init__(self, status: int, headers: dict[str, str], *parts: bytes, cut: bool = False) -> None:
        self.requests: list[ModelRequest] = []
        self._answer = status, headers, parts, cut

    async def send(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        status, headers, parts, cut = self._answer

        async def chunks() -> AsyncIterator[bytes]:
            for part in parts:
                yield part
            if cut:
                raise ProviderError("it ends here")

        return ModelResponse(status, headers, chunks())

    async def close(self) -> None:
        return


@asynccontextmanager
async def opened(model: str, variable: str, session: str, path: Path, says: Says) -> AsyncIterator[Door]:
    """Open a door to a model that `says` answers for, by way of the session's process."""
    translation = Translation(session)
    async with serving(says) as url:
        with pytest.MonkeyPatch.context() as host:
            host.setenv(variable, url)
            route = provider_route(model)
        assert isinstance(route.upstream, RoutedUpstream)
        route.upstream.use(translation, dialect=None)
        try:
            async with door(path / "run", route.upstream, secrets=route.secrets) as agent:
                yield agent
        finally:
            await translation.close()


@pytest.fixture(scope="module")
def session(testrun_uid: str) -> Iterator[str]:
    """Return a session whose process these tests share."""
    name = f"a{testrun_uid}"
    lease = _join(Translation(name).directory)
    yield name
    lease.close()


@pytest.fixture
def anthropic(session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenDoor:
    """Return what opens a door to a provider that speaks Anthropic's format."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-invented-4711")
    return partial(opened, "anthropic/claude-x", "ANTHROPIC_BASE_URL", session, tmp_path)


@pytest.fixture
def groq(session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenDoor:
    """Return what opens a door to a provider of LiteLLM's that speaks OpenAI's format."""
    monkeypatch.setenv("GROQ_API_KEY", "sk-invented-4712")
    return partial(opened, "groq/m", "GROQ_API_BASE", session, tmp_path)


def sent(dialect: str, *, streamed: bool) -> tuple[dict[str, Any], str]:
    """Return the body and the path of a request."""
    if dialect == "generateContent":
        return {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}, STREAMS[dialect] if streamed else GEMINI
    body = {"model": "m", "input": "x"} if dialect == "responses" else asking("x", max_tokens=99)
    return {**body, "stream": streamed}, PATHS[dialect]


@pytest.mark.parametrize(("kind", "raw"), [("application/json", b'{"id": "x"}'), ("text/html", b"<html>")])
def test_an_answer_in_one_piece_to_a_request_for_a_stream_is_no_empty_answer(
    kind: str, raw: bytes, anthropic: OpenDoor
) -> None:
    async def work() -> None:
        async with anthropic(Says(200, {"Content-Type": kind}, raw)) as agent:
            for dialect in ("chat", "responses", "generateContent"):
                answer = await agent.post(*sent(dialect, streamed=True))
                assert answer.status == 502, answer.raw
                assert f"it is {kind}, and a stream was asked for" in json.dumps(answer.json)

    run(work())


def test_that_holds_for_a_translation_that_begins_before_the_provider_has_answered(groq: OpenDoor) -> None:
    async def work() -> None:
        async with groq(Says(200, JSON, b'{"id": "x"}')) as agent:
            answer = await agent.post(*sent("messages", streamed=True))
            assert answer.status == 502, answer.raw
            assert "it is application/json, and a stream was asked for" in answer.json["error"]["message"]

    run(work())


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (Says(200, STREAM, BEGUN, OVERLOADED), "too busy"),
        (Says(200, STREAM, BEGUN, cut=True), "the connection was closed in the middle of it"),
    ],
    ids=["error", "cut"],
)
def test_a_stream_that_ends_before_it_said_anything_may_be_asked_for_again(
    says: Says, said: str, anthropic: OpenDoor
) -> None:
    async def work() -> None:
        async with anthropic(says) as agent:
            answer = await agent.post(*sent("chat", streamed=True))
            assert answer.status == 502
            assert answer.json["error"]["message"] == f"the provider's answer is not whole: {said}"
            assert "x-should-retry" not in answer.headers
            (record,) = agent.records()
            # By which its cost is unknown, and not 0.
            assert record["metadata"]["upstream"]["status"] == 200

    run(work())


def test_no_key_goes_where_a_provider_leads(anthropic: OpenDoor) -> None:
    async def work() -> None:
        elsewhere = Says(200, JSON, b"{}")
        async with serving(elsewhere) as url:
            leads = Says(307, {"Location": f"{url}/messages?a=b"}, b"")
            async with anthropic(leads) as agent:
                answer = await agent.post(*sent("chat", streamed=False))
        assert answer.status == 502
        said = f"the provider answered 307 and leads to {url}/messages, where its key is not sent"
        assert answer.json["error"]["message"] == said
        assert len(leads.requests) == 1
        assert elsewhere.requests == []

    run(work())


def test_a_compressed_answer_is_read_as_what_it_says(anthropic: OpenDoor) -> None:
    usage = {"input_tokens": 7, "output_tokens": 5, "cache_read_input_tokens": 4}
    body = {"id": "m", "type": "message", "role": "assistant", "model": "x", "stop_reason": "end_turn", "usage": usage}
    raw = gzip.compress(json.dumps({**body, "content": [{"type": "text", "text": "hi"}]}).encode())

    async def work() -> None:
        async with anthropic(Says(200, {**JSON, "Content-Encoding": "gzip"}, raw)) as agent:
            answer = await agent.post(*sent("generateContent", streamed=False))
            told = answer.json["usageMetadata"]
            assert (told["promptTokenCount"], told["cachedContentTokenCount"]) == (11, 4)
            (record,) = agent.records()
            assert record["metadata"]["upstream"]["response_id"] == "m"

    run(work())


def test_what_was_heard_is_looked_through_only_where_an_event_counts_tokens() -> None:
    looked = []

    def heard() -> bytes:
        looked.append(True)
        return b'{"usage": {"prompt_tokens": 1}}'

    for text in ("a", "b", "c"):
        event = {"choices": [{"delta": {"content": text}}]}
        assert _litellm_calls.true_usage(event, heard) == event
    assert looked == []
    assert _litellm_calls.true_usage({"usage": {"prompt_tokens": 1}}, heard) == {"usage": {"prompt_tokens": 1}}
    assert looked == [True]


def chunk(finish: str | None, *calls: dict[str, Any]) -> bytes:
    """Return an event of a stream of OpenAI's."""
    choice = {"index": 0, "delta": {"tool_calls": list(calls)} if calls else {}, "finish_reason": finish}
    return (
        b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"
    )


BEGUN_CALLS = [
    {"index": n, "id": f"id-{n}", "type": "function", "function": {"name": "look", "arguments": ""}} for n in (0, 1)
]


def test_calls_without_arguments_and_their_ids_reach_an_agent_that_speaks_googles_format(groq: OpenDoor) -> None:
    more = {"index": 1, "function": {"arguments": '{"at": "x"}'}}
    whole = chunk(None, *BEGUN_CALLS) + chunk(None, more) + chunk("tool_calls") + b"data: [DONE]\n\n"

    async def work() -> None:
        body, path = sent("generateContent", streamed=True)
        async with groq(Says(200, STREAM, whole)) as agent:
            assert (await agent.post(body, path)).status == 200
            (record,) = agent.records()
        turn = generatecontent.response_turn(record["response"]["body"])
        assert turn is not None
        assert {(call.id, call.arguments) for call in turn.tool_calls} == {("id-0", "{}"), ("id-1", '{"at":"x"}')}
        assert turn.unsupported == ()

    run(work())


def test_a_call_whose_arguments_end_in_their_middle_is_not_left_out(groq: OpenDoor) -> None:
    more = {"index": 0, "function": {"arguments": '{"at'}}
    broken = chunk(None, BEGUN_CALLS[0]) + chunk(None, more) + chunk("length") + b"data: [DONE]\n\n"

    async def work() -> None:
        body, path = sent("generateContent", streamed=True)
        async with groq(Says(200, STREAM, broken)) as agent:
            answer = await agent.post(body, path)
            (record,) = agent.records()
        assert answer.status == 502 or answer.cut
        assert "the arguments of the call look are no JSON object" in json.dumps(record)

    run(work())


def test_ids_of_googles_format_go_to_a_provider_that_needs_them_and_come_back(anthropic: OpenDoor) -> None:
    blocks = [{"type": "tool_use", "id": f"toolu_{n}", "name": "shell", "input": {"n": n}} for n in (1, 2)]
    said = {"id": "m", "model": "m", "type": "message", "role": "assistant", "content": blocks}
    ended = {"stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1}}
    says = Says(200, JSON, json.dumps({**said, **ended}).encode())
    calls = [{"functionCall": {"id": each, "name": "shell", "args": {}}} for each in "ab"]
    results: list[dict[str, Any]] = [
        {"functionResponse": {"id": each, "name": "shell", "response": {"output": each}}} for each in "ba"
    ]

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    begun, _ = sent("generateContent", streamed=False)
    tools = [{"functionDeclarations": [{"name": "shell", "description": "runs", "parameters": schema}]}]

    def asked(*results: Any) -> dict[str, Any]:
        turns = [{"role": "model", "parts": calls}, {"role": "user", "parts": list(results)}]
        return {"contents": [*begun["contents"], *turns], "tools": tools}

    async def work() -> None:
        async with anthropic(says) as agent:
            first = await agent.post(asked(*results), GEMINI)
            second = await agent.post(asked(results[0]), GEMINI)
            del results[0]["functionResponse"]["id"]
            third = await agent.post(asked(results[0]), GEMINI)
        assert first.status == 200, first.raw
        parts = first.json["candidates"][0]["content"]["parts"]
        found = [part["functionCall"] for part in parts if "functionCall" in part]
        assert [(call["id"], call["args"]) for call in found] == [("toolu_1", {"n": 1}), ("toolu_2", {"n": 2})]
        sent_on = [block for message in json.loads(says.requests[0].body)["messages"] for block in message["content"]]
        told = {block["tool_use_id"]: block["content"] for block in sent_on if block["type"] == "tool_result"}
        assert told == {each: json.dumps({"output": each}) for each in "ab"}
        # What a provider makes of a call without a result is its own matter; a guess would be ours.
        assert (second.status, third.status, len(says.requests)) == (200, 400, 2)
        assert "fewer results of shell" in third.json["error"]["message"]

    run(work())
