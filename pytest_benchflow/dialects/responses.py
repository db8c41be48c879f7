"""The OpenAI responses format: POST …/responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Outcome, Turn
from pytest_benchflow.dialects._common import (
    CUSTOM_PARAMETERS,
    EVENT_STREAM,
    count,
    failure,
    kind_of,
    listed,
    named_effort,
    text,
)
from pytest_benchflow.dialects._responses_items import (
    ACTION_PARAMETERS,
    CALLS,
    OUTPUTS,
    TurnBuilder,
    item_kind,
    tool_name,
)
from pytest_benchflow.dialects._responses_stream import Assembly, disassemble
from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.records.usage import Usage
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INCOMPLETE = {"max_output_tokens": "truncated", "content_filter": "filtered"}
_STATUSES = {"failed": "error", "cancelled": "error", "in_progress": "partial", "queued": "partial"}

# What an answer may hold; `completed` is claimed only for what is known. Most of it no turn can hold.
_KNOWN_OUTPUT = frozenset(CALLS) | {
    "additional_tools",
    "code_interpreter_call",
    "compaction",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "message",
    "program",
    "program_output",
    "reasoning",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
    *OUTPUTS,
}
_KNOWN_PARTS = frozenset({"output_text", "text", "refusal"})


class Responses:
    """OpenAI responses, streamed or whole."""

    name = "responses"
    history = "input"

    def matches(self, path: str) -> bool:
        """Tell whether a request path (no query) is this format's."""
        return path in ("/v1/responses", "/responses")

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
        if not isinstance(body.get("output"), list):
            return Outcome("error", "the answer has no output")
        state = body.get("status", "completed")
        details = body.get("incomplete_details")
        if state == "incomplete" or (state == "completed" and details):
            reason = mapping(details).get("reason")
            return Outcome(_INCOMPLETE.get(str(reason), "partial"), f"incomplete: {reason}")
        if state == "completed":
            return _finished(body["output"])
        return Outcome(_STATUSES.get(str(state), "partial"), f"status {state}")

    def request_turns(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the history a request carries, without what a previous_response_id stands for."""
        body = mapping(body)
        builder = TurnBuilder()
        if body.get("prompt"):
            # A template kept by the provider: what it says stands before all else, and is not known.
            builder.add({"role": "system", "content": [{"type": "prompt template"}]})
        if body.get("instructions"):
            builder.add({"role": "system", "content": body["instructions"]})
        given = body.get("input")
        for item in [{"role": "user", "content": given}] if isinstance(given, str) else listed(given):
            builder.add(item)
        return builder.turns()

    def closes(self, item: Any) -> bool:
        """Tell whether what follows this item of a history can be turned into turns without it."""
        kind = item_kind(item)
        return kind in OUTPUTS or (kind == "message" and item.get("role") != "assistant")

    def response_turn(self, body: Any) -> Turn | None:
        """Return the answer as one assistant turn, None when there is none."""
        builder = TurnBuilder()
        for item in sequence(mapping(body).get("output")):
            builder.add(item)
        turns = builder.turns()
        if not turns:
            return None
        turn = next((each for each in turns if each.role == "assistant"), Turn("assistant"))
        others = tuple(f"{each.role} item in an answer" for each in turns if each is not turn)
        return turn._replace(unsupported=turn.unsupported + others) if others else turn

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tools a request offers, as chat-style definitions; those the provider runs itself are left out."""
        return [made for tool in sequence(mapping(body).get("tools")) for made in _tools(mapping(tool))]

    def usage(self, body: Any) -> Usage | None:
        """Return the tokens of an answer; input tokens include cached ones here."""
        reported = mapping(mapping(body).get("usage"))
        details = mapping(reported.get("input_tokens_details"))
        usage = Usage(
            input_tokens=count(reported.get("input_tokens")),
            output_tokens=count(reported.get("output_tokens")),
            cache_read_tokens=count(details.get("cached_tokens")),
            cache_creation_tokens=count(details.get("cache_write_tokens")),
            total_tokens=count(reported.get("total_tokens")),
        )
        return None if usage == Usage() else usage

    def effort(self, body: Any) -> str | None:
        """Return the reasoning effort a request asks for or a response echoes."""
        return named_effort(body)

    def error_body(self, status: int, message: str, kind: str) -> bytes:
        """Return an error answer in this format's own shape."""
        return dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})


dialect = Responses()


def _finished(output: list[Any]) -> Outcome:
    """Classify an answer that says it is complete by what its items say."""
    for item in output:
        kind = item_kind(item)
        if kind not in _KNOWN_OUTPUT:
            return Outcome("partial", f"unknown output item {kind!r}")
        if item.get("status") in ("incomplete", "in_progress"):
            return Outcome("partial", f"a {kind} item is {item['status']}")
        for part in sequence(item.get("content")) if kind == "message" else ():
            if kind_of(part) == "refusal":
                return Outcome("refused", text(part.get("refusal"))[:300])
            if kind_of(part) not in _KNOWN_PARTS:
                return Outcome("partial", f"unknown content part {kind_of(part)!r}")
    return Outcome("completed")


def _tools(tool: Mapping[str, Any], namespace: str = "") -> Iterator[dict[str, Any]]:
    kind = kind_of(tool)
    if kind == "namespace":
        for inner in map(mapping, sequence(tool.get("tools"))):
            if kind_of(inner) in ("function", "custom"):
                yield from _tools(inner, text(tool.get("name")))
        return
    if kind in ACTION_PARAMETERS:
        yield {"type": "function", "function": {"name": kind, "parameters": ACTION_PARAMETERS[kind]}}
    if kind not in ("function", "custom"):
        return
    function = {key: value for key, value in tool.items() if key != "type"}
    if kind == "custom":
        function = {key: tool[key] for key in ("name", "description") if key in tool} | {
            "parameters": CUSTOM_PARAMETERS
        }
    if namespace:
        function["name"] = tool_name(text(function.get("name")), namespace)
    yield {"type": "function", "function": function}
