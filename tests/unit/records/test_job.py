"""A job's summary: what is not known is counted and never added as 0."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.records.job import summarise
from pytest_benchflow.records.rollout import Rollout
from tests.unit.rollouts import write_rollout

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
