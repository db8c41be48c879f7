"""Streams as the providers write them, with all that they put between the pieces of an answer; invented words."""

from __future__ import annotations

import json
from typing import Any

_CHAT = {
    "id": "chatcmpl-9",
    "object": "chat.completion.chunk",
    "created": 5,
    "model": "m-2026",
    "service_tier": "default",
}


def _chat(delta: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": more.pop("finish", None)}
    return {**_CHAT, "system_fingerprint": "fp_1", "choices": [choice], "usage": None, "obfuscation": "aZ3", **more}


def _call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    opening = {"id": f"call_{name}", "type": "function"} if name else {}
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return {"tool_calls": [{"index": index, **opening, "function": function}]}


_CHAT_EVENTS = [
    _chat({"role": "assistant", "content": "", "refusal": None}),
    _chat({"content": "I look"}),
    _chat({"content": " at ☃ both."}),
    _chat(_call(0, "", "read")),
    _chat(_call(0, '{"path": ')),
    _chat(_call(1, "", "list")),
    _chat(_call(0, '"a.txt"}')),
    _chat(_call(1, "{}")),
    _chat(finish="tool_calls"),
    _chat(
        choices=[],
        usage={
            "prompt_tokens": 100,
            "completion_tokens": 30,
            "total_tokens": 130,
            "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 10, "audio_tokens": 0},
        },
    ),
]

_MESSAGE = {"id": "msg_9", "type": "message", "role": "assistant", "model": "m-2026", "content": []}
_STARTED_USAGE = {
    "input_tokens": 25,
    "cache_creation_input_tokens": 10,
    "cache_read_input_tokens": 5,
    "output_tokens": 1,
}
_MESSAGES_EVENTS: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": {**_MESSAGE, "stop_reason": None, "stop_sequence": None, "usage": _STARTED_USAGE},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Two files"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": " are there."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "EqQB=="}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "Emwk"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "I look "}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "at ☃ both."}},
    {"type": "content_block_stop", "index": 2},
    {
        "type": "content_block_start",
        "index": 3,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
    },
    {"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": '{"path": "a'}},
    {
        "type": "content_block_delta",
        "index": 3,
        "delta": {"type": "input_json_delta", "partial_json": '.txt", "n": 2}'},
    },
    {"type": "content_block_stop", "index": 3},
    {
        "type": "content_block_start",
        "index": 4,
        "content_block": {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
    },
    {"type": "content_block_stop", "index": 4},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {**_STARTED_USAGE, "output_tokens": 89},
    },
    {"type": "message_stop"},
]

