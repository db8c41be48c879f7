"""What Inspect AI's samples cost is the difference of two evaluations, and stands beside what rollouts cost."""

from __future__ import annotations

import pytest

from benchmarks.concurrency import WIDTHS, rates_table
from benchmarks.inspect_samples import more


def test_costs_are_those_of_the_samples_that_the_larger_evaluation_has_more() -> None:
    found = {"version": "1.2.3", "evaluations": [[50, 3.0, 1.0], [250, 13.0, 5.0]]}
    assert more(found) == {"per_second": pytest.approx(20.0), "cpu_ms": pytest.approx(20.0), "version": "1.2.3"}


def test_evaluations_that_differ_by_less_than_noise_are_refused() -> None:
    with pytest.raises(SystemExit, match="--rollouts"):
        more({"version": "1.2.3", "evaluations": [[50, 3.0, 1.0], [60, 2.9, 1.1]]})


def test_each_line_of_the_table_tells_both_costs_at_every_width() -> None:
    costs = [{"per_second": 10.0 * width, "cpu_ms": 3.25} for width in WIDTHS]
    head, *rows = [line for line in rates_table({"nop, scripted": costs, "other": costs}) if line]
    assert [int(word) for word in head.split() if word.isdigit()] == list(WIDTHS)
    assert [line.split("  ")[1].strip() for line in rows] == ["nop, scripted", "other"]
    assert rows[0].split()[2:] == ["10.0", "(3.2)", "80.0", "(3.2)", "640.0", "(3.2)"]
    assert {len(line) for line in rows} == {len(head)}
