"""Rows for Prime-RL's supervised fine-tuning: whole chats in columns of one type each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from pytest_benchflow.exporters._strict import about, check_conversation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Conversation, Exporter

_KEYS = ("role", "content", "tool_calls", "tool_call_id")


class PrimeSft:
    """Writes `messages`, which the trainer reads whole, and beside them what a filter may ask for."""

    versions = ()
    columns: ClassVar = {"messages": list, "tool_defs": str, "reward": float, "info": str}
    loaders = ("pyarrow", "datasets")

    def rows(self, conversation: Conversation, _version: str) -> Iterator[dict[str, Any]]:
        """Yield the one row of a conversation. Raises: UnsupportedError."""
        check_conversation(conversation)
        yield {
            # Every key in every message, so that loaders see one type.
            "messages": [{key: message.get(key) for key in _KEYS} for message in conversation.messages],
            "tool_defs": orjson.dumps(conversation.tools).decode(),
            "reward": conversation.reward,
            "info": orjson.dumps(about(conversation)).decode(),
        }


exporter: Exporter = PrimeSft()
