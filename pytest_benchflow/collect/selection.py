"""Decide which task directories a session collects: only those that somebody asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.records.rundir import is_run
from pytest_benchflow.tasks.load import is_task, task_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_benchflow.settings import Settings


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for on the command line and in the ini file; all paths are absolute."""

    settings: Settings
    root: Path
    named: tuple[Path, ...] = ()  # paths on the command line
    everywhere: bool = False  # an agent or a model is named on the command line
    listed: tuple[Path, ...] = ()  # directories that the ini file lists
    warns: bool = True  # False in all xdist workers but one, so that each warning appears once
    notes: tuple[str, ...] = ()  # what a reader should know of how it came to be
    warned: set[Path] = field(default_factory=set)

    def asks_for(self, task: Path) -> bool:
        """Tell whether the task directory `task` is to be collected."""
        if self.everywhere or any(task.is_relative_to(directory) for directory in self.listed):
            return True
        return any(self._names(path, task) for path in self.named)

    @property
    def in_use(self) -> bool:
        """Tell, without searching, whether this session is about tasks; a deeply nested task may be missed."""
        if self.everywhere or self.listed:
            return True
        return any(
            enclosing_task(path) or any(self._names(path, child) for child in _child_tasks(path)) for path in self.named
        )

    def _names(self, path: Path, task: Path) -> bool:
        """Tell whether naming `path` names `task`.

        The root directory, or one above it, is what plain `pytest` collects too: it names only tasks right below it.
        """
        if path.is_relative_to(task):
            return True
        if not task.is_relative_to(path):
            return False
        return task.parent == path or not self.root.is_relative_to(path)


def absolute_paths(arguments: Iterable[str], directory: Path) -> tuple[Path, ...]:
    """Return the paths of command-line arguments such as `tasks/x/task.toml::rollout[a]`, links not followed."""
    return tuple(Path(os.path.normpath(directory / str(argument).partition("::")[0])) for argument in arguments)


def enclosing_task(path: Path) -> Path | None:
    """Return the task directory that `path` is or lies in, None when there is none."""
    return next((place for place in (path, *path.parents) if is_task(place)), None)


def enclosing_run(path: Path) -> Path | None:
    """Return the job or rollout directory that `path` is or lies in, None when there is none."""
    return next((place for place in (path, *path.parents) if is_run(place)), None)


def conftest_anchors(arguments: Sequence[str], directory: Path, reviewed: Sequence[Path] = ()) -> list[str] | None:
    """Return arguments for which pytest looks for conftest files without entering a task's or a run's directories.

    pytest imports `test*/conftest.py` below each argument, and those above it: in a task that is code for the sandbox,
    in a run it may be an agent's; what lies in `reviewed` is of runs. None: the arguments are fine as they are.
    """
    places = absolute_paths(arguments, directory) or (directory,)
    files = [_anchor(place, reviewed) for place in places]
    if not any(files):
        return None
    # A file as argument makes pytest look in its directory and upwards only.
    return [str(file or argument) for file, argument in zip(files, arguments or ("",), strict=True)]


def conftest_above(path: Path) -> Path:
    """Return the nearest conftest.py above a path; where there is none, a path at which pytest finds none."""
    files = (parent / "conftest.py" for parent in path.parents)
    return next((file for file in files if file.is_file()), Path(os.devnull))


def _anchor(path: Path, reviewed: Sequence[Path]) -> Path | None:
    """Return where to look for conftest files for `path`, None where nothing around it is a task or a run."""
    for place in (*reversed(path.parents), path):
        if place in reviewed or is_run(place):
            return conftest_above(place)
        if file := task_file(place):
            return file
    return None


def _child_tasks(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir() and is_task(Path(entry.path))]
    except OSError:
        return []
