"""Streams become final bodies and nothing is invented; final bodies become streams and come back the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.proxy._bodies import answer_body
from pytest_benchflow.proxy.script import Call, ScriptTurn

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Dialect

ASKED = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generateContent": "/v1beta/models/m:streamGenerateContent?alt=sse",
}
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
def test_usage_that_was_not_sent_stays_missing(name: str) -> None:
    _, raw = stream_of(name, ScriptTurn(text="x", usage=False))
    body, reason = dialect_of(name).assemble(raw)
    assert (reason, dialect_of(name).usage(body)) == (None, None)
    assert dialect_of(name).outcome(200, body).kind == "completed"


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


def test_what_a_whole_message_tells_last_is_kept() -> None:
    body, reason = dialect_of("messages").assemble(
        sse(
            {"type": "message_start", "message": {"content": [], "context_management": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "so far"}},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "thinking", "thinking": ""}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "signature_delta", "signature": "s1"}},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_details": None},
                "context_management": {"applied_edits": []},
                "usage": {"output_tokens": 3},
            },
            {"type": "message_stop"},
        )
    )
    assert reason is None
    assert body == {
        "content": [
            {"type": "compaction", "content": "so far"},
            {"type": "thinking", "thinking": "", "signature": "s1"},
        ],
        "context_management": {"applied_edits": []},
        "stop_reason": "end_turn",
        "stop_details": None,
        "usage": {"output_tokens": 3},
    }


def test_chat_fields_that_are_objects_grow_in_their_parts() -> None:
    def delta(**more: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": more}]}

    body, _ = dialect_of("chat").assemble(
        sse(
            delta(role="assistant", audio={"id": "a1", "transcript": "he"}),
            delta(audio={"id": "a1", "transcript": "llo", "expires_at": 5}),
            delta(function_call={"name": "f", "arguments": "{"}),
            delta(function_call={"name": "f", "arguments": "}"}),
        )
    )
    assert body["choices"][0] == {
        "index": 0,
        "message": {
            "role": "assistant",
            "audio": {"id": "a1", "transcript": "hello", "expires_at": 5},
            "function_call": {"name": "f", "arguments": "{}"},
        },
        "finish_reason": None,
    }


def test_an_answer_in_one_event_is_an_answer() -> None:
    message = {"role": "assistant", "content": "whole", "tool_calls": []}
    whole = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    assert dialect_of("chat").assemble(sse(whole, b"[DONE]")) == (whole, None)


def test_arguments_that_are_no_text_survive_the_wire() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    raw = b"".join(dialect_of("chat").disassemble(whole, {}, PATHS["chat"]))
    assert dialect_of("chat").assemble(raw) == (whole, None)


def test_what_came_of_a_cut_responses_stream_is_kept() -> None:
    place = {"output_index": 0, "item_id": "x"}
    body, reason = dialect_of("responses").assemble(
        sse(
            {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", **place, "item": {"type": "message", "content": None}},
            {"type": "response.output_text.delta", **place, "content_index": 0, "delta": "he"},
            {"type": "response.output_text.delta", **place, "content_index": 0, "delta": "llo"},
            {"type": "response.output_item.added", "output_index": 1, "item": {"type": "mcp_call", "arguments": ""}},
            {"type": "response.mcp_call_arguments.delta", "output_index": 1, "delta": '{"x"'},
        )
    )
    assert reason == "the stream ended without a terminal event"
    assert body["output"] == [
        {"type": "message", "content": [{"type": "output_text", "text": "hello"}]},
        {"type": "mcp_call", "arguments": '{"x"'},
    ]
