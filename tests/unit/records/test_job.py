"""A job's summary: what is not known is counted and never added as 0."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.records.job import summarise
from pytest_benchflow.records.rollout import Rollout
from tests.unit.rollouts import Talk, assistant, write_rollout

if TYPE_CHECKING:
    from pathlib import Path


def rollout(path: Path, usd: float | None, model: str = "openai/gpt-5", **result: Any) -> Rollout:
    told = {"agent_result": {"cost_usd": usd}, "verdict": "pass", "model": model, **result}
    write_rollout(path, result_with=told, config_with={"model": model})
    return Rollout(path)


def test_priced_rollouts_have_a_total(tmp_path: Path) -> None:
    found = summarise([rollout(tmp_path / "a", 0.1), rollout(tmp_path / "b", 0.2)])
    assert found["cost_usd"] == {"total": pytest.approx(0.3), "priced_subtotal": pytest.approx(0.3), "unpriced": 0}


def test_one_unpriced_rollout_leaves_no_total(tmp_path: Path) -> None:
    found = summarise([rollout(tmp_path / "a", 0.1), rollout(tmp_path / "b", None)])
    assert found["cost_usd"] == {"total": None, "priced_subtotal": pytest.approx(0.1), "unpriced": 1}


def test_recorded_answers_and_agents_without_a_model_are_free(tmp_path: Path) -> None:
    free = [rollout(tmp_path / "a", None, "replay"), rollout(tmp_path / "b", None, "none", proxy=None)]
    assert summarise([*free, rollout(tmp_path / "c", 0.1)])["cost_usd"]["total"] == pytest.approx(0.1)


@pytest.mark.parametrize("use", [[], "0.1", {"cost_usd": "0.1"}, {"cost_usd": True}])
def test_a_cost_that_is_none_is_unknown(tmp_path: Path, use: Any) -> None:
    odd = rollout(tmp_path / "a", None)
    odd.dir.result.write_text(json.dumps({**odd.result, "agent_result": use}))
    found = summarise([Rollout(odd.path), rollout(tmp_path / "b", 0.1)])
    assert found["cost_usd"] == {"total": None, "priced_subtotal": pytest.approx(0.1), "unpriced": 1}


def test_a_killed_or_unreadable_rollout_of_a_paid_model_is_unpriced(tmp_path: Path) -> None:
    killed = rollout(tmp_path / "a", None, proxy=None, verdict="unhealthy")
    torn = rollout(tmp_path / "b", 0.1)
    torn.dir.result.write_text("{")
    assert summarise([killed, Rollout(torn.path)])["cost_usd"] == {"total": None, "priced_subtotal": 0.0, "unpriced": 2}


ANSWERED = {"tokens": (100, 10)}
REFUSED = {"status": 400}


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ([ANSWERED, ANSWERED], {"total": 220, "subtotal": 220, "unknown": 0}),
        ([ANSWERED, {"tokens": None}], {"total": None, "subtotal": 110, "unknown": 1}),
        ([ANSWERED, {"status": 502, "upstream_status": 200}], {"total": None, "subtotal": 110, "unknown": 1}),
        ([ANSWERED, {"status": 502, "upstream_unanswered": True}], {"total": None, "subtotal": 110, "unknown": 1}),
        ([ANSWERED, REFUSED], {"total": 110, "subtotal": 110, "unknown": 0}),
        ([REFUSED], {"total": 0, "subtotal": 0, "unknown": 0}),
        ([{"tokens": None}], {"total": None, "subtotal": 0, "unknown": 1}),
    ],
    ids=["told", "no usage", "broke off", "no answer came", "one refused", "all refused", "nothing told"],
)
def test_tokens_have_a_total_only_where_each_exchange_that_was_billed_told_its_own(
    tmp_path: Path, asked: list[dict[str, Any]], tokens: dict[str, int | None]
) -> None:
    talk = Talk()
    for options in asked:
        answered = options.get("status", 200) < 400
        talk.ask(assistant("I look.") if answered else None, used=answered, **options)  # type: ignore[arg-type]
    write_rollout(tmp_path / "a", talk.records, result_with={"verdict": "pass"})
    assert summarise([Rollout(tmp_path / "a")])["tokens"] == tokens


def test_tokens_of_an_exchange_that_was_not_recorded_are_unknown(tmp_path: Path) -> None:
    lost = rollout(tmp_path / "a", 0.1, proxy={"received": 4, "recorded": 3})
    lost.dir.result.write_text(json.dumps({**lost.result, "agent_result": {"total_tokens": 330, "n_untold": 0}}))
    assert summarise([Rollout(lost.path)])["tokens"] == {"total": None, "subtotal": 330, "unknown": 1}


@pytest.mark.parametrize(
    ("exchanges", "unknown"),
    [({}, 0), ({"completed": 3, "with_usage": 3}, 0), ({"completed": 3, "with_usage": 2}, 1)],
)
def test_records_of_others_are_taken_at_their_total_unless_they_count_answers_without_usage(
    tmp_path: Path, exchanges: dict[str, int], unknown: int
) -> None:
    theirs = rollout(tmp_path / "a", 0.1)
    told = {**theirs.result, "agent_result": {"total_tokens": 330}, "exchanges": exchanges}
    theirs.dir.result.write_text(json.dumps(told))
    total = None if unknown else 330
    assert summarise([Rollout(theirs.path)])["tokens"] == {"total": total, "subtotal": 330, "unknown": unknown}
