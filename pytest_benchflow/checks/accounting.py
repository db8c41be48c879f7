"""What was asked of the model is what it was asked, and what it cost is known or said to be unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import NotApplicableError, rebuilt
from pytest_benchflow.records.values import mapping, number
from pytest_benchflow.training.account import policy_efforts, same_effort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_benchflow.records.rollout import Rollout

# Words for an effort that leave it to the provider.
_NO_EFFORT = ("", "default", "auto")
_SHOWN = 5


@check(category="accounting", needs=("model", "llm", "config"))
def check_effort_kept(rollout: Rollout) -> None:
    """Law 7: the reasoning effort asked for is in every request of the policy, and in each answer that names one."""
    asked = rollout.config.get("reasoning_effort")
    if not isinstance(asked, str) or asked.strip().lower() in _NO_EFFORT:
        raise NotApplicableError("no reasoning effort was asked for")
    efforts = list(policy_efforts(rebuilt(rollout).records, rollout.exchanges))
    wrong = [(index, sent) for index, sent, _ in efforts if not same_effort(sent, asked)]
    kept = f"{len(efforts) - len(wrong)} of {len(efforts)} requests of the policy"
    assert not wrong, f"reasoning effort {asked} was asked for, and is in {kept}: {_efforts(wrong)}"
    other = [(index, said) for index, _, said in efforts if said is not None and not same_effort(said, asked)]
    assert not other, f"reasoning effort {asked} was asked for and sent, and answers name another: {_efforts(other)}"


@check(severity="warning", category="accounting", needs=("model", "result"))
def check_cost_known(rollout: Rollout) -> None:
    """The model has a price, so that the rollout's cost is known."""
    usage = mapping(rollout.result.get("agent_result"))
    if rollout.result.get("model") == "replay":
        raise NotApplicableError("recorded answers are free")
    model = rollout.result.get("model")
    assert usage.get("cost_usd") is not None, f"no price is known for the model {model!r}: the cost is null, not 0"


@check(category="accounting", needs=("model", "result"))
def check_cost_is_no_guess(rollout: Rollout) -> None:
    """A cost is a finite amount with a price behind it; a model without a price costs null and never 0."""
    result = rollout.result
    for holder, usage in (("agent_result", mapping(result.get("agent_result"))), ("result.json", result)):
        cost = usage.get("cost_usd")
        if cost is None:
            continue
        assert (number(cost) or 0.0) >= 0 and number(cost) is not None, f"{holder}: cost_usd is {cost!r}, no amount"
        billed = rebuilt(rollout).tokens["billed"]
        free = number(cost) == 0 and billed and usage.get("price_source") != "user"
        assert not free, f"{holder}: cost_usd is 0 for {billed} tokens: without a price the cost is null"


def _efforts(found: Sequence[tuple[int, str | None]]) -> str:
    shown = ", ".join(f"exchange {index} {effort or 'names none'}" for index, effort in found[:_SHOWN])
    return shown + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
