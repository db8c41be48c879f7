"""A verifier that ran again changes the score and nothing else: what happened in the run stays as first recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import NotApplicableError
from pytest_benchflow.records.attempts import is_number
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from pytest_benchflow.records.rollout import Rollout

# What the run came to, which no verifier decides on.
_FACTS = (
    *("error", "error_category", "stop_reasons", "n_tool_calls", "n_prompts", "started_at", "finished_at"),
    *("sandbox_id", "idle_before_timeout_s", "in_flight_at_timeout", "proxy", "timing", "verifier_started_after_agent"),
)


@check(category="infra", needs=("result",))
def check_regrade_changes_no_fact(rollout: Rollout) -> None:
    """A verifier that ran again changed the score alone: how the run went, and its faults, stay as first recorded."""
    result, place = rollout.result, rollout.dir.regrades
    if not place.is_dir() and not result.get("regraded"):
        raise NotApplicableError("its verifier ran once")
    file = place / "1" / "first" / "result.json"
    assert file.is_file() and not file.is_symlink(), "its verifier ran again, and the first record is not in regrades/1"
    first: dict[str, Any] = read_json(file)
    for name in _FACTS:
        was, now = first.get(name), result.get(name)
        assert was == now, f"{name} is {_short(now)}, and was {_short(was)} before the verifier ran again"
    category = first.get("verdict_category")
    at_fault = first.get("verdict") == "unhealthy" and category != "verifier"
    assert not at_fault, (
        f"the rollout was unhealthy ({category}) before its verifier ran again, and no score undoes that"
    )
    last = max((int(path.name) for path in place.iterdir() if is_number(path.name)), default=0)
    told = mapping(result.get("regraded")).get("count")
    assert told == last, (
        f"regrades/{last} is not what result.json has ({told}); `pytest-benchflow regrade` completes it"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
