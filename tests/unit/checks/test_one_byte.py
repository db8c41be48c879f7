"""No change of one byte, in whatever file, makes a rollout pass that failed for what happened in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_benchflow.report.review import checks_for, review_rollout
from tests.unit.rollouts import Talk, assistant, call, edit, three_steps, write_lines, write_rollout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any


def ended(**changes: Any) -> Callable[[Path], object]:
    return lambda path: write_rollout(path, result_with=changes)


def without_a_step(path: Path) -> None:
    edit(write_rollout(path).row, lambda row: row["trajectory"].pop(1))


def without_an_exchange(path: Path) -> None:
    records = three_steps()
    write_lines(write_rollout(path, records).llm, [records[0], records[2]])


def without_usage(path: Path) -> None:
    records = three_steps()
    records[1]["response"]["body"].pop("usage")
    write_rollout(path, records)


def with_a_hack(path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1", cmd="echo 1 > /logs/verifier/reward.txt")))
    talk.ask(assistant("", call("c2", "finish", message="Done.")))
    write_rollout(path, talk.records)


FAULTS: dict[str, Callable[[Path], object]] = {
    "lost-sandbox": ended(error="the sandbox was deleted from outside", error_category="sandbox"),
    "crashed-agent": ended(error="the agent crashed with exit code 1", error_category="agent"),
    "dead-verifier": ended(verifier_error="the verifier crashed", verifier_error_category="crash", rewards=None),
    "silent-agent": ended(error="timed out", error_category="timeout", idle_before_timeout_s=899.0),
    "verifier-before-the-agents-end": ended(verifier_started_after_agent=False),
    "dropped-step": without_a_step,
    "lost-exchange": without_an_exchange,
    "lost-usage": without_usage,
    "reward-hack": with_a_hack,
}


@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_byte_makes_an_unhealthy_rollout_healthy(tmp_path: Path, fault: str, data: st.DataObject) -> None:
    FAULTS[fault](tmp_path)
    checks = checks_for()
    assert not review_rollout(tmp_path, checks).healthy
    path = data.draw(st.sampled_from(sorted(file for file in tmp_path.rglob("*.json*") if file.stat().st_size)))
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    review = review_rollout(tmp_path, checks)
    assert not review.healthy, path.name
