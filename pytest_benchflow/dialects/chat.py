"""The OpenAI chat completions format: POST …/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Outcome, Role, ToolCall, Turn
from pytest_benchflow.dialects._common import (
    CUSTOM_PARAMETERS,
    EVENT_STREAM,
    REASONING_KEYS,
    arguments_text,
    count,
    event,
    events,
    failure,
    pieces,
    single_effort,
    text,
)
from pytest_benchflow.records.jsontext import dumps, loads
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
_FINISHED = {"stop": "completed", "tool_calls": "completed", "length": "truncated", "content_filter": "filtered"}


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
        return _Assembly().read(raw)

    def disassemble(self, body: Mapping[str, Any], request: Mapping[str, Any], path: str) -> Iterator[bytes]:  # noqa: ARG002
        """Yield a final body as the event stream that would answer `request` at `path`."""
        head = {key: value for key, value in body.items() if key not in ("choices", "usage", "object")}
        head["object"] = "chat.completion.chunk"
        apart = mapping(request.get("stream_options")).get("include_usage") is True
        last: dict[str, Any] = {"choices": []}
        for choice in sequence(body.get("choices")):
            for part in _choice_parts(mapping(choice)):
                if last["choices"]:
                    yield event({**head, **last})
                last = {"choices": [part]}
        if body.get("usage") is not None:
            if apart:
                yield event({**head, **last})
                last = {"choices": []}
            last["usage"] = body["usage"]
        yield event({**head, **last})
        yield b"data: [DONE]\n\n"

    def outcome(self, status: int | None, body: Any, error: Mapping[str, Any] | None = None) -> Outcome:
        """Classify an exchange; an unknown state is never completed."""
        failed = failure(status, body, error)
        if failed:
            return failed
        choices = sequence(body.get("choices"))
        if not choices:
            return Outcome("error", "the answer has no choices")
        outcomes = [_choice_outcome(mapping(choice)) for choice in choices]
        return next((outcome for outcome in outcomes if outcome.kind != "completed"), outcomes[0])

    def request_turns(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the history a request carries."""
        return [_turn(mapping(message)) for message in sequence(body.get("messages"))]

    def closes(self, item: Any) -> bool:  # noqa: ARG002 - each message is a turn of its own
        """Tell whether what follows this item of a history can be turned into turns without it."""
        return True

    def response_turn(self, body: Any) -> Turn | None:
        """Return the answer as one assistant turn, None when there is none."""
        choices = sequence(mapping(body).get("choices"))
        message = mapping(choices[0]).get("message") if choices else None
        if not isinstance(message, dict):
            return None
        turn = _turn({**message, "role": "assistant"})
        if len(choices) == 1:
            return turn
        return Turn("assistant", turn.text, turn.tool_calls, None, turn.reasoning, (*turn.unsupported, "choices"))

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tools a request offers, as chat-style definitions."""
        legacy = [{"type": "function", "function": each} for each in sequence(body.get("functions"))]
        return [_tool(mapping(tool)) for tool in [*sequence(body.get("tools")), *legacy]]

    def usage(self, body: Any) -> Usage | None:
        """Return the tokens of an answer; prompt tokens include cached ones here."""
        reported = mapping(mapping(body).get("usage"))
        details = mapping(reported.get("prompt_tokens_details"))
        usage = Usage(
            input_tokens=count(reported.get("prompt_tokens")),
            output_tokens=count(reported.get("completion_tokens")),
            cache_read_tokens=count(details.get("cached_tokens")),
            cache_creation_tokens=count(details.get("cache_creation_tokens")),
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
    if kind == "completed" and message.get("refusal"):
        return Outcome("refused", text(message["refusal"])[:300])
    return Outcome(kind, None if kind == "completed" else f"finish_reason {finish}")


def _choice_parts(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    index = choice.get("index", 0)
    message = mapping(choice.get("message"))
    texts = {key: value for key, value in message.items() if isinstance(value, str) and key != "role"}
    rest = {key: value for key, value in message.items() if key not in texts and key != "tool_calls"}
    yield {"index": index, "delta": rest, "finish_reason": None}
    for key, value in texts.items():
        for piece in pieces(value):
            yield {"index": index, "delta": {key: piece}, "finish_reason": None}
    for number, call in enumerate(sequence(message.get("tool_calls"))):
        kind = "custom" if "custom" in call else "function"
        inner = dict(mapping(call.get(kind)))
        long = "input" if kind == "custom" else "arguments"
        whole = text(inner.pop(long, ""))
        opening = {**call, "index": number, kind: {**inner, long: ""}}
        yield {"index": index, "delta": {"tool_calls": [opening]}, "finish_reason": None}
        for piece in pieces(whole):
            part = {"index": number, kind: {long: piece}}
            yield {"index": index, "delta": {"tool_calls": [part]}, "finish_reason": None}
    others = {key: value for key, value in choice.items() if key not in ("index", "message")}
    yield {"index": index, "delta": {}, **others}


def _turn(message: Mapping[str, Any]) -> Turn:
    role = message.get("role")
    unsupported: list[str] = []
    if role not in _ROLES:
        # A legacy function result carries no call id, so it can never be paired.
        unsupported.append(f"role {role}")
    content, reasoning = _content(message.get("content"), "" if role == "assistant" else "\n", unsupported)
    if not content and message.get("refusal"):
        content = text(message["refusal"])
    reasoning += sum(1 for key in REASONING_KEYS if message.get(key))
    if message.get("function_call"):
        unsupported.append("function_call")
    if message.get("audio"):
        unsupported.append("audio")
    calls = tuple(_call(mapping(call), unsupported) for call in sequence(message.get("tool_calls")))
    call_id = message.get("tool_call_id")
    return Turn(
        role=_ROLES.get(str(role), "user"),
        text=content,
        tool_calls=calls,
        tool_call_id=call_id if isinstance(call_id, str) else None,
        reasoning=reasoning,
        unsupported=tuple(unsupported),
    )


def _content(content: Any, joint: str, unsupported: list[str]) -> tuple[str, int]:
    if isinstance(content, str) or content is None:
        return content or "", 0
    texts: list[str] = []
    reasoning = 0
    for part in sequence(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind in ("text", "input_text", "output_text"):
            texts.append(text(part.get("text")))
        elif kind == "refusal":
            texts.append(text(part.get("refusal")))
        elif kind in ("thinking", "reasoning", "redacted_thinking"):
            reasoning += 1
        else:
            unsupported.append(str(kind))
    if not isinstance(content, list):
        unsupported.append(f"content {type(content).__name__}")
    return joint.join(texts), reasoning


def _call(call: Mapping[str, Any], unsupported: list[str]) -> ToolCall:
    call_id = text(call.get("id"))
    if not call_id:
        unsupported.append("tool call without an id")
    if call.get("type") == "custom":
        custom = mapping(call.get("custom"))
        arguments = dumps({"input": text(custom.get("input"))}).decode()
        return ToolCall(call_id, text(custom.get("name")), arguments)
    function = mapping(call.get("function"))
    return ToolCall(call_id, text(function.get("name")), arguments_text(function.get("arguments"), unsupported))


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "custom":
        return dict(tool)
    custom = mapping(tool.get("custom"))
    kept = {key: custom[key] for key in ("name", "description") if key in custom}
    return {"type": "function", "function": {**kept, "parameters": CUSTOM_PARAMETERS}}


class _Assembly:
    """One chat stream on its way to a chat.completion body."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, dict[Any, dict[str, Any]]] = {}

    def read(self, raw: bytes) -> tuple[Any, str | None]:
        """Return the body and why it is not complete."""
        done = False
        reason: str | None = None
        for number, (_, data) in enumerate(events(raw), 1):
            if data.strip() == b"[DONE]":
                done = True
                continue
            try:
                chunk = loads(data)
            except ValueError:
                reason = reason or f"event {number} of the stream is cut or not JSON"
                continue
            self._add(mapping(chunk))
        body = {**self._body, "choices": [self._choices[index] for index in sorted(self._choices)]}
        if body.get("object") == "chat.completion.chunk":
            body["object"] = "chat.completion"
        if reason is None and body.get("error"):
            reason = "an error event came after the status"
        if reason is None and not done:
            reason = "the stream ended without [DONE]"
        if reason is None and not self._choices:
            reason = "the stream held no choice"
        return body, reason

    def _add(self, chunk: Mapping[str, Any]) -> None:
        for key, value in chunk.items():
            if key != "choices" and (value is not None or key not in self._body):
                self._body[key] = value
        for choice in sequence(chunk.get("choices")):
            self._add_choice(mapping(choice))

    def _add_choice(self, part: Mapping[str, Any]) -> None:
        index = part["index"] if isinstance(part.get("index"), int) else 0
        fresh = {"index": index, "message": {"content": None}, "finish_reason": None}
        choice = self._choices.setdefault(index, fresh)
        for key, value in part.items():
            if key in ("index", "delta"):
                continue
            if key == "logprobs" and isinstance(value, dict) and isinstance(choice.get(key), dict):
                _grow(choice[key], value)
            elif value is not None or key not in choice:
                choice[key] = value
        delta = mapping(part.get("delta"))
        _grow(choice["message"], {key: value for key, value in delta.items() if key != "tool_calls"})
        for call in sequence(delta.get("tool_calls")):
            self._add_call(index, choice["message"], mapping(call))

    def _add_call(self, index: int, message: dict[str, Any], part: Mapping[str, Any]) -> None:
        calls = self._calls.setdefault(index, {})
        key = part.get("index")
        if key is None:
            # Without an index a new id opens a call and everything else continues the last one.
            key = part.get("id") or next(reversed(calls), "")
        if key not in calls:
            calls[key] = {}
            message.setdefault("tool_calls", []).append(calls[key])
        call = calls[key]
        for name, value in part.items():
            if isinstance(value, dict):
                inner = call.setdefault(name, {})
                repeated = value.get("name") is not None and value.get("name") == inner.get("name")
                _grow(inner, {k: v for k, v in value.items() if not (k == "name" and repeated)})
            elif name != "index" and value is not None:
                call[name] = value


def _grow(target: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Append strings and lists of `part` to those of `target`; other values replace what was there."""
    for key, value in part.items():
        old = target.get(key)
        if key != "role" and isinstance(old, str) and isinstance(value, str):
            target[key] = old + value
        elif isinstance(old, list) and isinstance(value, list):
            old.extend(value)
        elif value is not None or key not in target:
            target[key] = value
