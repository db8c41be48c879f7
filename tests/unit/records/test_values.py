from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pytest_benchflow.checks.verdict import verdict_of
from pytest_benchflow.records.values import integer, mapping, now, number, reward_of, sequence


@pytest.mark.parametrize(
    ("value", "as_number", "as_integer"),
    [
        (3, 3.0, 3),
        (0.5, 0.5, None),
        (True, None, None),
        ("3", None, None),
        (None, None, None),
        (float("nan"), None, None),
        (float("inf"), None, None),
    ],
    ids=["whole", "fraction", "true", "text", "nothing", "nan", "infinite"],
)
def test_only_a_number_is_a_number(value: Any, as_number: float | None, as_integer: int | None) -> None:
    assert (number(value), integer(value)) == (as_number, as_integer)
    assert reward_of({"rewards": {"reward": value}}) == as_number


def test_what_is_of_another_kind_counts_as_nothing() -> None:
    assert (mapping([1]), mapping({"a": 1}), sequence({"a": 1}), sequence([1])) == ({}, {"a": 1}, [], [1])
    assert reward_of({}) is reward_of({"rewards": []}) is None


@pytest.mark.parametrize(
    ("reward", "verdict"),
    [(0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1, "pass"), (0.999, "fail")],
    ids=["rounding-error", "nearly"],
)
def test_parts_that_add_up_to_a_full_reward_are_one(reward: float, verdict: str) -> None:
    assert reward < 1
    assert verdict_of([], {"rewards": {"reward": reward}}) == (verdict, None)


def test_times_are_in_utc_with_microseconds() -> None:
    text = now()
    assert text.endswith("Z")
    assert len(text) == len("2026-03-01T10:00:00.000000Z")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()) < 5
