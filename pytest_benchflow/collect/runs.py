"""Collect rollouts that lie on disk: each is like a test file, and each check of it is an item.

Nothing here is a `pytest.Directory`, for pytest imports the conftest.py of those: a run holds what agents wrote.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.collect.findings import PREFIX, judge_findings
from pytest_benchflow.collect.github import tell_of_reviews
from pytest_benchflow.errors import UsageError
from pytest_benchflow.records.rundir import RunDir, is_run
from pytest_benchflow.report.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pluggy

    from pytest_benchflow.checks._check import Check
    from pytest_benchflow.report.review import Review
    from pytest_benchflow.report.summary import Summary

# The property of a rollout's first report that says what the rollout came to.
_PROPERTY = "benchflow_review"
_LEFT_OUT = "benchflow_left_out"


class Reviews:
    """The part of a session that reviews rollouts: hooks that collect them, and the gate over all of them."""

    def __init__(
        self, config: pytest.Config, roots: Sequence[Path], *, rebuild: bool, expect_commit: str | None
    ) -> None:
        # Imported here, not at the start: only a review needs the checks this early.
        from pytest_benchflow.collect.gate import Gate
        from pytest_benchflow.report.review import checks_for, rollouts_at

        self._config = config
        self._roots = tuple(roots)
        self.rollouts = rollouts_at(roots, planned=True)
        # pytest prints node ids as they are.
        odd = [rollout for rollout in self.rollouts if printable(rollout) != str(rollout)]
        if odd:
            raise UsageError(f"the name {odd[0]} holds characters that a terminal obeys; rename it, or use the command")
        self.checks: dict[str, Check] = checks_for(expect_commit)
        self.rebuild = rebuild
        self._gate = Gate(config, len(self.rollouts))
        self._heard: list[tuple[Summary, str | None]] = []
        self._findings: dict[str, list[dict[str, Any]]] = {}  # by directory
        self._missing: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect a directory of runs that was asked for, and a job's directory above one."""
        inside = any(path.is_relative_to(root) for root in self._roots)
        below = [rollout for rollout in self.rollouts if rollout.is_relative_to(path)] if inside or is_run(path) else []
        return RunDirectory.of(parent, path, below, self) if below else None

    def pytest_report_collectionfinish(self) -> str | None:
        """Say what is reviewed."""
        if self._config.get_verbosity() < 0:
            return None
        found = len(self.rollouts)
        return f"review: {counted(found, 'rollout')}, {len(self.checks)} checks each"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a check was run, or said itself why it does not apply."""
        self._gate.hear(report)
        if report.user_properties and report.when == "call":
            self._hear(report)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note what a user left out."""
        self._gate.leave_out(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Hear from an xdist worker what it left out."""
        self._gate.take_over(getattr(node, "workeroutput", {}).get(_LEFT_OUT, {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a review in which checks were left out that nobody deselected by name."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_LEFT_OUT] = self._gate.left_out
        elif session.exitstatus == pytest.ExitCode.OK:
            self._missing = self._gate.missed()
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if self._missing else pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write what the rollouts came to."""
        from pytest_benchflow.report.review_text import total_lines

        heard = sorted(self._heard, key=lambda each: each[0].directory)
        if not heard and not self._missing:
            return
        terminalreporter.write_sep("=", "review")
        for summary, audit in heard:
            if not summary.healthy:
                terminalreporter.write_line(f"unhealthy ({summary.category}): {summary.directory}", red=True)
            if audit:
                terminalreporter.write_line(f"audit: {summary.directory}: {audit}")
        for line in total_lines([each for each, _ in heard], self._config.get_terminal_writer().fullwidth):
            terminalreporter.write_line(line)
        for line in self._missing:
            terminalreporter.write_line(line, red=True)
        tell_of_reviews(terminalreporter, [each for each, _ in heard], self._findings, self._missing)

    def _hear(self, report: pytest.TestReport) -> None:
        from pytest_benchflow.report.summary import Summary

        for name, value in report.user_properties:
            if name == _PROPERTY:
                told = json.loads(str(value))
                summary = Summary.of_dict(told["summary"])
                self._heard.append((summary, told["audit"]))
                self._findings[summary.directory] = told["findings"]


class _InARun(pytest.Collector):
    """A collector below which pytest knows of no conftest file: the hooks of those above it are called."""

    parent: pytest.Collector

    @property
    def ihook(self) -> pluggy.HookRelay:
        """Return the hooks that the directory above all runs has."""
        return self.parent.ihook


class RunDirectory(_InARun):
    """A directory with rollouts in it, or a rollout's own."""

    reviews: Reviews
    rollouts: Sequence[Path]

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, rollouts: Sequence[Path], reviews: Reviews) -> RunDirectory:
        """Make the collector of a directory that `rollouts` are in."""
        made: RunDirectory = cls.from_parent(parent, name=path.name, path=path)
        made.rollouts, made.reviews = rollouts, reviews
        return made

    def collect(self) -> Iterator[pytest.Collector]:
        """Yield the rollout's file, or the directories that lead to rollouts."""
        if self.rollouts == [self.path]:
            yield RunFile.of(self, self.reviews)
            return
        depth = len(self.path.parts)
        below: dict[str, list[Path]] = {}
        for rollout in self.rollouts:
            below.setdefault(rollout.parts[depth], []).append(rollout)
        for name, rollouts in below.items():
            yield RunDirectory.of(self, self.path / name, rollouts, self.reviews)


