"""Turn the findings of a check into what pytest knows: a pass, a warning, a failure or a skip."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.checks._check import CheckReport


class CheckWarning(pytest.PytestWarning):
    """A check found something that does not make its rollout unhealthy."""


# Before a check's name in the name of its item.
PREFIX = "check_"
_NOT_APPLICABLE = "does not apply:"


def says_it_does_not_apply(report: pytest.TestReport) -> bool:
    """Tell a check that has nothing to look at from one that something else skipped."""
    return isinstance(report.longrepr, tuple | list) and _NOT_APPLICABLE in str(report.longrepr[2])


def judge_findings(
    report: CheckReport, name: str, place: Path, *, told: Callable[[str], bool] | None = None, teller: str | None = None
) -> None:
    """Fail, skip or warn as the findings of a check say; `place` is where the rollout is.

    Where every error is one that `told` knows, the failure only points to the item `teller`.
    """
    if name in report.not_applicable:
        pytest.skip(printable(f"{name} {_NOT_APPLICABLE} {report.not_applicable[name]}"))
    found = report.of(name)
    errors = [finding.message for finding in found if finding.severity == "error"]
    if errors and told and teller and all(told(message) for message in errors):
        pytest.fail(f"the error of {teller} says why", pytrace=False)
    if errors:
        pytest.fail(printable("\n".join([*errors, f"in {place}"])), pytrace=False)
    for finding in found:
        try:
            warnings.warn(CheckWarning(printable(f"{name}: {finding.message}")), stacklevel=1)
        except CheckWarning as error:  # the user made warnings errors
            raise pytest.fail.Exception(str(error), pytrace=False) from None
