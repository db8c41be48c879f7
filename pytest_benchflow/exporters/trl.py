"""Rows for TRL's supervised fine-tuning: the conversational language-modelling format, with tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from pytest_benchflow.exporters._strict import about, calls_of, check_conversation, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Conversation, Exporter


class Trl:
    """Writes `messages` with arguments as objects, which chat templates expect, and `tools` as a JSON string."""

    versions = ()
    columns: ClassVar = {"messages": list, "tools": str, "reward": float, "info": str}
    # Objects of many shapes are more than pyarrow's own reader takes.
    loaders = ("datasets",)

    def rows(self, conversation: Conversation, _version: str) -> Iterator[dict[str, Any]]:
        """Yield the one row of a conversation. Raises: UnsupportedError."""
        check_conversation(conversation)
        yield {
            "messages": list(_messages(conversation)),
            "tools": orjson.dumps(conversation.tools).decode(),
            "reward": conversation.reward,
            "info": orjson.dumps(about(conversation)).decode(),
        }


def _messages(conversation: Conversation) -> Iterator[dict[str, Any]]:
    names: dict[str, str] = {}
    for message in conversation.messages:
        names |= {call["id"]: call["function"]["name"] for call in calls_of(message)}
        if message["role"] == "tool":
            yield {**message, "name": names[message["tool_call_id"]]}
        elif "tool_calls" in message:
            yield {**message, "tool_calls": [parsed(call) for call in message["tool_calls"]]}
        else:
            yield message


exporter: Exporter = Trl()
