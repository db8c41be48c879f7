"""Examples for fine-tuning chat models at OpenAI and services that take its format."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import UnsupportedError
from pytest_benchflow.exporters._strict import check_conversation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Conversation, Exporter

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class OpenAI:
    """Writes `messages` and `tools`; answers that are no target of this example have weight 0."""

    versions = ()
    columns = None
    loaders = ()

    def rows(self, conversation: Conversation, _version: str) -> Iterator[dict[str, Any]]:
        """Yield the one example of a conversation. Raises: UnsupportedError."""
        check_conversation(conversation)
        _check(conversation)
        pairs = zip(conversation.messages, conversation.origins, strict=True)
        example: dict[str, Any] = {
            "messages": [
                _message(message, trained=origin is not None and origin not in conversation.repeated)
                for message, origin in pairs
            ]
        }
        if conversation.tools:
            example["tools"] = conversation.tools
        yield example


def _message(message: dict[str, Any], *, trained: bool) -> dict[str, Any]:
    if message["role"] != "assistant":
        return message
    # An answer that is nothing but calls has no content there.
    kept = {key: value for key, value in message.items() if key != "content" or value}
    return kept if trained else {**kept, "weight": 0}


def _check(conversation: Conversation) -> None:
    """Refuse what the service would refuse. Raises: UnsupportedError."""
    for tool in conversation.tools:
        name = tool["function"].get("name") if tool.get("type") == "function" else None
        if not isinstance(name, str) or not _NAME.match(name):
            raise UnsupportedError(f"tool_not_accepted: the tool {str(tool)[:80]} is no function with a plain name")
    open_calls: set[str] = set()
    for place, message in enumerate(conversation.messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                raise UnsupportedError(f"tool_result_apart: messages[{place}] does not follow its call at once")
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            raise UnsupportedError(f"unanswered_tool_call: {min(open_calls)} before messages[{place}]")
        else:
            open_calls = {call["id"] for call in message.get("tool_calls", ())}


exporter: Exporter = OpenAI()
