"""Let pytest's reports carry what a rollout came to, from the process that ran it to the one that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.report.summary import Summary

if TYPE_CHECKING:
    import pytest

# Attributes of reports hold plain values only, because xdist sends reports as JSON.
_SUMMARY = "benchflow_rollout"
_ROLE = "benchflow_role"
_OUTCOME = "benchflow_outcome"
_LEFT_OUT = "benchflow_left_out"
_UNSTARTED = "benchflow_unstarted"


def attach(
    report: pytest.TestReport,
    item: pytest.Item,
    role: str | None,
    summary: Summary | None,
    *,
    left_out: str | None,
    unstarted: bool = False,
) -> None:
    """Add to a report what its item is (rollout, check or None) and what its rollout came to.

    `left_out` is why its cell cannot run here, or, `unstarted`, why it was not begun though it can; None where it ran.
    """
    if unstarted:
        setattr(report, _UNSTARTED, left_out)
    if summary is not None:
        setattr(report, _SUMMARY, summary.as_dict())
    if role is None:
        return
    setattr(report, _ROLE, role)
    if left_out is not None and not unstarted:
        setattr(report, _LEFT_OUT, left_out)
    if report.skipped and isinstance(report.longrepr, tuple):
        # The place of a skip is the task's file, not the line of this package that found the reason.
        report.longrepr = (str(item.path), 1, report.longrepr[2])
    if role == "rollout" and report.when == "call" and report.passed and summary is not None:
        setattr(report, _OUTCOME, summary.outcome)


def summary_of(report: object) -> Summary | None:
    """Return what a report's rollout came to, None when the report is not about one."""
    values = getattr(report, _SUMMARY, None)
    return None if values is None else Summary.of_dict(values)


def relocate(report: pytest.TestReport, directory: str) -> None:
    """Name another place of a report's rollout: the one where it lies for whoever reads the report."""
    getattr(report, _SUMMARY)["directory"] = directory
    report.user_properties = [
        (name, directory if name == "benchflow_directory" else value) for name, value in report.user_properties
    ]


def role_of(report: object) -> str | None:
    """Return what a report's item is: rollout, check, or None for any other test."""
    return getattr(report, _ROLE, None)


def outcome_of(report: object) -> str | None:
    """Return solved, unsolved or timeout for the call of a rollout item that passed."""
    return getattr(report, _OUTCOME, None)


def unstarted_of(report: object) -> str | None:
    """Return why the rollout of a report's item could run here and was not started, None where it was."""
    return getattr(report, _UNSTARTED, None)


def left_out_of(report: object) -> str | None:
    """Return why the cell of a report's item cannot run here, None where it can."""
    return getattr(report, _LEFT_OUT, None)