_REASONING = {"id": "rs_9", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
_SAID = {"type": "output_text", "text": "I look at ☃ both.", "annotations": [], "logprobs": []}
_TEXT = {"id": "msg_9", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
_FUNCTION = {"id": "fc_9", "type": "function_call", "status": "in_progress", "call_id": "call_9", "name": "read"}
_SUMMARY = {"type": "summary_text", "text": "Two files are there."}
_RESPONSE = {
    "id": "resp_9",
    "object": "response",
    "created_at": 5,
    "status": "in_progress",
    "error": None,
    "incomplete_details": None,
    "model": "m-2026",
    "output": [],
    "parallel_tool_calls": True,
    "reasoning": {"effort": "high", "summary": "auto"},
    "tool_choice": "auto",
    "tools": [],
    "usage": None,
}
_COMPLETED = {
    **_RESPONSE,
    "status": "completed",
    "output": [
        {**_REASONING, "summary": [_SUMMARY]},
        {**_TEXT, "status": "completed", "content": [_SAID]},
        {**_FUNCTION, "status": "completed", "arguments": '{"path":"a.txt"}'},
    ],
    "usage": {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 10},
        "total_tokens": 130,
    },
}
_TEXT_PLACE = {"item_id": "msg_9", "output_index": 1, "content_index": 0}
_RESPONSES_EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": _RESPONSE},
    {"type": "response.in_progress", "response": _RESPONSE},
    {"type": "response.output_item.added", "output_index": 0, "item": _REASONING},
    {
        "type": "response.reasoning_summary_part.added",
        "item_id": "rs_9",
        "output_index": 0,
        "summary_index": 0,
        "part": {**_SUMMARY, "text": ""},
    },
    {
        "type": "response.reasoning_summary_text.delta",
        "item_id": "rs_9",
        "output_index": 0,
        "summary_index": 0,
        "delta": _SUMMARY["text"],
    },
    {"type": "response.output_item.done", "output_index": 0, "item": {**_REASONING, "summary": [_SUMMARY]}},
    {"type": "response.output_item.added", "output_index": 1, "item": _TEXT},
    {"type": "response.content_part.added", **_TEXT_PLACE, "part": {**_SAID, "text": ""}},
    {"type": "response.output_text.delta", **_TEXT_PLACE, "delta": "I look ", "logprobs": [], "obfuscation": "x"},
    {"type": "response.output_text.delta", **_TEXT_PLACE, "delta": "at ☃ both.", "logprobs": [], "obfuscation": "yy"},
    {"type": "response.output_text.done", **_TEXT_PLACE, "text": _SAID["text"], "logprobs": []},
    {"type": "response.content_part.done", **_TEXT_PLACE, "part": _SAID},
    {
        "type": "response.output_item.done",
        "output_index": 1,
        "item": {**_TEXT, "status": "completed", "content": [_SAID]},
    },
    {"type": "response.output_item.added", "output_index": 2, "item": {**_FUNCTION, "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "item_id": "fc_9", "output_index": 2, "delta": '{"path":'},
    {"type": "response.function_call_arguments.delta", "item_id": "fc_9", "output_index": 2, "delta": '"a.txt"}'},
    {
        "type": "response.function_call_arguments.done",
        "item_id": "fc_9",
        "output_index": 2,
        "name": "read",
        "arguments": '{"path":"a.txt"}',
    },
    {
        "type": "response.output_item.done",
        "output_index": 2,
        "item": {**_FUNCTION, "status": "completed", "arguments": '{"path":"a.txt"}'},
    },
    {"type": "response.completed", "response": _COMPLETED},
]


def _gemini(*parts: dict[str, Any], output: int, thoughts: int, finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": output, "thoughtsTokenCount": thoughts}
    usage |= {"totalTokenCount": 100 + output + thoughts, "cachedContentTokenCount": 64}
    details = {"promptTokensDetails": [{"modality": "TEXT", "tokenCount": 100}]}
    ended = {"finishReason": finish} if finish else {}
    head = {"candidates": [candidate | ended], "usageMetadata": usage | details}
    return {**head, "modelVersion": "m-2026", "responseId": "r9"}


_GEMINI_EVENTS = [
    _gemini({"text": "Two files", "thought": True}, output=0, thoughts=4),
    _gemini({"text": " are there.", "thought": True}, output=0, thoughts=9),
    _gemini({"text": "I look "}, output=4, thoughts=9),
    _gemini({"text": "at ☃ both."}, output=8, thoughts=9),
    _gemini(
        {"functionCall": {"name": "read", "args": {"path": "a.txt"}}, "thoughtSignature": "c2ln"},
        {"functionCall": {"name": "list", "args": {}}},
        output=20,
        thoughts=9,
    ),
    _gemini({"text": ""}, output=20, thoughts=9, finish="STOP"),
]


def _written(events: list[dict[str, Any]], *, named: bool, end: bytes = b"", line: str = "\n") -> bytes:
    """Return events as they stand on the wire; `named` puts the type of each before it."""
    texts = [
        (f"event: {event['type']}{line}" if named else "")
        + f"data: {json.dumps(event, ensure_ascii=False)}{line}{line}"
        for event in events
    ]
    return "".join(texts).encode() + end


_NUMBERED = [{**event, "sequence_number": number} for number, event in enumerate(_RESPONSES_EVENTS)]
STREAMS = {
    "chat": _written(_CHAT_EVENTS, named=False, end=b"data: [DONE]\n\n"),
    "messages": _written(_MESSAGES_EVENTS, named=True),
    "responses": _written(_NUMBERED, named=True),
    "generateContent": _written(_GEMINI_EVENTS, named=False, line="\r\n"),
}
USAGE = {"chat": (100, 30, 64), "messages": (40, 89, 5), "responses": (100, 30, 64), "generateContent": (100, 29, 64)}