class RunFile(_InARun, pytest.File):
    """A rollout, under the first of its records that is there; its checks run together, once, with its first item."""

    parent: RunDirectory
    reviews: Reviews
    _report: Review | None = None

    @classmethod
    def of(cls, parent: RunDirectory, reviews: Reviews) -> RunFile:
        """Make the file of the rollout in a directory."""
        rundir = RunDir(parent.path)
        records = (rundir.result, rundir.config, rundir.row, rundir.llm, rundir.acp, rundir.lock)
        made: RunFile = cls.from_parent(parent, path=next((p for p in records if p.is_file()), rundir.result))
        made.reviews = reviews
        made.add_marker("benchflow")
        made.add_marker("check")
        return made

    def collect(self) -> Iterator[pytest.Item]:
        """Yield an item for each check."""
        for name in self.reviews.checks:
            yield ReviewItem.from_parent(self, name=f"{PREFIX}{name}")

    def judge(self, item: ReviewItem) -> None:
        """Fail, skip or warn as the check of an item found."""
        if self._report is None:
            self._report = self._review(item)
        judge_findings(self._report.report, item.name.removeprefix(PREFIX), self.parent.path)

    def teardown(self) -> None:
        """Let go of what the checks found."""
        self._report = None

    def _review(self, item: ReviewItem) -> Review:
        from pytest_benchflow.report.review import review_rollout
        from pytest_benchflow.report.review_text import audit_text

        root = self.parent.path
        review = review_rollout(root, self.reviews.checks, rebuild=self.reviews.rebuild)
        summary = replace(review.summary, directory=os.path.relpath(root, self.config.invocation_params.dir))
        report = review.report
        told = {
            "summary": summary.as_dict(),
            "audit": audit_text(review.audit) if review.audit else None,
            "findings": [finding.as_json() for finding in report.findings],
            "ran": report.ran,
            "not_applicable": report.not_applicable,
        }
        item.user_properties.append((_PROPERTY, json.dumps(told)))
        return review


class ReviewItem(pytest.Item):
    """`check_<claim>` of a rollout on disk: passes when the check finds nothing wrong."""

    parent: RunFile

    @property
    def ihook(self) -> pluggy.HookRelay:
        """Return the hooks of the rollout's file."""
        return self.parent.ihook

    def runtest(self) -> None:
        """Report what the check found."""
        self.parent.judge(self)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the rollout's record as the place of this item."""
        return self.path, 0, self.location[2]

    @cached_property
    def location(self) -> tuple[str, int | None, str]:
        """Return the same as text, which every report holds; pytest's own way to it takes longer."""
        return self.parent.nodeid, None, f"{self.parent.parent.name} {self.name}"
