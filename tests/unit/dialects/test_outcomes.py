"""Every cell of the outcome table, and what must never count as completed."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_benchflow.dialects._match import dialect_for, recorded_dialect

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GEMINI = "/v1beta/models/m:generateContent"


def chat(finish: Any = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}]}


def responses(status: str | None = "completed", reason: str | None = None, *output: dict[str, Any]) -> dict[str, Any]:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    body: dict[str, Any] = {"output": list(output) or [said], "error": None}
    if status is not None:
        body["status"] = status
    return {**body, "incomplete_details": {"reason": reason} if reason else None}


def gemini(finish: str | None = "STOP", *parts: dict[str, Any]) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts) or [{"text": "x"}]}}
    return {"candidates": [{**candidate, "finishReason": finish} if finish else candidate]}


def messages(stop: Any) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": stop}


REFUSAL = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
CUT = {"type": "incomplete_stream", "message": "the stream ended without its end"}
ERROR_BODY = {"error": {"message": "overloaded", "type": "server_error"}}

TABLE: dict[str, tuple[str, int | None, Any, dict[str, str] | None, str]] = {
    "chat-stop": (CHAT, 200, chat(content="x"), None, "completed"),
    "chat-tool-calls": (CHAT, 200, chat("tool_calls", tool_calls=[]), None, "completed"),
    "chat-no-finish-key": (CHAT, 200, {"choices": [{"message": {"content": "x"}}]}, None, "completed"),
    "chat-length": (CHAT, 200, chat("length", content="x"), None, "truncated"),
    "chat-content-filter": (CHAT, 200, chat("content_filter"), None, "filtered"),
    "chat-refusal": (CHAT, 200, chat(refusal="no"), None, "refused"),
    "chat-null-finish": (CHAT, 200, chat(None, content="x"), None, "partial"),
    "chat-unknown-finish": (CHAT, 200, chat("eos"), None, "partial"),
    "chat-legacy-call": (CHAT, 200, chat("function_call", function_call={"name": "f"}), None, "completed"),
    "chat-refusal-part": (CHAT, 200, chat(content=[{"type": "refusal", "refusal": "no"}]), None, "refused"),
    "chat-unknown-part": (CHAT, 200, chat(content=[{"type": "hologram"}]), None, "partial"),
    "chat-unknown-call": (CHAT, 200, chat(tool_calls=[{"type": "hologram"}]), None, "partial"),
    "chat-cut-after-finish": (CHAT, 200, chat(content="x"), CUT, "partial"),
    "chat-second-choice-cut": (
        CHAT,
        200,
        {"choices": chat()["choices"] + chat("length")["choices"]},
        None,
        "truncated",
    ),
    "chat-http-500": (CHAT, 500, ERROR_BODY, None, "error"),
    "chat-error-with-200": (CHAT, 200, ERROR_BODY, None, "error"),
    "chat-no-answer": (CHAT, None, None, {"type": "interrupted", "message": "killed"}, "error"),
    "chat-no-choices": (CHAT, 200, {"choices": []}, None, "error"),
    "chat-text-body": (CHAT, 200, "<html>", None, "error"),
    "responses-completed": (RESPONSES, 200, responses(), None, "completed"),
    "responses-no-status": (RESPONSES, 200, responses(None), None, "completed"),
    "responses-tokens": (RESPONSES, 200, responses("incomplete", "max_output_tokens"), None, "truncated"),
    "responses-details-win": (RESPONSES, 200, responses("completed", "max_output_tokens"), None, "truncated"),
    "responses-filter": (RESPONSES, 200, responses("incomplete", "content_filter"), None, "filtered"),
    "responses-other-reason": (RESPONSES, 200, responses("incomplete", "weather"), None, "partial"),
    "responses-refusal": (RESPONSES, 200, responses("completed", None, REFUSAL), None, "refused"),
    "responses-in-progress": (RESPONSES, 200, responses("in_progress"), None, "partial"),
    "responses-queued": (RESPONSES, 200, responses("queued"), None, "partial"),
    "responses-unknown-status": (RESPONSES, 200, responses("dreaming"), None, "partial"),
    "responses-unknown-item": (RESPONSES, 200, responses("completed", None, {"type": "hologram"}), None, "partial"),
    "responses-unknown-part": (
        RESPONSES,
        200,
        responses("completed", None, {"type": "message", "content": [{"type": "hologram"}]}),
        None,
        "partial",
    ),
    "responses-failed": (RESPONSES, 200, responses("failed"), None, "error"),
    "responses-cancelled": (RESPONSES, 200, responses("cancelled"), None, "error"),
    "responses-http-429": (RESPONSES, 429, ERROR_BODY, None, "error"),
    "messages-end-turn": (MESSAGES, 200, messages("end_turn"), None, "completed"),
    "messages-tool-use": (MESSAGES, 200, messages("tool_use"), None, "completed"),
    "messages-stop-sequence": (MESSAGES, 200, messages("stop_sequence"), None, "completed"),
    "messages-max-tokens": (MESSAGES, 200, messages("max_tokens"), None, "truncated"),
    "messages-window": (MESSAGES, 200, messages("model_context_window_exceeded"), None, "truncated"),
    "messages-refusal": (MESSAGES, 200, messages("refusal"), None, "refused"),
    "messages-pause": (MESSAGES, 200, messages("pause_turn"), None, "partial"),
    "messages-null": (MESSAGES, 200, messages(None), None, "partial"),
    "messages-cut": (MESSAGES, 200, messages("end_turn"), CUT, "partial"),
    "messages-error": (MESSAGES, 200, {"type": "error", **ERROR_BODY}, None, "error"),
    "messages-compaction": (MESSAGES, 200, messages("compaction"), None, "partial"),
    "messages-unknown-block": (
        MESSAGES,
        200,
        {"content": [{"type": "hologram"}], "stop_reason": "end_turn"},
        None,
        "partial",
    ),
    "gemini-stop": (GEMINI, 200, gemini(), None, "completed"),
    "gemini-stop-with-nothing-said": (GEMINI, 200, {"candidates": [{"finishReason": "STOP"}]}, None, "completed"),
    "gemini-max-tokens": (GEMINI, 200, gemini("MAX_TOKENS"), None, "truncated"),
    "gemini-safety": (GEMINI, 200, gemini("SAFETY"), None, "filtered"),
    "gemini-recitation": (GEMINI, 200, gemini("RECITATION"), None, "filtered"),
    "gemini-blocklist": (GEMINI, 200, gemini("BLOCKLIST"), None, "filtered"),
    "gemini-prohibited": (GEMINI, 200, gemini("PROHIBITED_CONTENT"), None, "filtered"),
    "gemini-spii": (GEMINI, 200, gemini("SPII"), None, "filtered"),
    "gemini-blocked-prompt": (GEMINI, 200, {"promptFeedback": {"blockReason": "OTHER"}}, None, "filtered"),
    "gemini-no-finish": (GEMINI, 200, gemini(None), None, "partial"),
    "gemini-other": (GEMINI, 200, gemini("OTHER"), None, "partial"),
    "gemini-unspecified": (GEMINI, 200, gemini("FINISH_REASON_UNSPECIFIED"), None, "partial"),
    "gemini-to-be-continued": (GEMINI, 200, gemini("CONTINUATION"), None, "partial"),
    "gemini-half-a-call": (GEMINI, 200, gemini("STOP", {"functionCall": {"willContinue": True}}), None, "partial"),
    "gemini-malformed-call": (GEMINI, 200, gemini("MALFORMED_FUNCTION_CALL"), None, "error"),
    "gemini-error": (GEMINI, 200, {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}, None, "error"),
    "gemini-no-candidates": (GEMINI, 200, {"candidates": []}, None, "error"),
    "gemini-second-candidate-cut": (
        GEMINI,
        200,
        {"candidates": gemini()["candidates"] + gemini("MAX_TOKENS")["candidates"]},
        None,
        "truncated",
    ),
    "gemini-cut": (GEMINI, 200, gemini(), CUT, "partial"),
    "messages-error-event": (MESSAGES, 200, {**messages(None), **ERROR_BODY}, CUT, "error"),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_outcome(case: tuple[str, int | None, Any, dict[str, str] | None, str]) -> None:
    path, status, body, error, kind = case
    dialect = dialect_for(path)
    assert dialect is not None
    outcome = dialect.outcome(status, body, error)
    assert outcome.kind == kind
    assert (outcome.reason is None) == (kind == "completed"), "a reason is given exactly when it is not completed"


@pytest.mark.parametrize(
    "path", [CHAT, RESPONSES, MESSAGES, GEMINI], ids=["chat", "responses", "messages", "generateContent"]
)
@pytest.mark.parametrize("body", [None, [], {}, "text", 7], ids=["null", "list", "empty", "text", "number"])
def test_a_body_of_no_known_shape_is_never_completed(path: str, body: Any) -> None:
    dialect = dialect_for(path)
    assert dialect is not None
    assert dialect.outcome(200, body).kind == "error"
    assert dialect.response_turn(body) is None
    assert dialect.usage(body) is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions?x=1", "chat"),
        ("/chat/completions", "chat"),
        ("/responses", "responses"),
        ("/v1/messages", "messages"),
        ("/v1beta/models/gemini-x:generateContent", "generateContent"),
        ("/v1beta/models/gemini-x:streamGenerateContent?alt=sse", "generateContent"),
        ("/v1/models/gemini-x:generateContent", "generateContent"),
        ("/models/gemini-x:generateContent", "generateContent"),
        ("/v1beta/tunedModels/mine:generateContent", "generateContent"),
        ("/v1/projects/p/locations/l/publishers/google/models/m:generateContent", "generateContent"),
        ("/v1beta1/projects/p/locations/l/endpoints/7:streamGenerateContent", "generateContent"),
        ("/v1/publishers/google/models/m:streamGenerateContent", "generateContent"),
        ("/v1beta/models/gemini-x:countTokens", None),
        ("/v1beta/models/a/b:generateContent", None),
        ("/v1beta/models/m:generateContent/x", None),
        ("/v1beta/cachedContents/models/m:generateContent", None),
        ("/v1/embeddings", None),
        ("/v1/chat/completions/extra", None),
    ],
    ids=[
        "query",
        "no-version",
        "responses",
        "messages",
        "gemini",
        "gemini-stream",
        "gemini-v1",
        "gemini-no-version",
        "gemini-tuned",
        "vertex",
        "vertex-endpoint",
        "vertex-express",
        "gemini-count",
        "gemini-two-models",
        "gemini-longer",
        "gemini-elsewhere",
        "embeddings",
        "longer",
    ],
)
def test_a_path_has_one_format_or_none(path: str, name: str | None) -> None:
    dialect = dialect_for(path)
    assert (dialect.name if dialect else None) == name


AZURE = {
    "deployment": ("/openai/deployments/my-o3/chat/completions", "chat"),
    "deployment-behind-a-version": ("/v1/openai/deployments/my-o3/chat/completions?api-version=2025-04-01", "chat"),
    "responses": ("/v1/openai/responses?api-version=2025-04-01", "responses"),
    "responses-of-v1": ("/openai/v1/responses", "responses"),
    "chat-of-v1": ("/openai/v1/chat/completions", "chat"),
    "no-deployment": ("/openai/deployments/chat/completions", None),
    "deployment-of-two": ("/openai/deployments/a/b/chat/completions", None),
    "another-call": ("/openai/deployments/my-o3/embeddings", None),
    "other-start": ("/x/openai/responses", None),
    "longer-word": ("/openai-like/v1/responses", None),
}


@pytest.mark.parametrize(("path", "name"), AZURE.values(), ids=AZURE)
def test_azure_puts_a_deployment_before_a_formats_path(path: str, name: str | None) -> None:
    dialect = dialect_for(path)
    assert (dialect.name if dialect else None) == name


RECORDED = {
    "host": ("https://api.example.com/v1/chat/completions", "chat"),
    "host-and-port": ("http://10.0.0.1:4000/v1/messages?beta=true", "messages"),
    "provider-before": ("/openai/v1/responses", "responses"),
    "deployment": ("/openai/deployments/m/chat/completions?api-version=1", "chat"),
    "slash-at-the-end": ("/v1/chat/completions/", "chat"),
    "gemini-behind-a-host": ("https://example.com/v1beta/models/m:streamGenerateContent?alt=sse", "generateContent"),
    "plain": ("/v1/messages", "messages"),
    "another-call": ("https://api.example.com/v1/messages/count_tokens", None),
    "part-of-a-word": ("/v1/my-responses", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize("case", RECORDED.values(), ids=RECORDED.keys())
def test_a_recorded_path_may_say_where_it_went(case: tuple[str, str | None]) -> None:
    path, name = case
    dialect = recorded_dialect(path)
    assert (dialect.name if dialect else None) == name
