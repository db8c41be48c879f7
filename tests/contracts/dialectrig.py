"""One invented exchange in the words of each wire format, for the contract that all formats keep."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.records.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchflow.contracts import Dialect


@dataclass(frozen=True)
class Tokens:
    """What a provider bills: prompt tokens by where they came from, and the answer's."""

    fresh: int
    read: int
    created: int
    output: int


@dataclass(frozen=True)
class Said:
    """What a model said; `calls` are (id, name, arguments)."""

    text: str | None = None
    reasoning: str | None = None
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    tokens: Tokens | None = None


@dataclass(frozen=True, repr=False)
class Rig:
    """A wire format: how it writes an answer, and a history that carries one."""

    path: str
    answer: Callable[[Said], dict[str, Any]]
    carry: Callable[[dict[str, Any]], list[Any]]  # a final body -> the items by which a later request carries it
    user: Callable[[str], Any]
    result: Callable[[str, str, str], Any]  # id, name, output
    usage: Callable[[Tokens], Usage]
    endings: dict[str, tuple[tuple[str, ...], dict[str, Any]]]  # outcome -> where in the body, what is put there

    def __repr__(self) -> str:
        return self.path

    @property
    def dialect(self) -> Dialect:
        dialect = dialect_for(self.path)
        assert dialect is not None
        return dialect

    def request(self, *items: Any) -> dict[str, Any]:
        """Return a request with this history."""
        return {"model": "m", "stream": True, self.dialect.history: list(items)}

    def ended(self, body: dict[str, Any], outcome: str) -> dict[str, Any]:
        """Return the body with another end."""
        ended: dict[str, Any] = put_in(body, *self.endings[outcome])
        return ended


def put_in(value: Any, place: tuple[str, ...], values: dict[str, Any]) -> Any:
    """Return the body with values set at a place in it; of a list the first element is meant."""
    if not place:
        return {**value, **values}
    if isinstance(value, list):
        return [put_in(value[0], place[1:], values), *value[1:]]
    return {**value, place[0]: put_in(value[place[0]], place[1:], values)}


def _chat(said: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.reasoning is not None:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for call_id, name, arguments in said.calls
        ]
    finish = "tool_calls" if said.calls else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    body: dict[str, Any] = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    if said.tokens is not None:
        prompt = said.tokens.fresh + said.tokens.read + said.tokens.created
        body["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": said.tokens.output,
            "total_tokens": prompt + said.tokens.output,
            "prompt_tokens_details": {
                "cached_tokens": said.tokens.read,
                "cache_write_tokens": said.tokens.created,
            },
        }
    return body


def _responses(said: Said) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if said.reasoning is not None:
        summary = [{"type": "summary_text", "text": said.reasoning}]
        output.append({"id": "rs_1", "type": "reasoning", "summary": summary, "encrypted_content": "e"})
    if said.text is not None or not (said.calls or said.reasoning):
        part = {"type": "output_text", "text": said.text or "", "annotations": []}
        output.append({"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]})
    output += [
        {
            "id": f"fc_{number}",
            "type": "function_call",
            "status": "completed",
            "call_id": call_id,
            "name": name,
            "arguments": json.dumps(arguments),
        }
        for number, (call_id, name, arguments) in enumerate(said.calls)
    ]
    body: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": output}
    body |= {"status": "completed", "incomplete_details": None, "error": None, "parallel_tool_calls": True}
    body |= {"tool_choice": "auto", "tools": []}
    if said.tokens is not None:
        prompt = said.tokens.fresh + said.tokens.read + said.tokens.created
        body["usage"] = {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": said.tokens.read,
                "cache_write_tokens": said.tokens.created,
            },
            "output_tokens": said.tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + said.tokens.output,
        }
    return body


def _messages(said: Said) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if said.reasoning is not None:
        content.append({"type": "thinking", "thinking": said.reasoning, "signature": "sig"})
    if said.text is not None:
        content.append({"type": "text", "text": said.text})
    content += [
        {"type": "tool_use", "id": call_id, "name": name, "input": arguments} for call_id, name, arguments in said.calls
    ]
    body: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content}
    body |= {"stop_reason": "tool_use" if said.calls else "end_turn", "stop_sequence": None}
    if said.tokens is not None:
        body["usage"] = {
            "input_tokens": said.tokens.fresh,
            "cache_read_input_tokens": said.tokens.read,
            "cache_creation_input_tokens": said.tokens.created,
            "output_tokens": said.tokens.output,
        }
    return body


def _generate_content(said: Said) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if said.reasoning is not None:
        parts.append({"text": said.reasoning, "thought": True})
    if said.text is not None:
        parts.append({"text": said.text})
    parts += [
        {"functionCall": {"id": call_id, "name": name, "args": arguments}, "thoughtSignature": "c2ln"}
        for call_id, name, arguments in said.calls
    ]
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    body: dict[str, Any] = {"candidates": [candidate], "modelVersion": "m", "responseId": "r"}
    if said.tokens is not None:
        # The prompt's tokens that came from a cache, or went to one, are told as prompt tokens only.
        body["usageMetadata"] = {
            "promptTokenCount": said.tokens.fresh + said.tokens.read,
            "toolUsePromptTokenCount": said.tokens.created,
            "cachedContentTokenCount": said.tokens.read,
            "candidatesTokenCount": said.tokens.output - said.tokens.output // 3,
            "thoughtsTokenCount": said.tokens.output // 3,
            "totalTokenCount": said.tokens.fresh + said.tokens.read + said.tokens.created + said.tokens.output,
        }
    return body


