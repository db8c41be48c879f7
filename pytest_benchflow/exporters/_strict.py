"""Say what messages a trainer reads, and refuse all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_benchflow.contracts import Conversation


def calls_of(message: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Return the calls of a message, none for most."""
    return message.get("tool_calls") or ()


def parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object."""
    function = call["function"]
    return {**call, "function": {**function, "arguments": orjson.loads(function["arguments"])}}


def about(conversation: Conversation) -> dict[str, Any]:
    """Return where a row comes from and what was done to it."""
    return {
        "source": "benchflow",
        "task": conversation.task,
        "rollout": conversation.rollout,
        "agent": conversation.agent,
        "model": conversation.model,
        "role": conversation.role,
        "branch": conversation.branch,
        "exchanges": sorted(conversation.exchanges),
        "repeated_exchanges": sorted(conversation.repeated),
        "redactions": conversation.redactions,
        "trainable_text_redacted": conversation.trainable_redacted,
        "tools_redefined": list(conversation.tools_redefined),
        # Answers in the history that no selected exchange gave, such as examples or what a client made up.
        "foreign_answers": sum(
            message["role"] == "assistant" and origin is None
            for message, origin in zip(conversation.messages, conversation.origins, strict=True)
        ),
    }


def check_conversation(conversation: Conversation) -> None:
    """Refuse what no trainer should read. Raises: UnsupportedError, its text a countable reason and the facts."""
    check_messages(conversation.messages)
    if not conversation.tools and any(calls_of(message) for message in conversation.messages):
        raise UnsupportedError("calls_without_tools: the conversation calls tools that no request offered")


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse messages that trainers trip over. Raises: UnsupportedError, its text a countable reason and the facts."""
    called: set[str] = set()
    for place, message in enumerate(messages):
        role, content = message["role"], message["content"]
        where = f"messages[{place}] ({role})"
        if not isinstance(content, str):
            raise UnsupportedError(f"content_no_string: {where}")
        if role == "system" and place:
            raise UnsupportedError(f"system_message_inside: {where}")
        if role == "tool" and message.get("tool_call_id") not in called:
            raise UnsupportedError(f"orphan_tool_result: {where} answers no call before it")
        calls = calls_of(message)
        if role in ("user", "assistant") and not content.strip() and not calls:
            raise UnsupportedError(f"empty_turn: {where} holds nothing")
        for call in calls:
            called.add(call["id"])
            _check_arguments(call["function"]["arguments"], where)
    if not messages or messages[-1]["role"] != "assistant":
        raise UnsupportedError("no_answer: the conversation does not end with an answer")


def _check_arguments(arguments: Any, where: str) -> None:
    try:
        value = orjson.loads(arguments)
    except (TypeError, orjson.JSONDecodeError) as error:
        raise UnsupportedError(f"invalid_arguments: {where}: {error}") from None
    if not isinstance(arguments, str) or not isinstance(value, dict):
        raise UnsupportedError(f"invalid_arguments: {where}: not a JSON object in a string")
