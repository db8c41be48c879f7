"""The JSON that each wire protocol has for a turn: items of the history, request heads, response bodies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.corpus.turns import Json, Tool, ToolCall, Turn

PROTOCOLS = ("chat", "responses", "anthropic")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
MODELS = {
    "chat": "openai/gpt-bench",
    "responses": "openai/gpt-bench-codex",
    "anthropic": "anthropic/claude-bench",
}


def chat_assistant(turn: Turn) -> Json:
    """Return the assistant's message, which is also the trainer row's form of it."""
    message: Json = {"role": "assistant", "content": turn.text}
    if turn.calls:
        message["tool_calls"] = [_chat_call(call) for call in turn.calls]
    return message


def chat_tool(tool: Tool) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def user_item(protocol: str, prompt: str) -> Json:
    if protocol == "responses":
        return {"role": "user", "content": [{"type": "input_text", "text": prompt}]}
    if protocol == "anthropic":
        return {"role": "user", "content": [{"type": "text", "text": prompt}]}
    return {"role": "user", "content": prompt}


def history_items(protocol: str, turn: Turn) -> list[Json]:
    """Return what the agent appends to its history after a turn."""
    if protocol == "chat":
        return [chat_assistant(turn), *_chat_results(turn)]
    if protocol == "responses":
        outputs = [{"type": "function_call_output", "call_id": c.id, "output": c.output} for c in turn.calls]
        return [_responses_message(turn), *_responses_calls(turn), *outputs]
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": c.output} for c in turn.calls]
    return [{"role": "assistant", "content": _anthropic_blocks(turn)}, {"role": "user", "content": results}]


def trainer_items(protocol: str, turn: Turn) -> list[Json]:
    """Return the same history as the trainer row has it."""
    if protocol != "responses":
        return [chat_assistant(turn), *_chat_results(turn)]
    calls = [{"role": "assistant", "content": "", "tool_calls": [_chat_call(call)]} for call in turn.calls]
    return [{"role": "assistant", "content": turn.text}, *calls, *_chat_results(turn)]


def request_head(protocol: str, system: str, tools: list[Tool]) -> tuple[Json, str, list[Json]]:
    """Return the constant part of a request's body, the key of its history, and how that history starts."""
    model = MODELS[protocol]
    if protocol == "chat":
        start: list[Json] = [{"role": "system", "content": system}]
        return {"model": model, "tools": [chat_tool(tool) for tool in tools]}, "messages", start
    if protocol == "responses":
        flat = [{"type": "function", **chat_tool(tool)["function"]} for tool in tools]
        return {"model": model, "instructions": system, "tools": flat}, "input", []
    schemas = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in tools]
    return {"model": model, "max_tokens": 8192, "system": system, "tools": schemas}, "messages", []


def response_body(protocol: str, turn: Turn, response_id: str, tokens: tuple[int, int] | None) -> Json:
    """Return the body that carries a turn; `tokens` are those in and out, None when no usage is reported."""
    body = {"chat": _chat_body, "responses": _responses_body, "anthropic": _anthropic_body}[protocol](
        turn, response_id, MODELS[protocol]
    )
    if tokens is not None:
        names = ("prompt_tokens", "completion_tokens") if protocol == "chat" else ("input_tokens", "output_tokens")
        total = {} if protocol == "anthropic" else {"total_tokens": sum(tokens)}
        body["usage"] = dict(zip(names, tokens, strict=True)) | total
    return body


def _chat_body(turn: Turn, response_id: str, model: str) -> Json:
    choice = {
        "index": 0,
        "finish_reason": "tool_calls" if turn.calls else "stop",
        "message": chat_assistant(turn),
    }
    return {"id": f"chatcmpl-{response_id}", "object": "chat.completion", "model": model, "choices": [choice]}


def _responses_body(turn: Turn, response_id: str, model: str) -> Json:
    return {
        "id": f"resp_{response_id}",
        "object": "response",
        "status": "completed",
        "model": model,
        "output": [_responses_message(turn), *_responses_calls(turn)],
    }


def _anthropic_body(turn: Turn, response_id: str, model: str) -> Json:
    return {
        "id": f"msg_{response_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _anthropic_blocks(turn),
        "stop_reason": "tool_use" if turn.calls else "end_turn",
    }


def _chat_call(call: ToolCall) -> Json:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
    }


def _chat_results(turn: Turn) -> list[Json]:
    return [{"role": "tool", "tool_call_id": call.id, "content": call.output} for call in turn.calls]


def _responses_message(turn: Turn) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": turn.text}]}


def _responses_calls(turn: Turn) -> list[Json]:
    return [
        {
            "type": "function_call",
            "id": call.id.replace("call_", "fc_"),
            "call_id": call.id,
            "name": call.name,
            "arguments": json.dumps(call.arguments),
        }
        for call in turn.calls
    ]


def _anthropic_blocks(turn: Turn) -> list[Json]:
    calls = [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in turn.calls]
    return [{"type": "text", "text": turn.text}, *calls]
