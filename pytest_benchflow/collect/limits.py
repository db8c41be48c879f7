"""Let the limits of a job decide how a session ends, over what single rollouts say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.report.limits import MOST, RATE, Judgement, judge

if TYPE_CHECKING:
    from pytest_benchflow.fixtures import Runs
    from pytest_benchflow.report.terminal import RolloutReport


def decide(session: pytest.Session, runs: Runs, report: RolloutReport | None) -> list[Judgement]:
    """Return what the limits say, and set how the session ends.

    One that does not hold fails it. One that holds takes back the failures that it is about: of rollouts that are
    unhealthy or left none, or that are unsolved where the gate is the reward. A session that stopped early fails.
    """
    settings = runs.settings
    summary, unknown = None, runs.incomplete or ""
    if runs.opened and not unknown:
        try:
            summary = read_json(settings.jobs_dir / settings.job_name / "summary.json")
        except RecordError as error:
            unknown = str(error)
    found = judge(summary, settings, unknown=unknown)
    if not all(each.holds for each in found):
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    elif session.exitstatus == pytest.ExitCode.TESTS_FAILED and report is not None and not session.shouldfail:
        limits = {each.option for each in found}
        unsolved = report.failed_unsolved if RATE in limits and settings.gate == "reward" else 0
        taken_back = report.failed_unhealthy * (MOST in limits) + unsolved
        unfinished = runs.left or runs.incomplete or report.falls_short
        if taken_back == session.testsfailed and not unfinished:
            session.exitstatus = pytest.ExitCode.OK
            some = "1 failure is" if taken_back == 1 else f"{taken_back} failures are"
            found.append(Judgement("", True, f"this run passes: its {some} of rollouts that these limits allow"))
    return found
