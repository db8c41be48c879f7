"""The conservation laws: requests, exchanges, steps and tokens all add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import evidence, is_ours, rebuilt, the_row
from pytest_benchflow.records.values import integer, mapping

if TYPE_CHECKING:
    from pytest_benchflow.records.rollout import Rollout


@check(needs=("model", "result"))
def check_every_request_recorded(rollout: Rollout) -> None:
    """Law 1: llm_trajectory.jsonl has a line for each model request the proxy received; the list of models is none."""
    proxy = evidence(rollout, rollout.result.get("proxy"), "the proxy's count of requests (result.json: proxy)")
    lines = len(rollout.exchanges)
    received, recorded = (mapping(proxy).get(key) for key in ("received", "recorded"))
    assert received == lines, f"the proxy received {received} requests and llm_trajectory.jsonl has {lines} lines"
    assert recorded == lines, f"the proxy recorded {recorded} exchanges and llm_trajectory.jsonl has {lines} lines"


@check(category="training", needs=("llm", "row"))
def check_steps_are_the_selected_exchanges(rollout: Rollout) -> None:
    """Law 2: the row's steps are the selected exchanges, each once and in order."""
    selected = [exchange["index"] for exchange in rebuilt(rollout).exchanges if exchange["selected"]]
    steps = _steps(rollout)
    found = [_extras(step).get("exchange_index") for step in steps]
    if found == selected:
        return
    lost = [index for index in selected if index not in found]
    extra = [index for index in found if index not in selected]
    said = [
        *([f"without a step: exchange {_list(lost)}"] if lost else []),
        *([f"a step of an exchange that does not count: {_list(extra)}"] if extra else []),
    ]
    raise AssertionError(
        f"results.jsonl: steps {found} for selected exchanges {selected}; {'; '.join(said) or 'order'}"
    )


@check(category="training", needs=("llm", "row"))
def check_excluded_have_reasons(rollout: Rollout) -> None:
    """Law 2: every exchange that is no step is listed with its reason, as the raw records give it."""
    expected = {str(e["index"]): e["reason"] for e in rebuilt(rollout).exchanges if not e["selected"]}
    listed = evidence(rollout, _info(rollout).get("excluded_exchanges"), "the list of excluded exchanges")
    assert isinstance(listed, list), f"results.jsonl: excluded_exchanges is a {type(listed).__name__}, no list"
    found = {str(mapping(item).get("index")): mapping(item).get("reason") for item in listed}
    assert len(found) == len(listed), "results.jsonl: an excluded exchange is listed twice"
    for index, reason in expected.items():
        assert found.get(index) == reason, (
            f"results.jsonl: exchange {index} is excluded as {found.get(index)!r}, not {reason!r}"
        )
    assert found.keys() == expected.keys(), (
        f"results.jsonl: {list(found.keys() - expected.keys())} are listed as excluded"
    )


@check(category="accounting", needs=("llm",))
def check_completed_have_usage(rollout: Rollout) -> None:
    """Law 3: every completed exchange reports its tokens."""
    without = [e["index"] for e in rebuilt(rollout).exchanges if e["outcome"] == "completed" and e["tokens"] is None]
    assert not without, f"token usage is missing in completed exchange {_list(without)}"


@check(category="accounting", needs=("llm", "result"))
def check_tokens_add_up(rollout: Rollout) -> None:
    """Law 3: selected and excluded tokens are the billed ones, and result.json and the row agree."""
    tokens = rebuilt(rollout).tokens
    whole = tokens["selected"] + tokens["excluded"]
    assert whole == tokens["billed"], f"{tokens['selected']} + {tokens['excluded']} tokens are not {tokens['billed']}"
    if any(e["outcome"] == "completed" and e["tokens"] is None for e in rebuilt(rollout).exchanges):
        return
    usage = mapping(rollout.result.get("agent_result"))
    told, untold = usage.get("n_untold"), rebuilt(rollout).usage["n_untold"]
    assert told is None or told == untold, (
        f"result.json: the tokens of {told!r} exchanges are not known (n_untold); the records say of {untold}"
    )
    total, parts = usage.get("total_tokens"), [integer(usage.get(key)) for key in ("n_input_tokens", "n_output_tokens")]
    if total is None and None not in parts:
        total = sum(part or 0 for part in parts)
    if total is not None:
        assert total in _totals(rollout), f"result.json: {total} tokens, though the exchanges bill {tokens['billed']}"
    found = evidence(rollout, rollout.result.get("exchanges"), "the summary of exchanges (result.json: exchanges)")
    summary = mapping(found)
    for key, value in rebuilt(rollout).summary.items():
        assert summary.get(key) == value, (
            f"result.json: exchanges.{key} is {summary.get(key)!r}; the records say {value!r}"
        )


@check(category="accounting", needs=("llm", "row"))
def check_row_tokens_agree(rollout: Rollout) -> None:
    """Law 3: the row's token usage is what the exchanges bill."""
    usage = the_row(rollout).get("token_usage")
    assert isinstance(usage, dict), "results.jsonl: the row has no token_usage"
    billed = rebuilt(rollout).usage["total_tokens"]
    if billed is not None:
        total = usage.get("total_tokens")
        assert total in _totals(rollout), (
            f"results.jsonl: token_usage.total_tokens is {total!r}; the exchanges bill {billed}"
        )


def _totals(rollout: Rollout) -> tuple[int, ...]:
    """Return the sums that count as the rollout's tokens: what was billed; other tools may count what was used."""
    row = rebuilt(rollout)
    if is_ours(rollout):
        return (row.tokens["billed"],)
    completed = sum(exchange["tokens"] or 0 for exchange in row.exchanges if exchange["outcome"] == "completed")
    return (row.tokens["billed"], row.tokens["selected"], completed)


def _steps(rollout: Rollout) -> list[Any]:
    steps = the_row(rollout).get("trajectory")
    assert isinstance(steps, list), "results.jsonl: the row has no trajectory of steps"
    return steps


def _extras(step: Any) -> dict[str, Any]:
    extras = step.get("extras") if isinstance(step, dict) else None
    return extras if isinstance(extras, dict) else {}


def _info(rollout: Rollout) -> dict[str, Any]:
    info = the_row(rollout).get("info")
    return info if isinstance(info, dict) else {}


def _list(indices: list[Any]) -> str:
    return ", ".join(str(index) for index in indices)
