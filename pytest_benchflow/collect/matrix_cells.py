"""Refuse a matrix file whose cells cannot all be run as it says, or that leaves none, before anything is collected."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.collect.canary import asked_tasks, task_names
from pytest_benchflow.errors import BenchflowError, UsageError
from pytest_benchflow.report.text import counted, printable
from pytest_benchflow.rollout.plan import plan
from pytest_benchflow.tasks.load import load_task

if TYPE_CHECKING:
    from pytest_benchflow.collect.matrix_file import MatrixFile
    from pytest_benchflow.collect.selection import Selection
    from pytest_benchflow.tasks.task import Task


def check_cells(selection: Selection, matrix: MatrixFile, *, whole: bool) -> None:
    """Lay a matrix out for the tasks of a session; `whole` when these are the file's own. Raises: pytest.UsageError."""
    settings = selection.settings
    try:
        if whole and matrix.names_tasks:
            matrix.check_tasks(task_names(selection))
        if not settings.exclude and not settings.include:
            return
        tasks: dict[str, Task] = {}
        for path in asked_tasks(selection):
            with suppress(BenchflowError):  # its collection says what is wrong with it
                tasks.setdefault(str(path), load_task(path))
        planned = [plan(settings, task) for task in tasks.values()]
        if any(planned):
            return
        left_out = sum(len(plan(replace(settings, exclude=()), task)) for task in tasks.values())
    except UsageError as error:
        raise pytest.UsageError(printable(error)) from None
    if left_out:
        raise pytest.UsageError(
            f"{printable(matrix.shown)}: [[exclude]] leaves nothing to run of {counted(left_out, 'cell')} of "
            f"{counted(len(tasks), 'task')}; narrow a rule, or name other tasks"
        )
