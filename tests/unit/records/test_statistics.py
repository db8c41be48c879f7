"""Means, intervals, pass@k and pass^k are what their definitions say, and the same each time."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_benchflow.records.statistics import difference, estimate, pass_all, pass_at


def test_a_mean_is_over_tasks_whatever_their_number_of_trials() -> None:
    found = estimate({"a": [1.0, 1.0, 1.0, 1.0], "b": [0.0], "c": []})
    assert (found.mean, found.tasks) == (0.5, 2)


def test_nothing_scored_is_unknown_and_not_zero() -> None:
    assert estimate({"a": []}).as_dict() == {"mean": None, "low": None, "high": None, "confidence": 0.95, "tasks": 0}


def test_one_task_tells_no_spread() -> None:
    found = estimate({"a": [0.0, 1.0]})
    assert (found.mean, found.low, found.high) == (0.5, None, None)


def test_an_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    draw = random.Random(7)  # noqa: S311 - statistics
    hits = 0
    for _ in range(200):
        found = estimate({str(task): [float(draw.random() < 0.4)] for task in range(40)})
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.4 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_the_same_rewards_give_the_same_interval_in_any_order() -> None:
    rewards = {str(task): [task / 10] for task in range(10)}
    assert estimate(rewards) == estimate(dict(reversed(rewards.items())))


def test_a_difference_is_paired_by_task() -> None:
    before = {"easy": [1.0], "hard": [0.0], "only-before": [0.0]}
    after = {"easy": [1.0], "hard": [0.2], "only-after": [1.0], "unscored": []}
    found = difference(before, after)
    assert found.mean == pytest.approx(0.1)
    assert found.tasks == 2


@given(st.integers(1, 7), st.data())
def test_pass_at_k_and_pass_all_k_count_the_draws_of_k_trials(n: int, data: st.DataObject) -> None:
    solved = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    outcomes = [True] * solved + [False] * (n - solved)
    draws = list(itertools.combinations(outcomes, k))
    at, over = pass_at(k, {"task": (n, solved)})
    every, _ = pass_all(k, {"task": (n, solved)})
    assert at is not None
    assert every is not None
    assert over == 1
    assert math.isclose(at, sum(any(draw) for draw in draws) / len(draws), abs_tol=1e-12)
    assert math.isclose(every, sum(all(draw) for draw in draws) / len(draws), abs_tol=1e-12)


def test_tasks_with_fewer_trials_are_left_out_and_counted() -> None:
    assert pass_at(3, {"short": (2, 2), "long": (3, 0)}) == (0.0, 1)
    assert pass_all(3, {"short": (2, 2)}) == (None, 0)
