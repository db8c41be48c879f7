"""Trajectories in ATIF, the Agent Trajectory Interchange Format: one document a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.exporters._strict import about, calls_of, check_conversation, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_benchflow.contracts import Conversation, ExchangeFacts, Exporter

_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}


class Atif:
    """Writes each branch as a trajectory of its own; those of a rollout share their session_id."""

    versions = ("1.7", "1.8")
    columns = None
    loaders = ()

    def rows(self, conversation: Conversation, version: str) -> Iterator[dict[str, Any]]:
        """Yield the one trajectory of a conversation. Raises: UnsupportedError."""
        check_conversation(conversation)
        steps = _steps(conversation)
        yield {
            "schema_version": f"ATIF-v{version}",
            "session_id": conversation.rollout,
            "trajectory_id": f"{conversation.rollout}/{conversation.role}-{conversation.branch}",
            "agent": _known(
                {
                    "name": conversation.agent or "unknown",
                    "version": conversation.agent_version or "unknown",
                    "model_name": conversation.model,
                    "tool_definitions": conversation.tools or None,
                }
            ),
            "steps": steps,
            "final_metrics": _totals(conversation) | {"total_steps": len(steps)},
            "extra": about(conversation) | {"reward": conversation.reward},
        }


def _steps(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the steps; a tool result belongs to the step that called the tool."""
    steps: list[dict[str, Any]] = []
    callers: dict[str, dict[str, Any]] = {}
    for message, origin in zip(conversation.messages, conversation.origins, strict=True):
        if message["role"] == "tool":
            result = {"source_call_id": message["tool_call_id"], "content": message["content"]}
            callers[message["tool_call_id"]].setdefault("observation", {"results": []})["results"].append(result)
            continue
        step = {"step_id": len(steps) + 1, "source": _SOURCES[message["role"]], "message": message["content"]}
        if message["role"] == "assistant":
            step |= _answer(message, conversation, origin)
            callers |= {call["id"]: step for call in calls_of(message)}
        steps.append(step)
    return steps


def _answer(message: Mapping[str, Any], conversation: Conversation, origin: int | None) -> dict[str, Any]:
    """Return what only an agent's step has; nothing is said of a call to the model that is not on record."""
    step: dict[str, Any] = {}
    if calls_of(message):
        step["tool_calls"] = [
            {"tool_call_id": call["id"], "function_name": function["name"], "arguments": function["arguments"]}
            for call in map(parsed, calls_of(message))
            for function in (call["function"],)
        ]
    if origin is None or origin in conversation.repeated:
        return step | {"is_copied_context": True}
    facts = conversation.exchanges[origin]
    step |= _known({"model_name": facts.model, "metrics": _metrics(facts)})
    return step | {"llm_call_count": 1, "extra": {"exchange_index": origin}}


def _metrics(facts: ExchangeFacts) -> dict[str, int] | None:
    if facts.usage is None:
        return None
    return (
        _known(
            {
                "prompt_tokens": facts.usage.input_tokens,
                "completion_tokens": facts.usage.output_tokens,
                "cached_tokens": facts.usage.cache_read_tokens,
            }
        )
        or None
    )


def _totals(conversation: Conversation) -> dict[str, int]:
    """Add up the tokens of this trajectory's own exchanges; a sum with an unknown part is left out."""
    usages = [facts.usage for index, facts in conversation.exchanges.items() if index not in conversation.repeated]
    totals = {
        "total_prompt_tokens": [usage and usage.input_tokens for usage in usages],
        "total_completion_tokens": [usage and usage.output_tokens for usage in usages],
    }
    return {name: sum(known) for name, values in totals.items() if len(known := _numbers(values)) == len(values)}


def _numbers(values: list[Any]) -> list[int]:
    return [value for value in values if isinstance(value, int)]


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


exporter: Exporter = Atif()
