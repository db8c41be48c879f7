"""Limits of a whole job at their bounds: what equals one keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_benchflow.report.limits import judge
from pytest_benchflow.settings import Settings


def holds(solved: int, unhealthy: int, of: int, **limit: object) -> bool:
    coverage = {"planned": of, "healthy": of - unhealthy, "unhealthy": unhealthy, "skipped": 0, "missing": 0}
    summary = {"coverage": coverage, "solved": {"count": solved, "of": of}}
    (said,) = judge(summary, Settings(jobs_dir=Path("jobs"), job_name="job", **limit))  # type: ignore[arg-type]
    return said.holds


# Of these the product as floating-point numbers is a little less than the whole number that it is.
@pytest.mark.parametrize(("unhealthy", "of", "limit"), [(246, 375, "65.6%"), (69, 375, "18.4%"), (1, 4, "25%")])
def test_a_share_that_equals_the_limit_keeps_it(unhealthy: int, of: int, limit: str) -> None:
    assert holds(0, unhealthy, of, max_unhealthy=limit)
    assert not holds(0, unhealthy + 1, of, max_unhealthy=limit)


@pytest.mark.parametrize("limit", ["0", "0%"])
def test_none_may_be_unhealthy_where_the_limit_is_0(limit: str) -> None:
    assert holds(0, 0, 375, max_unhealthy=limit)
    assert not holds(0, 1, 375, max_unhealthy=limit)


def test_a_rate_that_equals_the_limit_keeps_it() -> None:
    assert all(holds(solved, 0, 1000, min_pass_rate=solved / 1000) for solved in range(1, 1001))
    assert not holds(999, 0, 1000, min_pass_rate=1.0)
