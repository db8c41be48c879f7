"""The Anthropic messages format: POST …/messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Outcome, Role, ToolCall, Turn
from pytest_benchflow.dialects._common import EVENT_STREAM, arguments_text, count, failure, text
from pytest_benchflow.dialects._messages_stream import Assembly, disassemble
from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.records.usage import Usage
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STOPPED = {
    "end_turn": "completed",
    "tool_use": "completed",
    "stop_sequence": "completed",
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "refusal": "refused",
    "pause_turn": "partial",
}
_ERROR_KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}


class Messages:
    """Anthropic messages, streamed or whole."""

    name = "messages"
    history = "messages"

    def matches(self, path: str) -> bool:
        """Tell whether a request path (no query) is this format's."""
        return path in ("/v1/messages", "/messages")

    def streams(self, path: str, body: Mapping[str, Any]) -> str | None:  # noqa: ARG002 - the path decides elsewhere
        """Return the content type of the stream a request asks for, None when it asks for none."""
        return EVENT_STREAM if mapping(body).get("stream") is True else None

    def assemble(self, raw: bytes) -> tuple[Any, str | None]:
        """Turn a whole event stream into the final body; the second value says why it is not complete."""
        return Assembly().read(raw)

    def disassemble(self, body: Mapping[str, Any], request: Mapping[str, Any], path: str) -> Iterator[bytes]:  # noqa: ARG002
        """Yield a final body as the event stream that would answer `request` at `path`."""
        return disassemble(body)

    def outcome(self, status: int | None, body: Any, error: Mapping[str, Any] | None = None) -> Outcome:
        """Classify an exchange; an unknown state is never completed."""
        failed = failure(status, body, error)
        if failed:
            return failed
        if not isinstance(body.get("content"), list):
            return Outcome("error", "the answer has no content")
        stop = body.get("stop_reason")
        if stop is None:
            return Outcome("partial", "stop_reason is null")
        kind = _STOPPED.get(stop) if isinstance(stop, str) else None
        if kind is None:
            return Outcome("partial", f"unknown stop_reason {stop!r}")
        return Outcome(kind, None if kind == "completed" else f"stop_reason {stop}")

    def request_turns(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the history a request carries."""
        turns: list[Turn] = []
        if body.get("system"):
            turns += _spoken("system", body["system"])
        for message in map(mapping, sequence(body.get("messages"))):
            role = message.get("role")
            if role == "assistant":
                turns.append(_assistant(message.get("content")))
            else:
                turns += _spoken(str(role), message.get("content"))
        return turns

    def closes(self, item: Any) -> bool:  # noqa: ARG002 - each message gives turns of its own
        """Tell whether what follows this item of a history can be turned into turns without it."""
        return True

    def response_turn(self, body: Any) -> Turn | None:
        """Return the answer as one assistant turn, None when there is none."""
        content = mapping(body).get("content")
        return _assistant(content) if isinstance(content, list) else None

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tools a request offers, as chat-style definitions; those the provider runs itself are left out."""
        made: list[dict[str, Any]] = []
        for tool in map(mapping, sequence(body.get("tools"))):
            function: dict[str, Any] = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
            if "input_schema" in tool:
                function["parameters"] = tool["input_schema"]
            elif str(tool.get("type", "")).startswith(("web_", "code_execution", "mcp_", "tool_search")):
                continue
            made.append({"type": "function", "function": function})
        return made

    def usage(self, body: Any) -> Usage | None:
        """Return the tokens of an answer; what was read from or written to a cache is added to the input here."""
        reported = mapping(mapping(body).get("usage"))
        fresh = count(reported.get("input_tokens"))
        read = count(reported.get("cache_read_input_tokens"))
        created = count(reported.get("cache_creation_input_tokens"))
        usage = Usage(
            input_tokens=None if fresh is None else fresh + (read or 0) + (created or 0),
            output_tokens=count(reported.get("output_tokens")),
            cache_read_tokens=read,
            cache_creation_tokens=created,
        )
        return None if usage == Usage() else usage

    def effort(self, body: Any) -> str | None:
        """Return the reasoning effort a request asks for or a response echoes."""
        effort = mapping(mapping(body).get("output_config")).get("effort")
        return effort if isinstance(effort, str) else None

    def error_body(self, status: int, message: str, kind: str) -> bytes:
        """Return an error answer in this format's own shape."""
        return dumps({"type": "error", "error": {"type": _ERROR_KINDS.get(status, kind), "message": message}})


dialect = Messages()


def _spoken(role: str, content: Any) -> list[Turn]:
    """Return the turns of a system or user message: each tool result is its own, text between them another."""
    kept: Role = "system" if role == "system" else "user"
    odd = () if kept == role else (f"role {role}",)
    if isinstance(content, str):
        return [Turn(kept, content, unsupported=odd)]
    turns: list[Turn] = []
    texts: list[str] = []
    unsupported = list(odd)
    for block in map(mapping, sequence(content)):
        if block.get("type") == "tool_result":
            if texts or unsupported:
                turns.append(Turn(kept, "\n".join(texts), unsupported=tuple(unsupported)))
                texts, unsupported = [], []
            turns.append(_result(block))
        else:
            _text_of(block, texts, unsupported)
    if texts or unsupported or not turns:
        turns.append(Turn(kept, "\n".join(texts), unsupported=tuple(unsupported)))
    return turns


def _result(block: Mapping[str, Any]) -> Turn:
    content = block.get("content")
    texts: list[str] = []
    unsupported: list[str] = []
    if isinstance(content, str):
        texts.append(content)
    for part in map(mapping, sequence(content)):
        _text_of(part, texts, unsupported)
    call_id = text(block.get("tool_use_id"))
    return Turn("tool", "\n".join(texts), tool_call_id=call_id or None, unsupported=tuple(unsupported))


def _text_of(block: Mapping[str, Any], texts: list[str], unsupported: list[str]) -> None:
    if block.get("type") == "text":
        texts.append(text(block.get("text")))
    else:
        unsupported.append(str(block.get("type")))


def _assistant(content: Any) -> Turn:
    if isinstance(content, str):
        return Turn("assistant", content)
    texts: list[str] = []
    calls: list[ToolCall] = []
    unsupported: list[str] = []
    reasoning = 0
    for block in map(mapping, sequence(content)):
        kind = block.get("type")
        if kind == "text":
            texts.append(text(block.get("text")))
        elif kind == "tool_use":
            if not block.get("id"):
                unsupported.append("tool_use without an id")
            arguments = arguments_text(block.get("input", {}), unsupported)
            calls.append(ToolCall(text(block.get("id")), text(block.get("name")), arguments))
        elif kind in ("thinking", "redacted_thinking"):
            reasoning += 1
        else:
            unsupported.append(str(kind))
    return Turn("assistant", "".join(texts), tuple(calls), None, reasoning, tuple(unsupported))
