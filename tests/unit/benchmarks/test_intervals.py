"""The benchmark of intervals reckons what can be reckoned by hand."""

from __future__ import annotations

import pytest

from benchmarks.intervals import coverage


def test_two_tasks_hold_the_chance_only_where_they_came_out_differently() -> None:
    # Alike, their interval is the point 0 or 1; else it goes from 0 to 1.
    assert coverage(2, 0.8) == pytest.approx(2 * 0.8 * 0.2)


def test_one_task_has_no_interval() -> None:
    assert coverage(1, 0.5) == 0


def test_many_tasks_hold_nearly_what_an_interval_is_to_hold() -> None:
    assert coverage(5, 0.8) < coverage(50, 0.8) < 1
    assert coverage(50, 0.8) == pytest.approx(0.95, abs=0.03)
