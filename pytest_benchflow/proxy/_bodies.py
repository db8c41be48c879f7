"""Write a scripted answer as a body of each wire format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import ProviderError
from pytest_benchflow.records.jsontext import dumps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.proxy.scripted import Call, ScriptTurn


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


_BODIES = {"chat": _chat}
