"""The OpenAI chat completions format: POST …/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Outcome, Role, ToolCall, Turn
from pytest_benchflow.dialects._chat_stream import Assembly, disassemble
from pytest_benchflow.dialects._common import (
    CUSTOM_PARAMETERS,
    EVENT_STREAM,
    REASONING_KEYS,
    add_text,
    arguments_text,
    count,
    failure,
    first_count,
    kind_of,
    listed,
    named_effort,
    text,
)
from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.records.usage import Usage
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_FINISHED = {
    "stop": "completed",
    "tool_calls": "completed",
    "function_call": "completed",
    "length": "truncated",
    "content_filter": "filtered",
}
# Kinds of content parts: those with a text and its field, those with reasoning, and those that a turn cannot hold.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING = frozenset({"thinking", "reasoning", "redacted_thinking"})
_KNOWN = frozenset({*_TEXTS, *_REASONING, "image_url", "input_audio", "file"})
# Where servers of this format say how much of the prompt came from, or went to, a cache.
_CACHE_READ = ("cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
_CACHE_CREATED = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
_CALL_KINDS = ("function", "custom")
# Keys of a message whose meaning needs no second look; most messages have no others.
_PLAIN = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})
_NO_USAGE = Usage()
_COMPLETED = Outcome("completed")


class Chat:
    """OpenAI chat completions, streamed or whole."""

    name = "chat"
    history = "messages"

    def matches(self, path: str) -> bool:
        """Tell whether a request path (no query) is this format's."""
        return path in ("/v1/chat/completions", "/chat/completions")

    def streams(self, path: str, body: Mapping[str, Any]) -> str | None:  # noqa: ARG002 - the path decides elsewhere
        """Return the content type of the stream a request asks for, None when it asks for none."""
        return EVENT_STREAM if mapping(body).get("stream") is True else None

    def assemble(self, raw: bytes) -> tuple[Any, str | None]:
        """Turn a whole event stream into the final body; the second value says why it is not complete."""
        return Assembly().read(raw)

    def disassemble(self, body: Mapping[str, Any], request: Mapping[str, Any], path: str) -> Iterator[bytes]:  # noqa: ARG002
        """Yield a final body as the event stream that would answer `request` at `path`."""
        options = mapping(mapping(request).get("stream_options"))
        return disassemble(mapping(body), usage_apart=options.get("include_usage") is True)

    def outcome(self, status: int | None, body: Any, error: Mapping[str, Any] | None = None) -> Outcome:
        """Classify an exchange; an unknown state is never completed."""
        failed = failure(status, body, error)
        if failed:
            return failed
        choices = sequence(body.get("choices"))
        if not choices:
            return Outcome("error", "the answer has no choices")
        for choice in choices:
            outcome = _choice_outcome(mapping(choice))
            if outcome.kind != "completed":
                break
        return outcome

    def request_turns(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the history a request carries."""
        return [_turn(message, mapping(message).get("role")) for message in listed(mapping(body).get("messages"))]

    def closes(self, item: Any) -> bool:  # noqa: ARG002 - each message is a turn of its own
        """Tell whether what follows this item of a history can be turned into turns without it."""
        return True

    def response_turn(self, body: Any) -> Turn | None:
        """Return the answer as one assistant turn, None when there is none."""
        choices = sequence(mapping(body).get("choices"))
        message = mapping(choices[0]).get("message") if choices else None
        if not isinstance(message, dict):
            return None
        turn = _turn(message, "assistant")
        if len(choices) == 1:
            return turn
        return Turn("assistant", turn.text, turn.tool_calls, None, turn.reasoning, (*turn.unsupported, "choices"))

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tools a request offers, as chat-style definitions."""
        body = mapping(body)
        legacy = [{"type": "function", "function": each} for each in sequence(body.get("functions"))]
        return [_tool(mapping(tool)) for tool in [*sequence(body.get("tools")), *legacy]]

    def usage(self, body: Any) -> Usage | None:
        """Return the tokens of an answer; prompt tokens include cached ones here."""
        reported = mapping(mapping(body).get("usage"))
        cached = reported | mapping(reported.get("prompt_tokens_details"))
        usage = Usage(
            count(reported.get("prompt_tokens")),
            count(reported.get("completion_tokens")),
            first_count(cached, *_CACHE_READ),
            first_count(cached, *_CACHE_CREATED),
            count(reported.get("total_tokens")),
        )
        return None if usage == _NO_USAGE else usage

    def effort(self, body: Any) -> str | None:
        """Return the reasoning effort a request asks for or a response echoes."""
        return named_effort(body)

    def error_body(self, status: int, message: str, kind: str) -> bytes:
        """Return an error answer in this format's own shape."""
        return dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})


