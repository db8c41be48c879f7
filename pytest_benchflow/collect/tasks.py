"""Collect task directories: a rollout item for each cell of the matrix, and an item for each check of it."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.collect.findings import judge_findings
from pytest_benchflow.collect.runs import RunDirectory
from pytest_benchflow.errors import BenchflowError
from pytest_benchflow.records.rundir import is_run
from pytest_benchflow.report.text import printable
from pytest_benchflow.tasks.load import load_task, task_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_benchflow.collect.selection import Selection
    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.tasks.task import Task

_OF_MODELS = frozenset({"model", "llm"})


class TaskWarning(pytest.PytestWarning):
    """Something in a task file is not understood and was left out."""


def collect_directory(
    path: Path, parent: pytest.Collector, collector: pytest.Collector | None, selection: Selection
) -> pytest.Collector | None:
    """Return what to collect `path` with; `collector` is what pytest would use.

    A task is collected whole when it was asked for, and never entered. A job's directory is never entered either:
    it holds copies of files that agents wrote.
    """
    if isinstance(collector, RunDirectory):
        return collector
    if is_run(path):
        return None
    file = task_file(path)
    if file is None:
        return collector
    if selection.asks_for(path):
        directory: TaskDirectory = TaskDirectory.from_parent(parent, path=path)
        directory.selection = selection
        return directory
    # pytest itself stands in a task that nobody asked for: it must find something that holds nothing.
    return EmptyDirectory.from_parent(parent, path=path) if _starts_in(path, parent.config) else None


class EmptyDirectory(pytest.Directory):
    """A directory that yields nothing."""

    def collect(self) -> Iterator[pytest.Collector]:
        """Yield nothing."""
        return iter(())


class TaskDirectory(pytest.Directory):
    """A task; its tests and its solution belong to the sandbox and are never collected."""

    selection: Selection

    def collect(self) -> Iterator[pytest.Collector]:
        """Yield the task's file."""
        file = task_file(self.path)
        if file is not None:
            task: TaskFile = TaskFile.from_parent(self, path=file)
            task.selection = self.selection
            yield task


class TaskFile(pytest.File):
    """A task.toml or task.md; its items are the cells of the matrix and their checks."""

    selection: Selection

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the items of each cell. Raises: CollectError when the task is not valid."""
        # Imported here, not at the start: a session without tasks never needs them.
        from pytest_benchflow.checks._check import all_checks
        from pytest_benchflow.rollout.plan import plan

        try:
            task = load_task(self.path.parent)
            cells = plan(self.selection.settings, task)
        except BenchflowError as error:
            raise self.CollectError(printable(error)) from None
        self._warn_of(task)
        checks = all_checks()
        for cell in cells:
            yield RolloutItem.of(self, cell)
            for name, check in checks.items():
                # Said once here, not by a skip in every run: an agent that calls no model leaves no exchanges.
                if cell.model == "none" and _OF_MODELS.intersection(check.needs):
                    continue
                yield CheckItem.of(self, cell, name)

    def _warn_of(self, task: Task) -> None:
        """Warn of what is odd in a task, once. Raises: CollectError where the user made warnings errors."""
        if task.path in self.selection.warned:
            return
        self.selection.warned.add(task.path)
        refused = []
        # All workers of xdist must find the same; a warning that is no error is shown by one of them.
        with nullcontext() if self.selection.warns else warnings.catch_warnings(record=True):
            for text in map(printable, task.warnings):
                try:
                    self.warn(TaskWarning(text))
                except TaskWarning:
                    refused.append(text)
        if refused:
            raise self.CollectError("\n".join(refused)) from None


class CellItem(pytest.Function):
    """An item about one cell; it asks for the `rollout` fixture, so overriding a rung in a conftest changes it."""

    cell: RolloutConfig
    role: str

    @classmethod
    def make(cls, parent: TaskFile, cell: RolloutConfig, name: str, judge: Callable[[Rollout], None]) -> Any:
        """Make the item `name[cell]`, which passes when `judge` returns for the cell's rollout."""
        item = cls.from_parent(parent, name=f"{name}[{cell.cell_id}]", callobj=_asking_for_rollout(judge))
        item.cell = cell
        item.add_marker("benchflow")
        item.add_marker(item.role)
        return item

    @property
    def id(self) -> Any:
        """Return the structured node id; newer versions of pytest compare it part by part, as parsed from a text."""
        return type(self._id).parse(self.nodeid)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the task's file as the place of this item."""
        return self.path, 0, self.name


class RolloutItem(CellItem):
    """`rollout[cell]`: passes when the rollout is what the gate asks for."""

    role = "rollout"

    @classmethod
    def of(cls, parent: TaskFile, cell: RolloutConfig) -> RolloutItem:
        """Make the item of a cell."""
        gate = parent.selection.settings.gate

        def judge(rollout: Rollout) -> None:
            from pytest_benchflow.report.failure import why_failed

            if reason := why_failed(rollout, gate):
                pytest.fail(reason, pytrace=False)

        item: RolloutItem = cls.make(parent, cell, "rollout", judge)
        return item


class CheckItem(CellItem):
    """`check_<claim>[cell]`: passes when the check finds nothing wrong in what the rollout left."""

    role = "check"

    @classmethod
    def of(cls, parent: TaskFile, cell: RolloutConfig, check: str) -> CheckItem:
        """Make the item of a check."""

        def judge(rollout: Rollout) -> None:
            items = (item for item in parent.session.items if isinstance(item, RolloutItem))
            told = next((item.nodeid for item in items if item.path == parent.path and item.cell is cell), None)
            judge_check(rollout, check, told_by=told)

        item: CheckItem = cls.make(parent, cell, f"check_{check}", judge)
        return item


def judge_check(rollout: Rollout, name: str, *, told_by: str | None = None) -> None:
    """Fail, skip or warn as the findings of a check say; all checks of a rollout run together, once.

    What only repeats the rollout's error points to `told_by`, the item that tells of it.
    """
    from pytest_benchflow.checks._check import run_checks
    from pytest_benchflow.report.failure import repeats_error

    def told(message: str) -> bool:
        return repeats_error(rollout.result, name, message)

    judge_findings(run_checks(rollout), name, rollout.path, told=told, teller=told_by)


def _asking_for_rollout(judge: Callable[[Rollout], None]) -> Callable[..., None]:
    """Return a test function whose one argument names the fixture to ask for."""

    def item(rollout: Rollout) -> None:
        judge(rollout)

    return item


def _starts_in(path: Path, config: pytest.Config) -> bool:
    return config.invocation_params.dir.is_relative_to(path)
