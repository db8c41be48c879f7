"""Write a scripted answer as a body of each wire format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import ProviderError
from pytest_benchflow.records.jsontext import dumps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.proxy.script import Call, ScriptTurn


def answer_body(dialect: str, turn: ScriptTurn, number: int, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that answers `asked` with a turn; ids derive from the turn's number, token counts from sizes."""
    if dialect not in _BODIES:
        raise ProviderError(f"the scripted model does not speak {dialect}")
    tokens_in = len(dumps(asked)) // 4
    said = [turn.text or "", turn.reasoning or "", *(_arguments(call) for call in turn.calls)]
    tokens_out = sum(map(len, said)) // 4 + 1
    body: dict[str, Any] = _BODIES[dialect](turn, number, str(asked.get("model")), (tokens_in, tokens_out))
    return body


def _arguments(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def _call_id(call: Call, number: int, position: int) -> str:
    return call.id or f"call_{number:03d}_{position}"


def _chat(turn: ScriptTurn, number: int, model: str, tokens: tuple[int, int]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if turn.refusal is not None:
        message["refusal"] = turn.refusal
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": _call_id(call, number, position),
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call)},
            }
            for position, call in enumerate(turn.calls, 1)
        ]
    finish = turn.finish or ("tool_calls" if turn.calls else "stop")
    body: dict[str, Any] = {
        "id": f"chatcmpl-{number:03d}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    if turn.usage:
        body["usage"] = {
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "total_tokens": sum(tokens),
            "prompt_tokens_details": {"cached_tokens": 0},
        }
    return body


def _responses(turn: ScriptTurn, number: int, model: str, tokens: tuple[int, int]) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if turn.reasoning is not None:
        summary = [{"type": "summary_text", "text": turn.reasoning}]
        output.append({"id": f"rs_{number:03d}", "type": "reasoning", "summary": summary})
    if turn.text is not None or turn.refusal is not None:
        part: dict[str, Any] = {"type": "output_text", "text": turn.text, "annotations": []}
        if turn.refusal is not None:
            part = {"type": "refusal", "refusal": turn.refusal}
        message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        output.append({"id": f"msg_{number:03d}", **message})
    output += [
        {
            "id": f"fc_{number:03d}_{position}",
            "type": "function_call",
            "status": "completed",
            "call_id": _call_id(call, number, position),
            "name": call.name,
            "arguments": _arguments(call),
        }
        for position, call in enumerate(turn.calls, 1)
    ]
    body: dict[str, Any] = {
        "id": f"resp_{number:03d}",
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if turn.finish else "completed",
        "incomplete_details": {"reason": turn.finish} if turn.finish else None,
        "error": None,
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    if turn.usage:
        body["usage"] = {
            "input_tokens": tokens[0],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(tokens),
        }
    return body


def _messages(turn: ScriptTurn, number: int, model: str, tokens: tuple[int, int]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if turn.reasoning is not None:
        content.append({"type": "thinking", "thinking": turn.reasoning, "signature": f"sig-{number}"})
    if turn.text is not None:
        content.append({"type": "text", "text": turn.text})
    content += [
        {
            "type": "tool_use",
            "id": _call_id(call, number, position),
            "name": call.name,
            "input": json.loads(_arguments(call)),
        }
        for position, call in enumerate(turn.calls, 1)
    ]
    stop = "refusal" if turn.refusal is not None else ("tool_use" if turn.calls else "end_turn")
    body: dict[str, Any] = {
        "id": f"msg_{number:03d}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": turn.finish or stop,
        "stop_sequence": None,
    }
    if turn.usage:
        body["usage"] = {"input_tokens": tokens[0], "output_tokens": tokens[1]}
    return body


def _generate_content(turn: ScriptTurn, number: int, model: str, tokens: tuple[int, int]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if turn.reasoning is not None:
        parts.append({"text": turn.reasoning, "thought": True})
    if turn.text is not None:
        parts.append({"text": turn.text})
    parts += [
        {
            "functionCall": {
                "id": _call_id(call, number, position),
                "name": call.name,
                "args": json.loads(_arguments(call)),
            }
        }
        for position, call in enumerate(turn.calls, 1)
    ]
    finish = "STOP" if turn.refusal is None else "PROHIBITED_CONTENT"
    body: dict[str, Any] = {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": turn.finish or finish}],
        "modelVersion": model,
        "responseId": f"resp_{number:03d}",
    }
    if turn.usage:
        body["usageMetadata"] = {
            "promptTokenCount": tokens[0],
            "candidatesTokenCount": tokens[1],
            "totalTokenCount": sum(tokens),
        }
    return body


_BODIES = {"chat": _chat, "responses": _responses, "messages": _messages, "generateContent": _generate_content}
