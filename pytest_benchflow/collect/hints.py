"""Tell a user who named what pytest collects nothing of what they may have meant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.records.rundir import is_run
from pytest_benchflow.report.text import printable

if TYPE_CHECKING:
    import pytest


def review_hint(config: pytest.Config) -> str | None:
    """Say how rollouts are reviewed, where a directory of jobs was named and no review asked for."""
    if config.getoption("benchflow_review", None):
        return None
    named = [argument for argument in config.args if _holds_runs(config.invocation_params.dir / argument)]
    if not named:
        return None
    return f"benchflow: {printable(named[0])} holds rollouts; review them with --benchflow-review={printable(named[0])}"


def _holds_runs(path: Path) -> bool:
    """Tell a directory of jobs; a job that is named is reviewed."""
    try:
        with os.scandir(path) as entries:
            inside = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return False
    return any(is_run(each) for each in inside)
