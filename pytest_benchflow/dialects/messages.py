"""The Anthropic messages format: POST …/messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Outcome, Role, ToolCall, Turn
from pytest_benchflow.dialects._common import (
    EVENT_STREAM,
    add_text,
    arguments_text,
    count,
    failure,
    kind_of,
    listed,
    named_effort,
    text,
)
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
    "compaction": "partial",
}
_REASONING = frozenset({"thinking", "redacted_thinking"})
# Blocks of answers that no turn can hold: what the provider ran, kept or changed itself.
_UNMAPPED = frozenset(
    {
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "compaction",
        "container_upload",
        "fallback",
        "mcp_tool_listing",
        "mcp_tool_result",
        "mcp_tool_use",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)
_KNOWN = _UNMAPPED | _REASONING | {"text", "tool_use"}
# Model calls made beside the message, which the message's own counts leave out.
_COUNTED_APART = frozenset({"compaction", "advisor_message"})
# Counts that are left out where there is nothing to count.
_CACHE = ("cache_read_input_tokens", "cache_creation_input_tokens")
# Types of tools that the provider runs itself, by how they begin.
_PROVIDER_TOOLS = ("web_", "code_execution", "mcp_", "tool_search", "advisor")
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
        return disassemble(mapping(body))

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
        if kind != "completed":
            return Outcome(kind, f"stop_reason {stop}")
        unknown = next((block for block in map(kind_of, body["content"]) if block not in _KNOWN), None)
        return Outcome("partial", f"unknown content block {unknown!r}") if unknown else Outcome("completed")

    def request_turns(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the history a request carries."""
        body = mapping(body)
        turns: list[Turn] = []
        if body.get("system"):
            turns += _spoken("system", body["system"])
        for message in map(mapping, listed(body.get("messages"))):
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
        for tool in map(mapping, sequence(mapping(body).get("tools"))):
            function: dict[str, Any] = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
            if "input_schema" in tool:
                function["parameters"] = tool["input_schema"]
            elif str(tool.get("type", "")).startswith(_PROVIDER_TOOLS):
                continue
            elif "name" not in tool and "type" in tool:
                # A family of tools that the client runs, named by its type alone.
                function["name"] = str(tool["type"])
            made.append({"type": "function", "function": function})
        return made

    def usage(self, body: Any) -> Usage | None:
        """Return the tokens of an answer; what was read from or written to a cache is added to the input here."""
        reported = mapping(mapping(body).get("usage"))
        apart = [each for each in sequence(reported.get("iterations")) if kind_of(each) in _COUNTED_APART]
        fresh = _total([reported, *apart], "input_tokens")
        read = _total([reported, *apart], "cache_read_input_tokens")
        created = _total([reported, *apart], "cache_creation_input_tokens")
        usage = Usage(
            input_tokens=None if fresh is None else fresh + (read or 0) + (created or 0),
            output_tokens=_total([reported, *apart], "output_tokens"),
            cache_read_tokens=read,
            cache_creation_tokens=created,
        )
        return None if usage == Usage() else usage

    def effort(self, body: Any) -> str | None:
        """Return the reasoning effort a request asks for or a response echoes."""
        return named_effort(body)

    def error_body(self, status: int, message: str, kind: str) -> bytes:
        """Return an error answer in this format's own shape."""
        return dumps({"type": "error", "error": {"type": _ERROR_KINDS.get(status, kind), "message": message}})


dialect = Messages()


def _total(calls: list[dict[str, Any]], key: str) -> int | None:
    """Return a count over a message and the model calls beside it; None where the message tells none."""
    if key not in _CACHE and count(calls[0].get(key)) is None:
        return None
    told = [value for value in (count(each.get(key)) for each in calls) if value is not None]
    return sum(told) if told else None


def _spoken(role: str, content: Any) -> list[Turn]:
    """Return the turns of a system or user message: each tool result is its own, text between them another."""
    kept: Role = "system" if role == "system" else "user"
    odd = () if kept == role else (f"role {role}",)
    if isinstance(content, str):
        return [Turn(kept, content, unsupported=odd)]
    turns: list[Turn] = []
    texts: list[str] = []
    unsupported = list(odd)
    for block in listed(content):
        if kind_of(block) == "tool_result":
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
    else:
        for part in listed(content):
            _text_of(part, texts, unsupported)
    call_id = text(block.get("tool_use_id"))
    if not call_id:
        unsupported.append("tool_result without a tool_use_id")
    return Turn("tool", "\n".join(texts), tool_call_id=call_id or None, unsupported=tuple(unsupported))


def _text_of(block: Any, texts: list[str], unsupported: list[str]) -> None:
    if kind_of(block) == "text":
        add_text(block, "text", texts, unsupported)
    else:
        unsupported.append(kind_of(block))


def _assistant(content: Any) -> Turn:
    if isinstance(content, str):
        return Turn("assistant", content)
    texts: list[str] = []
    calls: list[ToolCall] = []
    unsupported: list[str] = []
    reasoning = 0
    for block in listed(content):
        kind = kind_of(block)
        if kind == "tool_use":
            unsupported += [f"tool_use without {what}" for what in ("id", "name") if not text(block.get(what))]
            if "partial_json" in block:
                unsupported.append("tool_use with half an input")
            arguments = arguments_text(block.get("input", {}), unsupported)
            calls.append(ToolCall(text(block.get("id")), text(block.get("name")), arguments))
        elif kind in _REASONING:
            reasoning += 1
        else:
            _text_of(block, texts, unsupported)
    return Turn("assistant", "".join(texts), tuple(calls), None, reasoning, tuple(unsupported))
