"""The Gemini format: POST …/models/MODEL:generateContent and :streamGenerateContent."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from pytest_benchflow.contracts import Outcome, Turn
from pytest_benchflow.dialects._common import EVENT_STREAM, count, failure, listed, single_effort, text
from pytest_benchflow.dialects._generatecontent_stream import Assembly, disassemble
from pytest_benchflow.dialects._generatecontent_turns import TurnBuilder, field, model_turn, unknown_part
from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.records.usage import Usage
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PATH = re.compile(
    r"(?:/v1(?:alpha|beta)?\d*)?(?:/projects/[^/]+/locations/[^/]+)?(?:/publishers/[^/]+)?"
    r"/(?:models|tunedModels|endpoints)/[^/:]+:(?:g|streamG)enerateContent\Z"
)
_FINISHED = {
    "STOP": "completed",
    "MAX_TOKENS": "truncated",
    "SAFETY": "filtered",
    "RECITATION": "filtered",
    "LANGUAGE": "filtered",
    "BLOCKLIST": "filtered",
    "PROHIBITED_CONTENT": "filtered",
    "SPII": "filtered",
    "IMAGE_SAFETY": "filtered",
    "IMAGE_PROHIBITED_CONTENT": "filtered",
    "IMAGE_RECITATION": "filtered",
    "ESCALATION": "filtered",
    "MODEL_ARMOR": "filtered",
    "CONTINUATION": "partial",
    "MALFORMED_FUNCTION_CALL": "error",
    "MALFORMED_RESPONSE": "error",
    "MISSING_THOUGHT_SIGNATURE": "error",
    "UNEXPECTED_TOOL_CALL": "error",
    "TOO_MANY_TOOL_CALLS": "error",
    "IMAGE_OTHER": "error",
    "NO_IMAGE": "error",
    "PUP_LIMITED_DISABLED": "error",
}
_ERROR_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# The names of the format's own schema language, which JSON Schema writes in small letters.
_TYPES = {name: name.lower() for name in ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")}


class GenerateContent:
    """Gemini generateContent, streamed or whole, as the Gemini API and Vertex AI have it."""

    name = "generateContent"
    history = "contents"

    def matches(self, path: str) -> bool:
        """Tell whether a request path (no query) is this format's."""
        return path.endswith("enerateContent") and _PATH.match(path) is not None

    def streams(self, path: str, body: Mapping[str, Any]) -> str | None:  # noqa: ARG002 - elsewhere the body decides
        """Return the content type of the stream a request asks for, None when it asks for none."""
        plain, _, query = path.partition("?")
        if not plain.endswith(":streamGenerateContent"):
            return None
        return EVENT_STREAM if parse_qs(query).get("alt") == ["sse"] else "application/json"

    def assemble(self, raw: bytes) -> tuple[Any, str | None]:
        """Turn a whole stream into the final body; the second value says why it is not complete."""
        return Assembly().read(raw)

    def disassemble(self, body: Mapping[str, Any], request: Mapping[str, Any], path: str) -> Iterator[bytes]:
        """Yield a final body as the stream that would answer `request` at `path`."""
        return disassemble(mapping(body), array=self.streams(path, request) == "application/json")

    def outcome(self, status: int | None, body: Any, error: Mapping[str, Any] | None = None) -> Outcome:
        """Classify an exchange; an unknown state is never completed."""
        failed = failure(status, body, error)
        if failed:
            return failed
        blocked = mapping(body.get("promptFeedback")).get("blockReason")
        if blocked:
            return Outcome("filtered", f"blockReason {blocked}")
        candidates = sequence(body.get("candidates"))
        if not candidates:
            return Outcome("error", "the answer has no candidates")
        outcomes = [_candidate_outcome(mapping(candidate)) for candidate in candidates]
        return next((outcome for outcome in outcomes if outcome.kind != "completed"), outcomes[0])

    def request_turns(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the history a request carries; a call without an id gets one where no other call could be meant."""
        body = mapping(body)
        builder = TurnBuilder()
        instruction = field(body, "systemInstruction", "system_instruction")
        if instruction:
            builder.system(instruction)
        for content in listed(body.get("contents")):
            builder.add(content)
        turns = builder.turns()
        cached = field(body, "cachedContent", "cached_content")
        if cached:
            # The provider keeps the start of the conversation, and its tools, under this name.
            turns.insert(0, Turn("system", unsupported=(f"cachedContent {cached}",)))
        return turns

    def closes(self, item: Any) -> bool:
        """Tell whether what follows this item of a history can be turned into turns without it."""
        return mapping(item).get("role") != "model"

    def response_turn(self, body: Any) -> Turn | None:
        """Return the answer as one assistant turn, None when there is none."""
        candidates = sequence(mapping(body).get("candidates"))
        if not candidates or not isinstance(candidates[0], dict):
            return None
        turn = model_turn(_parts(candidates[0]))
        if len(candidates) == 1:
            return turn
        return Turn("assistant", turn.text, turn.tool_calls, None, turn.reasoning, (*turn.unsupported, "candidates"))

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tools a request offers, as chat-style definitions; those the provider runs itself are left out."""
        return [
            _tool(mapping(declared))
            for tool in listed(mapping(body).get("tools"))
            for declared in listed(field(mapping(tool), "functionDeclarations", "function_declarations"))
        ]

    def usage(self, body: Any) -> Usage | None:
        """Return the tokens of an answer; the prompt includes cached ones, tool results and thoughts are added."""
        reported = mapping(mapping(body).get("usageMetadata"))
        usage = Usage(
            input_tokens=_sum(reported, "promptTokenCount", "toolUsePromptTokenCount"),
            output_tokens=_sum(reported, "candidatesTokenCount", "thoughtsTokenCount"),
            cache_read_tokens=count(reported.get("cachedContentTokenCount")),
            total_tokens=count(reported.get("totalTokenCount")),
        )
        return None if usage == Usage() else usage

    def effort(self, body: Any) -> str | None:
        """Return the thinking level a request asks for; a budget of tokens is "budget=N"."""
        config = mapping(field(mapping(body), "generationConfig", "generation_config"))
        thinking = mapping(field(config, "thinkingConfig", "thinking_config"))
        level = text(field(thinking, "thinkingLevel", "thinking_level")).lower()
        budget = field(thinking, "thinkingBudget", "thinking_budget")
        named = None if level in ("", "thinking_level_unspecified") else level
        return single_effort(named, f"budget={budget}" if isinstance(budget, int) else None)

    def error_body(self, status: int, message: str, kind: str) -> bytes:
        """Return an error answer in this format's own shape."""
        return dumps({"error": {"code": status, "message": message, "status": _ERROR_STATUS.get(status, kind)}})


dialect = GenerateContent()


def _candidate_outcome(candidate: Mapping[str, Any]) -> Outcome:
    finish = candidate.get("finishReason")
    if finish is None:
        return Outcome("partial", "no finishReason")
    kind = _FINISHED.get(finish) if isinstance(finish, str) else None
    if kind is None:
        return Outcome("partial", f"unknown finishReason {finish!r}")
    if kind == "completed":
        unknown = unknown_part(_parts(candidate))
        return Outcome("partial", unknown) if unknown else Outcome("completed")
    message = candidate.get("finishMessage")
    return Outcome(kind, f"finishReason {finish}" + (f": {text(message)[:200]}" if message else ""))


def _parts(candidate: Mapping[str, Any]) -> list[Any]:
    return listed(mapping(candidate.get("content")).get("parts"))


def _sum(reported: Mapping[str, Any], base: str, added: str) -> int | None:
    """Return two counts together; one that is 0 is not written in this format, so None only when neither is told."""
    told = [value for value in (count(reported.get(base)), count(reported.get(added))) if value is not None]
    return sum(told) if told else None


def _tool(declared: Mapping[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {key: declared[key] for key in ("name", "description") if key in declared}
    written = field(declared, "parametersJsonSchema", "parameters_json_schema")
    schema = declared.get("parameters") if written is None else written
    if written is None:
        with suppress(RecursionError):
            schema = _json_schema(schema)
    if schema is not None:
        function["parameters"] = schema
    return {"type": "function", "function": function}


def _json_schema(schema: Any) -> Any:
    """Return a schema with the type names of JSON Schema."""
    if isinstance(schema, list):
        return [_json_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            made[key] = _TYPES.get(value, value)
        elif key == "properties" and isinstance(value, dict):
            made[key] = {name: _json_schema(each) for name, each in value.items()}
        elif key in ("items", "anyOf", "any_of", "prefixItems", "additionalProperties"):
            made[key] = _json_schema(value)
    return made