def _billed(tokens: Tokens) -> Usage:
    prompt = tokens.fresh + tokens.read + tokens.created
    return Usage(prompt, tokens.output, tokens.read, tokens.created, prompt + tokens.output)


def _chat_ends(finish: str | None) -> tuple[tuple[str, ...], dict[str, Any]]:
    return ("choices", "0"), {"finish_reason": finish}


def _responses_ends(status: str, reason: str | None = None) -> tuple[tuple[str, ...], dict[str, Any]]:
    return (), {"status": status, "incomplete_details": {"reason": reason} if reason else None}


def _messages_ends(stop: str | None) -> tuple[tuple[str, ...], dict[str, Any]]:
    return (), {"stop_reason": stop}


def _gemini_ends(finish: str | None) -> tuple[tuple[str, ...], dict[str, Any]]:
    return ("candidates", "0"), {"finishReason": finish}


RIGS = {
    "chat": Rig(
        path="/v1/chat/completions",
        answer=_chat,
        carry=lambda body: [body["choices"][0]["message"]],
        user=lambda text: {"role": "user", "content": text},
        result=lambda call_id, _, output: {"role": "tool", "tool_call_id": call_id, "content": output},
        usage=_billed,
        endings={
            "completed": _chat_ends("stop"),
            "truncated": _chat_ends("length"),
            "filtered": _chat_ends("content_filter"),
            "partial": _chat_ends(None),
            "refused": (("choices", "0", "message"), {"refusal": "no"}),
            "error": ((), {"error": {"message": "overloaded"}}),
        },
    ),
    "responses": Rig(
        path="/v1/responses",
        answer=_responses,
        carry=lambda body: body["output"],
        user=lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
        result=lambda call_id, _, output: {"type": "function_call_output", "call_id": call_id, "output": output},
        usage=_billed,
        endings={
            "completed": _responses_ends("completed"),
            "truncated": _responses_ends("incomplete", "max_output_tokens"),
            "filtered": _responses_ends("incomplete", "content_filter"),
            "partial": _responses_ends("in_progress"),
            "refused": (
                (),
                {
                    "output": [
                        {
                            "id": "m",
                            "type": "message",
                            "role": "assistant",
                            "status": "completed",
                            "content": [{"type": "refusal", "refusal": "no"}],
                        }
                    ]
                },
            ),
            "error": _responses_ends("failed"),
        },
    ),
    "messages": Rig(
        path="/v1/messages",
        answer=_messages,
        carry=lambda body: [{"role": "assistant", "content": body["content"]}],
        user=lambda text: {"role": "user", "content": text},
        result=lambda call_id, _, output: {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call_id, "content": output}],
        },
        usage=lambda tokens: _billed(tokens)._replace(total_tokens=None),
        endings={
            "completed": _messages_ends("stop_sequence"),
            "truncated": _messages_ends("max_tokens"),
            "partial": _messages_ends("pause_turn"),
            "refused": _messages_ends("refusal"),
            "error": ((), {"type": "error", "error": {"type": "api_error", "message": "broken"}}),
        },
    ),
    "generateContent": Rig(
        path="/v1beta/models/m:streamGenerateContent?alt=sse",
        answer=_generate_content,
        carry=lambda body: [body["candidates"][0]["content"]],
        user=lambda text: {"role": "user", "parts": [{"text": text}]},
        result=lambda call_id, name, output: {
            "role": "user",
            "parts": [{"functionResponse": {"id": call_id, "name": name, "response": {"output": output}}}],
        },
        usage=lambda tokens: _billed(tokens)._replace(cache_creation_tokens=None),
        endings={
            "completed": _gemini_ends("STOP"),
            "truncated": _gemini_ends("MAX_TOKENS"),
            "filtered": _gemini_ends("SAFETY"),
            "partial": _gemini_ends(None),
            "error": _gemini_ends("MALFORMED_FUNCTION_CALL"),
        },
    ),
}
# The same format in its other way to stream.
ARRAY = replace(
    RIGS["generateContent"], path="/v1/projects/p/locations/eu/publishers/google/models/m:streamGenerateContent"
)

# A high and a low surrogate side by side are one character once they were written and read.
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_CHARACTERS = st.characters(exclude_categories=[]) | st.sampled_from(["\ud800", "\udfff", "\u2028", "\x00", '"', "\\"])
TEXTS = st.text(_CHARACTERS, max_size=40).filter(lambda text: not _PAIR.search(text))
_VALUES = (
    TEXTS | st.integers(-(2**53), 2**53) | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False)
)
_ARGUMENTS = st.dictionaries(TEXTS, _VALUES | st.lists(_VALUES, max_size=2), max_size=3)
_CALLS = st.lists(
    st.tuples(TEXTS.filter(bool), TEXTS.filter(bool), _ARGUMENTS), max_size=3, unique_by=lambda call: call[0]
)
_COUNTS = st.integers(0, 2_000_000)
SAID = st.builds(
    Said,
    text=st.none() | TEXTS,
    reasoning=st.none() | TEXTS.filter(bool),
    calls=_CALLS.map(tuple),
    tokens=st.none() | st.builds(Tokens, _COUNTS, _COUNTS, _COUNTS, _COUNTS),
)
