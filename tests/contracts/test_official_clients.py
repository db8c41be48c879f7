"""What the providers' own clients understand is what is recorded, and every type they know has its place here.

The clients are no dependency of ours: continuous integration installs them into an environment of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
import types
import typing
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.dialects._generatecontent_stream import joined
from pytest_benchflow.dialects._generatecontent_turns import camel
from pytest_benchflow.records.jsontext import loads
from tests.contracts.dialectitems import PLACES
from tests.contracts.dialectrig import RIGS, Said, Tokens, put_in
from tests.unit.proxy.door import door, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from pytest_benchflow.contracts import ModelRequest
    from tests.contracts.dialectrig import Rig
    from tests.unit.proxy.door import Door

CLIENTS = {"chat": "openai", "responses": "openai", "messages": "anthropic", "generateContent": "google.genai"}


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not all(map(_installed, CLIENTS.values())),
    reason="needs the official clients: pip install openai anthropic google-genai",
)


def members(union: Any) -> Iterator[Any]:
    """Yield the classes of a typed union, however it is nested."""
    if typing.get_origin(union) is typing.Annotated:
        yield from members(typing.get_args(union)[0])
    elif typing.get_origin(union) in (typing.Union, types.UnionType):
        for each in typing.get_args(union):
            yield from members(each)
    else:
        yield union


def tags(union: Any) -> set[str]:
    """Return the values of `type` by which the classes of a union are told apart."""
    found: set[str] = set()
    for member in members(union):
        fields = getattr(member, "model_fields", None)
        hint = fields["type"].annotation if fields else typing.get_type_hints(member)["type"]
        for part in members(hint):
            found |= {value for value in typing.get_args(part) if isinstance(value, str)}
            if typing.get_origin(part) is typing.Required:
                found |= {value for inner in typing.get_args(part) for value in typing.get_args(inner)}
    return found


UNIONS: dict[str, list[str]] = {
    "chat-user-part": [
        "openai.types.chat.chat_completion_content_part_param.ChatCompletionContentPartParam",
    ],
    "chat-assistant-part": [
        "openai.types.chat.chat_completion_assistant_message_param.ContentArrayOfContentPart",
    ],
    "chat-tool-call": [
        "openai.types.chat.chat_completion_message_tool_call_union_param.ChatCompletionMessageToolCallUnionParam",
    ],
    "responses-item": ["openai.types.responses.response_input_item_param.ResponseInputItemParam"],
    "responses-output": ["openai.types.responses.response_output_item.ResponseOutputItem"],
    "responses-message-part": ["openai.types.responses.response_input_content_param.ResponseInputContentParam"],
    "responses-output-part": ["openai.types.responses.response_output_message.Content"],
    "responses-result-part": [
        "openai.types.responses.response_function_call_output_item_param.ResponseFunctionCallOutputItemParam",
    ],
    "messages-assistant-block": [
        "anthropic.types.content_block.ContentBlock",
        "anthropic.types.beta.beta_content_block.BetaContentBlock",
    ],
    "messages-user-block": [
        "anthropic.types.content_block_param.ContentBlockParam",
        "anthropic.types.beta.beta_content_block_param.BetaContentBlockParam",
    ],
    "messages-result-block": [
        "anthropic.types.tool_result_block_param.Content",
        "anthropic.types.beta.beta_tool_result_block_param.Content",
    ],
}
# Results of what the client ran come in its own messages, what the provider ran in the model's.
ELSEWHERE = {
    "messages-user-block": set(PLACES["messages-assistant-block"].mapped)
    | set(PLACES["messages-assistant-block"].unsupported),
    "responses-output": {name for name in PLACES["responses-item"].mapped if name.endswith("_output")},
}


@pytest.mark.parametrize("name", UNIONS)
def test_every_type_of_the_clients_has_its_place(name: str) -> None:
    known: set[str] = set()
    for path in UNIONS[name]:
        module, _, attribute = path.rpartition(".")
        known |= tags(getattr(importlib.import_module(module), attribute))
    place = PLACES[name]
    ours = {*place.mapped, *place.unsupported}
    assert known - ours - ELSEWHERE.get(name, set()) == set(), "types that are not in tests/contracts/dialectitems.py"
    assert ours - known == set(), "types that the clients no longer know"


def test_every_field_of_a_gemini_part_has_its_place() -> None:
    genai = importlib.import_module("google.genai.types")
    aside = {"thought", "thoughtSignature", "mediaResolution", "mediaProcessing", "partMetadata"}
    aside |= {f"{kind}Metadata" for kind in ("video", "speech", "document", "spreadsheet", "audio")}
    places = [PLACES["generateContent-model-part"], PLACES["generateContent-user-part"]]
    ours = {kind for place in places for kind in (*place.mapped, *place.unsupported)}
    assert {camel(name) for name in genai.Part.model_fields} == ours | aside


FINISHES = {
    "chat": ("openai.types.chat.chat_completion", "Choice", "finish_reason"),
    "messages": ("anthropic.types.beta.beta_message", "BetaMessage", "stop_reason"),
    "responses": ("openai.types.responses.response", "Response", "status"),
    "generateContent": ("google.genai.types", "Candidate", "finish_reason"),
}


@pytest.mark.parametrize("name", FINISHES)
def test_every_end_that_the_clients_know_has_an_outcome_of_its_own(name: str) -> None:
    module, holder, field = FINISHES[name]
    hint = getattr(importlib.import_module(module), holder).model_fields[field].annotation
    values = [
        getattr(value, "value", value) for part in members(hint) for value in (typing.get_args(part) or _values(part))
    ]
    unclear = {"OTHER", "FINISH_REASON_UNSPECIFIED"}
    assert len(values) > 4
    rig = RIGS[name]
    place, ending = rig.endings["completed"]
    (key,) = ending.keys() - {"incomplete_details"}
    for value in values:
        reason = rig.dialect.outcome(200, put_in(rig.answer(Said("x")), place, {key: value})).reason or ""
        assert ("unknown" in reason) == (value in unclear), f"{value}: {reason}"


def _values(kind: Any) -> list[Any]:
    return list(kind) if hasattr(kind, "__members__") else []


async def ask_chat(agent: Door) -> dict[str, Any]:
    openai = importlib.import_module("openai")
    asked = {"messages": [{"role": "user", "content": "go"}], "stream_options": {"include_usage": True}}
    async with (
        openai.AsyncOpenAI(api_key=agent.token, base_url=f"{agent.url}/v1", max_retries=0) as client,
        client.chat.completions.stream(model="m", **asked) as stream,
    ):
        whole = plain(await stream.get_final_completion())
    for call in whole["choices"][0]["message"].get("tool_calls") or ():
        # Places in the stream, and arguments for its user, that this client keeps beside the call.
        del call["index"], call["function"]["parsed_arguments"]
    return whole


async def ask_responses(agent: Door) -> dict[str, Any]:
    openai = importlib.import_module("openai")
    async with (
        openai.AsyncOpenAI(api_key=agent.token, base_url=f"{agent.url}/v1", max_retries=0) as client,
        client.responses.stream(model="m", input="go") as stream,
    ):
        return plain(await stream.get_final_response())


async def ask_messages(agent: Door) -> dict[str, Any]:
    anthropic = importlib.import_module("anthropic")
    asked = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 99}
    async with (
        anthropic.AsyncAnthropic(api_key=agent.token, base_url=agent.url, max_retries=0) as client,
        client.messages.stream(model="m", **asked) as stream,
    ):
        return plain(await stream.get_final_message())


async def ask_gemini(agent: Door) -> dict[str, Any]:
    genai = importlib.import_module("google.genai")
    client = genai.Client(api_key=agent.token, http_options={"base_url": agent.url})
    parts: list[Any] = []
    whole: dict[str, Any] = {}
    async for chunk in await client.aio.models.generate_content_stream(model="m", contents="go"):
        whole = {
            **whole,
            **loads(chunk.model_dump_json(by_alias=True, exclude_none=True, exclude={"sdk_http_response"})),
        }
        (candidate,) = whole["candidates"]
        parts = joined(parts, candidate.get("content", {}).get("parts"))
    # This client leaves it to its user to put the parts together.
    whole["candidates"][0]["content"]["parts"] = parts
    await client.aio.aclose()
    return whole


def plain(answer: Any) -> dict[str, Any]:
    """Return a client's answer as JSON."""
    value: dict[str, Any] = answer.to_dict(mode="json")
    return value


