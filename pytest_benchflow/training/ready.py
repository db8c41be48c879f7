"""Say whether a rollout may train, and if not, why: any doubt is a no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.values import reward_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_benchflow.contracts import ToolCall
    from pytest_benchflow.training.threads import Exchange
    from pytest_benchflow.training.tree import TurnTree

NO_MODEL = "no model"
# Agents that call no model, where a record does not say so itself: there is nothing of theirs to train on.
_MODEL_FREE_AGENTS = ("oracle", "nop")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a rollout is not a training row: a short reason that can be counted, and the facts."""

    reason: str
    detail: str


def calls_no_model(*records: Mapping[str, Any]) -> bool:
    """Tell from result.json or config.json whether the agent is one that calls no model."""
    names = [str(record.get(key)).strip().lower() for record in records for key in ("agent", "agent_name")]
    return any(name in _MODEL_FREE_AGENTS for name in names) or any(r.get("model") == "none" for r in records)


def refusal(
    result: Mapping[str, Any], exchanges: Sequence[Exchange], tree: TurnTree, terminal: Collection[str]
) -> Refusal | None:
    """Return the first reason why the rollout must not train, None when it may."""
    return _ended_badly(result, exchanges) or _policy_incomplete(exchanges, tree, terminal)


def _ended_badly(result: Mapping[str, Any], exchanges: Sequence[Exchange]) -> Refusal | None:
    for key, reason in (("error", "agent_error"), ("verifier_error", "verifier_error")):
        if result.get(key) or result.get(f"{key}_category"):
            return Refusal(reason, str(result.get(key) or result.get(f"{key}_category")))
    if not exchanges and calls_no_model(result):
        return Refusal(NO_MODEL, "No model was called: there is nothing to train on.")
    if not exchanges:
        return Refusal("no_exchanges", "llm_trajectory.jsonl holds no exchange, though the agent has a model.")
    torn = [exchange for exchange in exchanges if exchange.torn]
    if torn:
        return Refusal("unreadable_trajectory", str(torn[0].detail))
    if result.get("export_error"):
        return Refusal("export_error", str(result["export_error"]))
    if result.get("partial_trajectory"):
        return Refusal("partial_trajectory", "The trajectory is partial: the agent did not come to its end.")
    if reward_of(result) is None:
        return Refusal("no_reward", "The verifier gave no finite reward.")
    return None


def _policy_incomplete(exchanges: Sequence[Exchange], tree: TurnTree, terminal: Collection[str]) -> Refusal | None:
    policy = [exchange for exchange in exchanges if exchange.role == "policy"]
    # Whose an exchange without a history is cannot be told.
    doubtful = (e for e in exchanges if e.role == "policy" or e.thread < 0)
    unmapped = next((e for e in doubtful if e.outcome == "completed" and e.unsupported), None)
    if unmapped is not None:
        return Refusal("unsupported_item", f"exchange {unmapped.index}: {'; '.join(unmapped.unsupported)}")
    last = max(policy, key=lambda e: e.order, default=None)
    if last is None or not any(exchange.selected for exchange in policy):
        kinds = ", ".join(f"{e.index} {e.outcome}" for e in exchanges[:5])
        return Refusal(
            last.reason if last is not None and last.reason else "no_policy_answer",
            f"No exchange holds a usable answer of the policy ({kinds}).",
        )
    if last.outcome != "completed":
        return Refusal(
            "partial_trajectory", f"The last request of the policy, exchange {last.index}, ended as {last.outcome}."
        )
    answered = {turn.tool_call_id for turn in tree.turns(e.node for e in policy) if turn.role == "tool"}
    for exchange in policy:
        for call in exchange.answer.tool_calls if exchange.selected and exchange.answer else ():
            if call.id not in answered and call.name not in terminal and not _told_aside(call, exchanges, tree):
                return Refusal(
                    "unanswered_tool_call",
                    f"The call {call.id} ({call.name}) of exchange {exchange.index} has no result.",
                )
    return None


def _told_aside(call: ToolCall, exchanges: Sequence[Exchange], tree: TurnTree) -> bool:
    """Tell whether a side call holds a call and its result: a request for a summary may be the only one that does."""
    key = tree.call_key(call)
    for exchange in exchanges:
        called = False
        for turn in exchange.turns if exchange.role == "side" else ():
            called = called or any(tree.call_key(each) == key for each in turn.tool_calls)
            if called and turn.tool_call_id == call.id:
                return True
    return False
