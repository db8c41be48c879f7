"""Put the items of canaries first, know them by their tasks' names, and say how to go on after them."""

from __future__ import annotations

import difflib
import shlex
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import BenchflowError
from pytest_benchflow.records.coverage import planned_cells
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.tasks.load import find_tasks, is_task, load_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pytest_benchflow.collect.selection import Selection
    from pytest_benchflow.fixtures import Runs
    from pytest_benchflow.rollout.canary import Canary
    from pytest_benchflow.settings import Settings

_NAMED = 12
_VARIABLES = "--benchflow-agent-env"


def check_canaries(selection: Selection, config: pytest.Config) -> None:
    """Refuse canaries that are no task of this session. Raises: pytest.UsageError naming those like them."""
    settings = selection.settings
    if not settings.canary or config.option.pyargs:
        return
    known = task_names(selection)
    for name in settings.canary:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or list(known)[:_NAMED]
            raise pytest.UsageError(
                f"--benchflow-canary names {name!r}, which is no task of this session; "
                + (f"near it: {', '.join(near)}" if near else "there is none: pass a path to tasks")
            )


def task_names(selection: Selection) -> dict[str, None]:
    """Return the names of the tasks that a session is asked for, in their order."""
    from pytest_benchflow.rollout.plan import names_of

    known: dict[str, None] = {}
    for path in asked_tasks(selection):
        try:
            known.update(dict.fromkeys(names_of(load_task(path))))
        except BenchflowError:
            # Its collection says what is wrong with it.
            known[path.name] = None
    return known


def put_first(items: list[pytest.Item], runs: Runs) -> None:
    """Move the items of canaries before all others, each in the order they have, and let `runs` know them."""
    # Not the planned cell: what it is called is known when all items are.
    first = [item for item in items if (cell := runs.cell_of(item)) is not None and cell.canary]
    chosen = set(map(id, first))
    items[:] = [*first, *(item for item in items if id(item) not in chosen)]
    runs.canaries = lambda: _canaries(first, runs)


def _canaries(items: Sequence[pytest.Item], runs: Runs) -> list[Canary]:
    """Return the canaries of items, also of those that were deselected since."""
    from pytest_benchflow.rollout.canary import Canary

    found: dict[str, Canary] = {}
    chosen = set(map(id, runs.items or ()))
    for item in items:
        cell = runs.planned_cell(item)
        if cell is not None:
            new = Canary(cell, runs=id(item) in chosen, plain=runs.is_plain(item))
            known = found.get(new.name, new)
            found[new.name] = Canary(cell, runs=known.runs or new.runs, plain=known.plain and new.plain)
    return list(found.values())


def how_to_go_on(job_dir: Path, settings: Settings, config: pytest.Config) -> list[str]:
    """Return what to do where canaries keep the rest from starting: the audits that are missing, and how to go on."""
    from pytest_benchflow.rollout.canary import fault_of

    here = config.invocation_params.dir
    names = [str(cell.get("rollout")) for cell in planned_cells(job_dir / "job.json") if cell.get("canary")]
    faults = {name: fault_of(Rollout(job_dir / name), audited=settings.require_audit) for name in dict.fromkeys(names)}
    lines = []
    for name, fault in faults.items():
        if fault is not None and fault.startswith("is healthy"):
            path = job_dir / name
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            command = f"pytest-benchflow audit {shlex.quote(str(shown))} --verdict publishable --by YOU --note WHY"
            lines.append(f"  read it, then say what you think of it: {command}")
    given = _shown([str(each) for each in config.invocation_params.args])
    added = [f"--benchflow-job-name={settings.job_name}"] if config.option.benchflow_job_name is None else []
    added += ["--benchflow-resume"] if getattr(config.option, "benchflow_resume", None) is None else []
    if not any(faults.values()):
        return []  # what is missing are canaries themselves
    when = "then go on" if lines else "when that is put right (what is changed in a task needs another job), go on"
    return [*lines, f"  {when}, with what is healthy kept: {shlex.join(['pytest', *given, *added])}"]


def _shown(arguments: Sequence[str]) -> list[str]:
    """Return arguments without the values of variables: one may be a secret, and who reads a log may be anybody."""
    shown: list[str] = []
    for argument in arguments:
        given = _VARIABLES if shown[-1:] == [_VARIABLES] else argument.partition("=")[0]
        name, equals, _value = argument.removeprefix(f"{_VARIABLES}=").partition("=")
        hidden = f"{name}=…" if shown[-1:] == [_VARIABLES] else f"{_VARIABLES}={name}=…"
        shown.append(hidden if given == _VARIABLES and equals else argument)
    return shown


def asked_tasks(selection: Selection) -> Iterable[Path]:
    """Yield the directories of the tasks that a session is asked for."""
    for directory in selection.named or selection.listed:
        place = next((path for path in (directory, *directory.parents) if is_task(path)), None)
        if place is not None:
            yield place
        elif directory.is_dir():
            yield from find_tasks(directory)