ASK: dict[str, Callable[[Door], Awaitable[dict[str, Any]]]] = {
    "chat": ask_chat,
    "responses": ask_responses,
    "messages": ask_messages,
    "generateContent": ask_gemini,
}
TOKENS = Tokens(9, 7, 2, 3)
LONG = "Grüße ☃ and a line\nthat is longer than one piece of a stream"
CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("a", "shell", {"cmd": "ls", "n": [1, None, 0.5]}),
    ("b", "shell", {}),
)
SPOKEN = {
    "text": Said(LONG, tokens=TOKENS),
    "empty": Said("", tokens=TOKENS),
    "calls": Said(None, calls=CALLS, tokens=TOKENS),
    "all": Said(LONG, LONG.upper(), CALLS, TOKENS),
}


class Answer:
    """An upstream with one answer, streamed."""

    replays = False

    def __init__(self, rig: Rig, body: dict[str, Any]) -> None:
        self._rig, self._body = rig, body

    async def send(self, request: ModelRequest) -> ModelResponse:
        parts = self._rig.dialect.disassemble(self._body, loads(request.body), request.path)
        return ModelResponse(200, {"Content-Type": "text/event-stream"}, _each(parts))

    async def close(self) -> None:
        return None


async def _each(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def agrees(ours: Any, theirs: Any) -> bool:
    """Tell whether all that a client understood is in the record; fields that it adds of itself hold nothing."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return all(agrees(ours.get(key), value) for key, value in theirs.items())
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(agrees, ours, theirs))
    return bool(ours == theirs) or (ours is None and not theirs)


@pytest.mark.parametrize("said", SPOKEN.values(), ids=SPOKEN.keys())
@pytest.mark.parametrize("name", ASK)
@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
def test_the_record_is_what_the_official_client_understood(tmp_path: Path, name: str, said: Said) -> None:
    rig = RIGS[name]
    body = rig.answer(said)

    async def work() -> None:
        async with door(tmp_path, Answer(rig, body)) as agent:
            theirs = await ASK[name](agent)
            (record,) = agent.records()
            assert (record["response"]["body"], record["error"]) == (body, None)
            assert agrees(body, theirs), f"{body}\n{theirs}"
            dialect = rig.dialect
            assert dialect.response_turn(body) == dialect.response_turn(theirs)
            assert dialect.outcome(200, body) == dialect.outcome(200, theirs)
            assert dialect.usage(body) == dialect.usage(theirs)

    run(work())
