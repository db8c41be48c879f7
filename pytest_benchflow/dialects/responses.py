"""The OpenAI responses format: POST …/responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Outcome, Turn
from pytest_benchflow.dialects._common import CUSTOM_PARAMETERS, EVENT_STREAM, count, failure, single_effort, text
from pytest_benchflow.dialects._responses_items import ACTION_PARAMETERS, CALLS, OUTPUTS, TurnBuilder
from pytest_benchflow.dialects._responses_stream import Assembly, disassemble
from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.records.usage import Usage
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INCOMPLETE = {"max_output_tokens": "truncated", "content_filter": "filtered"}
_STATUSES = {"failed": "error", "cancelled": "error", "in_progress": "partial", "queued": "partial"}

# What a model may answer with; `completed` is claimed only for what is known.
_KNOWN_OUTPUT = frozenset(CALLS) | {
    "message",
    "reasoning",
    "compaction",
    "file_search_call",
    "web_search_call",
    "computer_call",
    "image_generation_call",
    "code_interpreter_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    *OUTPUTS,
}


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
        return disassemble(body)

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
        builder = TurnBuilder()
        if body.get("instructions"):
            builder.add({"role": "system", "content": body["instructions"]})
        given = body.get("input")
        for item in [{"role": "user", "content": given}] if isinstance(given, str) else sequence(given):
            builder.add(mapping(item))
        return builder.turns()

    def closes(self, item: Any) -> bool:
        """Tell whether what follows this item of a history can be turned into turns without it."""
        item = mapping(item)
        kind = item.get("type", "message")
        return kind in OUTPUTS or (kind == "message" and item.get("role") in ("user", "system", "developer"))

    def response_turn(self, body: Any) -> Turn | None:
        """Return the answer as one assistant turn, None when there is none."""
        builder = TurnBuilder()
        for item in sequence(mapping(body).get("output")):
            builder.add(mapping(item))
        turns = builder.turns()
        return turns[0] if turns and turns[0].role == "assistant" else None

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tools a request offers, as chat-style definitions; those the provider runs itself are left out."""
        made = (_tool(mapping(tool)) for tool in sequence(body.get("tools")))
        return [tool for tool in made if tool is not None]

    def usage(self, body: Any) -> Usage | None:
        """Return the tokens of an answer; input tokens include cached ones here."""
        reported = mapping(mapping(body).get("usage"))
        details = mapping(reported.get("input_tokens_details"))
        usage = Usage(
            input_tokens=count(reported.get("input_tokens")),
            output_tokens=count(reported.get("output_tokens")),
            cache_read_tokens=count(details.get("cached_tokens")),
            total_tokens=count(reported.get("total_tokens")),
        )
        return None if usage == Usage() else usage

    def effort(self, body: Any) -> str | None:
        """Return the reasoning effort a request asks for or a response echoes."""
        body = mapping(body)
        return single_effort(body.get("reasoning_effort"), mapping(body.get("reasoning")).get("effort"))

    def error_body(self, status: int, message: str, kind: str) -> bytes:
        """Return an error answer in this format's own shape."""
        return dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})


dialect = Responses()


def _finished(output: list[Any]) -> Outcome:
    """Classify an answer that says it is complete by what its items say."""
    for item in map(mapping, output):
        kind = item.get("type")
        if kind not in _KNOWN_OUTPUT:
            return Outcome("partial", f"unknown output item {kind!r}")
        if item.get("status") in ("incomplete", "in_progress"):
            return Outcome("partial", f"a {kind} item is {item['status']}")
        for part in map(mapping, sequence(item.get("content"))):
            if part.get("type") == "refusal":
                return Outcome("refused", text(part.get("refusal"))[:300])
    return Outcome("completed")


def _tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = tool.get("type")
    if kind == "function":
        return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
    if kind == "custom":
        kept = {key: tool[key] for key in ("name", "description") if key in tool}
        return {"type": "function", "function": {**kept, "parameters": CUSTOM_PARAMETERS}}
    if kind in ACTION_PARAMETERS:
        return {"type": "function", "function": {"name": kind, "parameters": ACTION_PARAMETERS[kind]}}
    return None
