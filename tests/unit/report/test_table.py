"""The table of rollouts fits the terminal, and shortens nothing that would then be ambiguous."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_benchflow.report.table import line, short_names, table, wrapped
from tests.unit.report.test_summary import ONE

LONG = replace(ONE, task="acme/repair-the-failing-test-of-a-parser", verdict="unhealthy", category="accounting")


@pytest.mark.parametrize("width", [80, 100, 120, 200], ids=["narrow", "medium", "wide", "huge"])
def test_no_row_is_wider_than_the_terminal(width: int) -> None:
    rows = [line(row) for row in table([ONE, LONG], width)]
    assert max(map(len, rows)) <= width
    assert "unhealthy (accounting)" in rows[2]
    assert ("csv-report__openhands" in rows[1]) is (width >= 200)


def test_columns_that_say_nothing_are_left_out() -> None:
    plain = replace(ONE, calls_model=False, tokens=None, agent="nop")
    assert list(table([plain], 200)[0]) == ["task", "agent", "verdict", "reward", "time", "directory"]
    assert "tokens" in table([plain, ONE], 200)[0]


def test_trials_and_skill_modes_are_told_apart_where_there_are_several() -> None:
    assert not {"trial", "skills"} & set(table([ONE, ONE], 200)[0])
    rows = table([ONE, replace(ONE, trial=2), replace(ONE, skills="with-skill")], 80)
    assert [row["trial"].strip() for row in rows] == ["trial", "1", "2", "1"]
    assert [row["skills"].strip() for row in rows] == ["skills", "no-skill", "no-skill", "with-skill"]


def test_the_last_column_is_neither_cut_nor_padded() -> None:
    rows = table([ONE, replace(ONE, directory="jobs/a/x")], 300)
    assert [row["directory"] for row in rows] == ["directory", "csv-report__openhands", "x"]


def test_tasks_are_named_in_short_only_where_that_tells_them_apart() -> None:
    assert short_names(["a/x", "a/y", "a/x"]) == ["x", "y", "x"]
    assert short_names(["a/x", "b/x"]) == ["a/x", "b/x"]


def test_a_long_line_breaks_between_its_parts() -> None:
    assert wrapped("one · two · three", 11) == ["one · two", "  three"]
    assert wrapped("one · two", 80) == ["one · two"]
