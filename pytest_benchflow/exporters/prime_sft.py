"""Rows for Prime-RL's supervised fine-tuning: whole chats, tools as a JSON string."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from pytest_benchflow.exporters._strict import check_conversation, columns_of, info

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Conversation


class PrimeSft:
    """Writes `messages`, which the trainer reads whole, and beside them what a filter may ask for."""

    columns: ClassVar = {"messages": list, "tool_defs": str, "reward": float, "info": str}

    def rows(self, conversation: Conversation) -> Iterator[dict[str, Any]]:
        """Yield the one row of a conversation. Raises: UnsupportedError."""
        check_conversation(conversation)
        yield {
            "messages": columns_of(conversation),
            "tool_defs": orjson.dumps(conversation.tools).decode(),
            "reward": conversation.reward,
            "info": orjson.dumps(info(conversation)).decode(),
        }


exporter = PrimeSft()