dialect = Chat()


def _choice_outcome(choice: Mapping[str, Any]) -> Outcome:
    message = choice.get("message")
    if not isinstance(message, dict):
        return Outcome("error", "a choice without a message")
    finish = choice.get("finish_reason", "stop")
    if finish is None:
        return Outcome("partial", "finish_reason is null")
    kind = _FINISHED.get(finish) if isinstance(finish, str) else None
    if kind is None:
        return Outcome("partial", f"unknown finish_reason {finish!r}")
    if kind != "completed":
        return Outcome(kind, f"finish_reason {finish}")
    if message.get("refusal"):
        return Outcome("refused", text(message["refusal"])[:300])
    content, calls = message.get("content"), message.get("tool_calls")
    for part in content if isinstance(content, list) else ():
        if kind_of(part) == "refusal":
            return Outcome("refused", text(part.get("refusal"))[:300])
        if kind_of(part) not in _KNOWN:
            return Outcome("partial", f"unknown content part {kind_of(part)!r}")
    for call in calls if isinstance(calls, list) else ():
        kind = _call_kind(mapping(call))
        if kind not in _CALL_KINDS:
            return Outcome("partial", f"unknown tool call {kind!r}")
    return _COMPLETED


def _turn(message: Any, role: Any) -> Turn:
    message = mapping(message)
    unsupported: list[str] = []
    kept = _ROLES.get(role) if isinstance(role, str) else None
    if kept is None:
        # A legacy function result carries no call id, so it can never be paired.
        unsupported.append(f"role {role}")
    content = message.get("content")
    reasoning = 0
    if not isinstance(content, str):
        content, reasoning = _content(content, "" if role == "assistant" else "\n", unsupported)
    if not _PLAIN.issuperset(message):
        if role == "assistant":
            content = content or text(message.get("refusal"))
            reasoning += sum(1 for key in REASONING_KEYS if message.get(key))
        unsupported += [key for key in ("function_call", "audio") if message.get(key)]
    given = message.get("tool_calls")
    calls = tuple([_call(mapping(call), unsupported) for call in listed(given)]) if given is not None else ()
    if calls and role != "assistant":
        unsupported.append(f"tool calls of role {role}")
    call_id = message.get("tool_call_id") if role == "tool" else None
    if role == "tool" and not (call_id and isinstance(call_id, str)):
        unsupported.append("tool result without a tool_call_id")
        call_id = call_id if isinstance(call_id, str) else None
    return Turn(kept or "user", content, calls, call_id, reasoning, tuple(unsupported))


def _content(content: Any, joint: str, unsupported: list[str]) -> tuple[str, int]:
    if content is None:
        return "", 0
    if not isinstance(content, list):
        unsupported.append(f"content {type(content).__name__}")
        return "", 0
    texts: list[str] = []
    reasoning = 0
    for part in content:
        kind = kind_of(part)
        if kind in _TEXTS:
            add_text(part, _TEXTS[kind], texts, unsupported)
        elif kind in _REASONING:
            reasoning += 1
        else:
            unsupported.append(kind)
    return joint.join(texts), reasoning


def _call_kind(call: Mapping[str, Any]) -> str:
    return str(call.get("type") or ("custom" if "custom" in call else "function"))


def _call(call: Mapping[str, Any], unsupported: list[str]) -> ToolCall:
    asked = call.get("function")
    if call.get("type") == "function" and isinstance(asked, dict):
        call_id, name, arguments = call.get("id"), asked.get("name"), asked.get("arguments")
        if call_id and name and isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str):
            return ToolCall(call_id, name, arguments)
    return _unusual_call(call, unsupported)


def _unusual_call(call: Mapping[str, Any], unsupported: list[str]) -> ToolCall:
    call_id = text(call.get("id"))
    if not call_id:
        unsupported.append("tool call without an id")
    kind = _call_kind(call)
    asked = mapping(call.get(kind))
    name = text(asked.get("name"))
    if kind not in _CALL_KINDS:
        unsupported.append(f"tool call {kind}")
    elif not name:
        unsupported.append("tool call without a name")
    arguments = {"input": text(asked.get("input"))} if kind == "custom" else asked.get("arguments")
    return ToolCall(call_id, name, arguments_text(arguments, unsupported))


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "custom":
        return dict(tool)
    custom = mapping(tool.get("custom"))
    kept = {key: custom[key] for key in ("name", "description") if key in custom}
    return {"type": "function", "function": {**kept, "parameters": CUSTOM_PARAMETERS}}
