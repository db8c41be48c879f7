"""A provider that hangs is told from one that is slow, whatever the agent's limit: by what was in flight."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.checks import run_checks
from pytest_benchflow.checks.verdict import verdict_of
from pytest_benchflow.records.rollout import Rollout
from tests.unit.rollouts import Talk, assistant, call, write_rollout

if TYPE_CHECKING:
    from pathlib import Path

START = datetime(2026, 3, 1, 10, tzinfo=UTC)
CLOSED = {"type": "closed", "message": "the endpoint was closed before the answer was complete"}
HUNG, NORMAL = ("unhealthy", "infra"), ("normal_timeout", None)


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def verdict(
    path: Path, limit: float, earlier: float, waited: float, *, answered: float | None = None, **metadata: Any
) -> tuple[str, str | None]:
    """Return the verdict on an agent whose model answered after `earlier` seconds, and then not for `waited`.

    The verifier takes a minute, in which the gateway still waits for the answer, for `answered` seconds in all.
    """
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("", call("c2")), used=False, **metadata)
    first, last = talk.records
    first["request"]["timestamp"], first["duration_ms"] = at(limit - waited - earlier), earlier * 1000
    # A gateway that does not drain ends an exchange with its client, just before the agent has ended.
    took = answered or (waited * 0.99 if metadata.get("client_gone") else waited + 60)
    last["request"]["timestamp"], last["duration_ms"] = at(limit - waited), took * 1000
    if answered is None:
        last |= {"response": None, "error": CLOSED}
    result = {
        "error": f"Agent timed out after {limit:g}s",
        "error_category": "timeout",
        "idle_before_timeout_s": waited,
        "in_flight_at_timeout": None if answered else "exchange 1",
        "timing": {"total": limit + 60, "agent_finished_at": at(limit), "verifier_started_at": at(limit)},
    }
    write_rollout(path, talk.records, result_with=result, config_with={"timeout_sec": limit})
    rollout = Rollout(path)
    return verdict_of([f for f in run_checks(rollout).findings if f.check == "timeout_was_the_agents"], rollout.result)


@pytest.mark.parametrize("limit", [10.0, 100.0, 1800.0], ids=["10-s", "100-s", "30-min"])
@pytest.mark.parametrize(
    ("earlier", "waited", "more", "expected"),
    [
        (0.01, 0.7, {}, HUNG),
        (0.01, 0.4, {}, NORMAL),
        (0.2, 0.55, {}, NORMAL),
        (0.15, 0.55, {}, HUNG),
        (0.01, 0.7, {"answered": 0.8}, HUNG),
        (0.01, 0.7, {"last_byte_ms": 0.69}, NORMAL),
        (0.01, 0.7, {"last_byte_ms": 0.1}, HUNG),
        (0.01, 0.7, {"client_gone": True}, HUNG),
    ],
    ids=[
        "hung",
        "at-work",
        "slow",
        "longer-than-slow",
        "answered-too-late",
        "streaming",
        "stream-stopped",
        "client-left",
    ],
)
def test_what_was_in_flight_tells(
    tmp_path: Path,
    limit: float,
    earlier: float,
    waited: float,
    *,
    more: dict[str, Any],
    expected: tuple[str, str | None],
) -> None:
    """Times are parts of the limit."""
    scaled = {name: value * limit if isinstance(value, float) else value for name, value in more.items()}
    if "last_byte_ms" in scaled:
        scaled["last_byte_ms"] *= 1000
    assert verdict(tmp_path, limit, earlier * limit, waited * limit, **scaled) == expected
