"""What was asked of the model is what it was asked, and what it cost is known or said to be unknown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import NotApplicableError, rebuilt
from pytest_benchflow.records.values import mapping, number
from pytest_benchflow.settings import OPEN_EFFORTS
from pytest_benchflow.training.account import cost_record, policy_efforts, same_effort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_benchflow.records.rollout import Rollout

_SHOWN = 5
# By how much costs from different sources may differ: of the highest, or in US dollars, whichever is more.
_APART = 0.02
_APART_USD = 0.0001


@check(category="accounting", needs=("model", "llm", "config"))
def check_effort_kept(rollout: Rollout) -> None:
    """Law 7: the reasoning effort asked for is in every request of the policy, and in each answer that names one."""
    asked = rollout.config.get("reasoning_effort")
    if not isinstance(asked, str) or asked.strip().lower() in ("", *OPEN_EFFORTS):
        raise NotApplicableError("no reasoning effort was asked for")
    efforts = list(policy_efforts(rebuilt(rollout).records, rollout.exchanges))
    wrong = [(index, sent) for index, sent, _ in efforts if not same_effort(sent, asked)]
    kept = f"{len(efforts) - len(wrong)} of {len(efforts)} requests of the policy"
    assert not wrong, f"reasoning effort {asked} was asked for, and is in {kept}: {_efforts(wrong)}"
    other = [(index, said) for index, _, said in efforts if said is not None and not same_effort(said, asked)]
    assert not other, f"reasoning effort {asked} was asked for and sent, and answers name another: {_efforts(other)}"


@check(severity="warning", category="accounting", needs=("model", "result"))
def check_cost_known(rollout: Rollout) -> None:
    """The model has a price and the provider tells what was used, so that the rollout's cost is known."""
    usage = mapping(rollout.result.get("agent_result"))
    if rollout.result.get("model") == "replay":
        raise NotApplicableError("recorded answers are free")
    why = mapping(rollout.result.get("cost")).get("unpriced")
    why = why or f"no price is known for the model {rollout.result.get('model')!r}"
    assert usage.get("cost_usd") is not None, f"{why}: the cost is null, not 0"


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


@check(category="accounting", needs=("model", "result", "config"))
def check_cost_adds_up(rollout: Rollout) -> None:
    """The cost is what all exchanges' usage comes to at the price in config.json: selected plus excluded ones."""
    told = rollout.result.get("cost")
    if not isinstance(told, dict) or number(told.get("usd")) is None:
        raise NotApplicableError("result.json tells no cost by exchanges")
    again = mapping(cost_record(rebuilt(rollout).records, rollout.result, rollout.config))
    for name in ("usd", "selected_usd", "excluded_usd"):
        said, found = number(told.get(name)), number(again.get(name))
        same = said is not None and found is not None and math.isclose(said, found, rel_tol=1e-6, abs_tol=1e-9)
        assert same, f"cost.{name} is {told.get(name)!r}, and usage times price is {found!r}: {again.get('unpriced')}"
    assert number(told["usd"]) == number(mapping(rollout.result.get("agent_result")).get("cost_usd")), (
        f"cost.usd is {told['usd']!r}, and agent_result.cost_usd is another"
    )


@check(severity="warning", category="accounting", needs=("model", "result"))
def check_costs_agree(rollout: Rollout) -> None:
    """What usage times price comes to, what the provider says and what the agent says it spent, is the same."""
    told = mapping(rollout.result.get("cost"))
    sources = (("usage times price", "usd"), ("the provider says", "provider_usd"), ("the agent says", "agent_usd"))
    amounts = {word: amount for word, name in sources if (amount := number(told.get(name))) is not None}
    if len(amounts) < len(sources) - 1:
        raise NotApplicableError("no two sources tell a cost")
    least, most = min(amounts.values()), max(amounts.values())
    said = ", ".join(f"{word} ${amount:.6f}" for word, amount in amounts.items())
    allowed = max(_APART * most, _APART_USD)
    assert most - least <= allowed, f"costs differ by ${most - least:.6f}, more than {_APART:.0%}: {said}"


def _efforts(found: Sequence[tuple[int, str | None]]) -> str:
    shown = ", ".join(f"exchange {index} {effort or 'names none'}" for index, effort in found[:_SHOWN])
    return shown + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
