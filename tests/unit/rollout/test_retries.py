"""What may be tried again is decided by the fault, is bounded, and never by what the agent did."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_benchflow import errors
from pytest_benchflow.errors import OverBudgetError
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.rollout import retries
from pytest_benchflow.rollout.retries import RULES, fault_of, run_retried

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.rollout.cell import Cell

MANY = 9


def rollout(path: Path, *last: dict[str, Any], **result: Any) -> Rollout:
    """Leave a rollout with this result, the last exchanges first to last."""
    (path / "trajectory").mkdir(parents=True, exist_ok=True)
    (path / "result.json").write_text(json.dumps({"verdict": "unhealthy", **result}))
    lines = [
        json.dumps({"request": {"request_id": str(n), "body": {}}, "error": None, **e}) for n, e in enumerate(last)
    ]
    (path / "trajectory" / "llm_trajectory.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return Rollout(path)


def answered(status: int) -> dict[str, Any]:
    return {"response": {"status_code": status, "body": {}}}


def attempts(monkeypatch: pytest.MonkeyPatch, found: list[Rollout], **options: Any) -> int:
    """Return how many attempts are made at a rollout whose attempts come to what is found, the last one again."""
    made: list[Rollout] = []

    async def run_cell(cell: Cell, **_: Any) -> Rollout:
        made.append(found[min(len(made), len(found) - 1)])
        return made[-1]

    async def pause(seconds: float) -> None:
        assert 0 < seconds <= 30

    monkeypatch.setattr(retries, "run_cell", run_cell)
    last = asyncio.run(run_retried(cast("Cell", None), pause=pause, **options))
    assert last is made[-1]
    return len(made)


@pytest.mark.parametrize(
    ("fault", "further"),
    [
        *((name, MANY) for name in ("sandbox", "sandbox_deleted", "transport", "lost_completion")),
        *((name, 0) for name in ("timeout", "idle_timeout", "agent", "agent_crashed", "agent_refused", "interrupted")),
        *((name, 0) for name in ("internal", "replay_mismatch", "task", "usage", "invented", "provider", "budget")),
    ],
)
def test_a_fault_of_the_run_is_tried_again_where_its_rule_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, further: int
) -> None:
    failed = rollout(tmp_path, error="said", error_category=fault)
    assert attempts(monkeypatch, [failed], retries=MANY) == 1 + further
    assert attempts(monkeypatch, [failed], retries=0) == 1


@pytest.mark.parametrize(
    ("category", "further"),
    [("crash", 1), ("bootstrap", 1), ("timeout", 0), ("no_reward", 0), ("invalid_reward", 0)],
)
def test_a_verifier_that_crashed_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, category: str, further: int
) -> None:
    failed = rollout(tmp_path, verifier_error="said", verifier_error_category=category)
    assert attempts(monkeypatch, [failed], retries=MANY) == 1 + further


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        (answered(401), "auth"),
        (answered(403), "auth"),
        (answered(400), "provider"),
        (answered(404), "provider"),
        (answered(429), "provider_away"),
        (answered(503), "provider_away"),
        ({"response": None, "error": {"type": "provider", "message": "it broke off"}}, "provider_away"),
        ({"response": None, "error": {"type": "client", "message": "it went"}}, "provider"),
    ],
)
def test_a_provider_is_told_from_what_it_refuses(tmp_path: Path, last: dict[str, Any], fault: str) -> None:
    assert fault_of(rollout(tmp_path, answered(200), last, error="said", error_category="provider")) == fault
    assert RULES[fault].most == (retries._ANY_NUMBER if fault == "provider_away" else 0)


def test_a_provider_that_was_never_asked_is_not_away(tmp_path: Path) -> None:
    assert fault_of(rollout(tmp_path, error="no key", error_category="provider")) == "provider"


def test_the_run_comes_before_its_verifier_and_health_before_both(tmp_path: Path) -> None:
    both = {"error": "said", "error_category": "timeout", "verifier_error_category": "crash"}
    assert fault_of(rollout(tmp_path, **both)) == "timeout"
    assert fault_of(rollout(tmp_path, **{**both, "verdict": "normal_timeout"})) is None
    assert fault_of(rollout(tmp_path)) is None
    (tmp_path / "result.json").write_text("{")
    assert fault_of(Rollout(tmp_path)) == "capture"


def test_it_ends_with_the_first_attempt_that_is_none_of_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = rollout(tmp_path / "1", error="said", error_category="sandbox")
    crash = rollout(tmp_path / "2", verifier_error="said", verifier_error_category="crash")
    fine = rollout(tmp_path / "3", verdict="fail")
    timeout = rollout(tmp_path / "4", error="said", error_category="timeout")
    assert attempts(monkeypatch, [sandbox, sandbox, fine], retries=MANY) == 3
    assert attempts(monkeypatch, [sandbox, timeout, fine], retries=MANY) == 2
    assert attempts(monkeypatch, [crash, sandbox, crash, fine], retries=MANY) == 3
    assert attempts(monkeypatch, [sandbox, sandbox, fine], retries=1) == 2


def test_a_used_up_budget_leaves_the_attempt_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def may_spend() -> None:
        raise OverBudgetError("not started: it is spent")

    failed = rollout(tmp_path, error="said", error_category="sandbox")
    assert attempts(monkeypatch, [failed], retries=MANY, may_spend=may_spend) == 1


def test_every_category_of_an_error_has_a_rule_or_comes_before_a_rollout() -> None:
    categories = {
        each.category for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "category")
    }
    # These keep a rollout from beginning, or are the verifier's, which has rules of its own.
    before = {"infra", "usage", "task", "unsupported", "accounting", "verifier", "unstarted", "canary", "held_back"}
    assert categories - before <= set(RULES), categories - before - set(RULES)
