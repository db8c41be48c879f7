"""Trajectories in ADP, the Agent Data Protocol: actions and observations, one trajectory a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import UnsupportedError
from pytest_benchflow.exporters._strict import about, calls_of, check_conversation, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_benchflow.contracts import Conversation, Exporter


class Adp:
    """Writes calls as API actions; system prompt and tools stand in `details`, as each agent has its own."""

    # The first that links an observation to its action; later ones read it.
    versions = ("1.3.0",)
    columns = None
    loaders = ()

    def rows(self, conversation: Conversation, version: str) -> Iterator[dict[str, Any]]:
        """Yield the one trajectory of a conversation. Raises: UnsupportedError."""
        check_conversation(conversation)
        first = conversation.messages[0]
        yield {
            "schema_version": version,
            "id": f"{conversation.rollout}/{conversation.role}-{conversation.branch}",
            "content": _content(conversation),
            "details": about(conversation)
            | {
                "reward": conversation.reward,
                "system_prompt": first["content"] if first["role"] == "system" else None,
                "tools": conversation.tools,
            },
        }


def _content(conversation: Conversation) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    waiting: dict[str, dict[str, Any]] = {}  # calls without a result so far
    taken: set[str] = set()
    for message in conversation.messages:
        if message["role"] == "tool":
            content.append(_result(message, waiting))
        elif message["role"] == "assistant":
            _refuse_waiting(waiting)
            actions = _actions(message)
            waiting = dict(zip((call["id"] for call in calls_of(message)), actions, strict=False))
            for action in waiting.values():
                action["tool_call_id"] = _unique(action["tool_call_id"], taken)
            content += actions
        elif message["role"] == "user":
            _refuse_waiting(waiting)
            content.append({"class_": "text_observation", "content": message["content"], "source": "user"})
    # The protocol wants a result for every id, and none after an action without: a call that ends the task comes last.
    ends = list(waiting.values())
    content = [item for item in content if not any(item is end for end in ends)]
    return content + [{key: value for key, value in end.items() if key != "tool_call_id"} for end in ends]


def _actions(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an answer as actions; its text goes with the first call."""
    if not calls_of(message):
        return [{"class_": "message_action", "content": message["content"]}]
    actions = [
        {
            "class_": "api_action",
            "function": call["function"]["name"],
            "kwargs": call["function"]["arguments"],
            "tool_call_id": call["id"],
        }
        for call in map(parsed, calls_of(message))
    ]
    if message["content"]:
        actions[0]["description"] = message["content"]
    return actions


def _result(message: Mapping[str, Any], waiting: dict[str, dict[str, Any]]) -> dict[str, Any]:
    action = waiting.pop(message["tool_call_id"], None)
    if action is None:
        raise UnsupportedError(f"tool_result_apart: {message['tool_call_id']} does not follow its call at once")
    return {
        "class_": "text_observation",
        "content": message["content"],
        "source": "environment",
        "tool_call_id": action["tool_call_id"],
    }


def _unique(call_id: str, taken: set[str]) -> str:
    """Return an id that no earlier call of the trajectory has, for agents that use theirs again."""
    unique, number = call_id, 1
    while unique in taken:
        number += 1
        unique = f"{call_id}#{number}"
    taken.add(unique)
    return unique


def _refuse_waiting(waiting: Mapping[str, Any]) -> None:
    if waiting:
        raise UnsupportedError(f"unanswered_tool_call: {min(waiting)} has no result")


exporter: Exporter = Adp()
