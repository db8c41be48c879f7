"""Streams become final bodies and nothing is invented; final bodies become streams and come back the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.proxy._bodies import answer_body
from pytest_benchflow.proxy.script import Call, ScriptTurn

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Dialect

ASKED = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
TURN = ScriptTurn(
    text="Grüße ☃ and a second line\nhere",
    reasoning="think",
    calls=(Call("shell", {"cmd": "ls -l"}), Call("edit", {"path": "ä", "n": 3})),
)


def dialect_of(name: str) -> Dialect:
    dialect = dialect_for(PATHS[name])
    assert dialect is not None
    return dialect


def stream_of(name: str, turn: ScriptTurn = TURN) -> tuple[dict[str, Any], bytes]:
    body = answer_body(name, turn, 1, ASKED)
    return body, b"".join(dialect_of(name).disassemble(body, ASKED, PATHS[name]))


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n\n" for e in events)


@pytest.mark.parametrize("name", PATHS)
def test_a_stream_gives_the_body_it_was_made_from(name: str) -> None:
    body, raw = stream_of(name)
    assert dialect_of(name).assemble(raw) == (body, None)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("end", [b"\r\n", b"\r"], ids=["crlf", "cr"])
def test_line_ends_of_the_standard_are_all_understood(name: str, end: bytes) -> None:
    body, raw = stream_of(name)
    assert dialect_of(name).assemble(raw.replace(b"\n", end)) == (body, None)


@pytest.mark.parametrize("name", PATHS)
def test_a_stream_cut_at_any_byte_is_never_complete(name: str) -> None:
    dialect = dialect_of(name)
    body, raw = stream_of(name)
    whole = len(raw.rstrip(b"\n"))
    for size in range(whole):
        cut, reason = dialect.assemble(raw[:size])
        assert reason is not None, f"complete after {size} of {whole} bytes"
        error = {"type": "incomplete_stream", "message": reason}
        assert dialect.outcome(200, cut, error).kind == "partial"
        turn = dialect.response_turn(cut)
        assert turn is None or TURN.text is None or TURN.text.startswith(turn.text)
    assert dialect.assemble(raw[:whole]) == (body, None)


@pytest.mark.parametrize("name", PATHS)
def test_usage_that_was_not_sent_stays_missing(name: str) -> None:
    _, raw = stream_of(name, ScriptTurn(text="x", usage=False))
    body, reason = dialect_of(name).assemble(raw)
    assert (reason, dialect_of(name).usage(body)) == (None, None)
    assert dialect_of(name).outcome(200, body).kind == "completed"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
TURNS = st.builds(
    ScriptTurn,
    text=st.none() | TEXTS,
    calls=st.lists(
        st.builds(Call, TEXTS, st.dictionaries(TEXTS, TEXTS | st.integers(0, 9), max_size=3)), max_size=3
    ).map(tuple),
    usage=st.booleans(),
)


@pytest.mark.parametrize("name", PATHS)
@settings(deadline=None)
@given(turn=TURNS)
def test_any_answer_survives_the_wire(name: str, turn: ScriptTurn) -> None:
    dialect = dialect_of(name)
    body, raw = stream_of(name, turn)
    back, reason = dialect.assemble(raw)
    assert reason is None
    assert dialect.response_turn(back) == dialect.response_turn(body)
    assert dialect.usage(back) == dialect.usage(body)
    assert dialect.outcome(200, back) == dialect.outcome(200, body)


def test_an_error_event_after_200_is_an_error() -> None:
    chat = dialect_of("chat")
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "ha"}}]}
    body, reason = chat.assemble(sse(chunk, {"error": {"message": "overloaded"}}))
    assert reason is not None
    assert chat.outcome(200, body, {"type": "incomplete_stream", "message": reason}).kind == "error"

    responses = dialect_of("responses")
    body, reason = responses.assemble(
        sse(
            {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
            {"type": "error", "code": "x"},
        )
    )
    assert responses.outcome(200, body, {"type": "incomplete_stream", "message": str(reason)}).kind == "error"

    messages = dialect_of("messages")
    body, reason = messages.assemble(
        sse(
            {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 3}}},
            {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
        )
    )
    assert messages.outcome(200, body, {"type": "incomplete_stream", "message": str(reason)}).kind == "error"
    assert body["usage"] == {"input_tokens": 3}, "what was billed before the error is kept"


def test_chat_calls_are_joined_by_index_whatever_the_server_repeats() -> None:
    def delta(*calls: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": list(calls)}, "finish_reason": finish}]}

    body, reason = dialect_of("chat").assemble(
        sse(
            delta({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x"'}}),
            delta({"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}),
            delta({"index": 0, "function": {"name": "f", "arguments": ": 1}"}}),
            delta({"index": 1, "function": {"arguments": "{}"}}, finish="tool_calls"),
            b"[DONE]",
        )
    )
    calls = body["choices"][0]["message"]["tool_calls"]
    assert reason is None
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("a", "f", '{"x": 1}'),
        ("b", "g", "{}"),
    ]


def test_chat_calls_without_an_index_are_told_apart_by_id() -> None:
    def delta(call: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [{"delta": {"tool_calls": [call]}}]}

    body, _ = dialect_of("chat").assemble(
        sse(
            delta({"id": "a", "function": {"name": "f", "arguments": "{"}}),
            delta({"function": {"arguments": "}"}}),
            delta({"id": "b", "function": {"name": "g", "arguments": "{}"}}),
        )
    )
    calls = body["choices"][0]["message"]["tool_calls"]
    assert [(c["id"], c["function"]["arguments"]) for c in calls] == [("a", "{}"), ("b", "{}")]


def test_a_finish_without_done_is_not_taken_for_an_end() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    _, reason = dialect_of("chat").assemble(sse(chunk))
    assert reason == "the stream ended without [DONE]"


def test_responses_items_fill_an_empty_final_output() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    body, reason = dialect_of("responses").assemble(
        sse(
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}},
        )
    )
    assert (body["output"], reason) == ([item], None)


def test_half_an_anthropic_input_is_kept_as_it_came() -> None:
    body, reason = dialect_of("messages").assemble(
        sse(
            {"type": "message_start", "message": {"content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "input": {}}},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": '{"cmd": "rm'},
            },
        )
    )
    assert reason is not None
    assert body["content"] == [{"type": "tool_use", "id": "t", "input": {}, "partial_json": '{"cmd": "rm'}]


def test_a_lone_surrogate_in_a_stream_is_kept() -> None:
    raw = b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    body, reason = dialect_of("chat").assemble(raw)
    assert (body["choices"][0]["message"]["content"], reason) == ("\ud83d", None)
