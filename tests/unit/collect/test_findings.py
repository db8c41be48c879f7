"""What pytest is told of a check's findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_benchflow.checks._check import CheckReport, Finding
from pytest_benchflow.collect.findings import CheckWarning, judge_findings


def test_no_finding_is_a_command_to_the_ci() -> None:
    report = CheckReport(
        [Finding("lost", "error", "::error::a ##[add-mask]b"), Finding("odd", "warning", "##[add-mask]c")],
        not_applicable={"off": "##[add-mask]d"},
    )
    with pytest.raises(pytest.fail.Exception) as failed:
        judge_findings(report, "lost", Path("jobs/a/b"))
    assert failed.value.msg == "\\x3a:error::a ##\\x5badd-mask]b\nin jobs/a/b"
    with pytest.warns(CheckWarning) as warned:
        judge_findings(report, "odd", Path("jobs/a/b"))
    assert str(warned[0].message) == "odd: ##\\x5badd-mask]c"
    with pytest.raises(pytest.skip.Exception) as skipped:
        judge_findings(report, "off", Path("jobs/a/b"))
    assert skipped.value.msg == "off does not apply: ##\\x5badd-mask]d"
