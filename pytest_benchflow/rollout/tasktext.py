"""Gather the texts of a task that tell whose a missing thing is: the verifier's, or the agent's to make."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from pytest_benchflow.records.owner import TaskText

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pytest_benchflow.tasks.task import Step, Task

_MOST_FILES = 2000
_LONGEST_FILE = 256 * 1024
_LONGEST_TEXT = 8 * 1024 * 1024


def task_text(task: Task, step: Step) -> TaskText:
    """Return what the task says up to a step; of a long file or a large directory the beginning counts."""
    beside = list(_files([step.shared_tests, step.tests]))
    solutions = _files(other.solution for other in task.steps)
    laid_out = [task.environment_dir, *(other.workdir for other in task.steps)]
    places = [str(path.relative_to(root)) for root in laid_out if root for path in _files([root])]
    return TaskText(
        asked="\n".join(other.instruction for other in task.steps[: task.steps.index(step) + 1]),
        made="\n".join([_texts(solutions), *places]),
        script=_texts(beside),
        own_names=frozenset(path.name for path in beside),
    )


def _files(roots: Iterable[Path | None]) -> Iterator[Path]:
    found = (path for root in roots if root for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return islice(found, _MOST_FILES)


def _texts(paths: Iterable[Path]) -> str:
    parts: list[str] = []
    room = _LONGEST_TEXT
    for path in paths:
        with path.open("rb") as stream:
            data = stream.read(min(room, _LONGEST_FILE))
        parts.append(data.decode("utf-8", "replace"))
        room -= len(data)
    return "\n".join(parts)
