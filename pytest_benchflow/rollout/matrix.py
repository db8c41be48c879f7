"""Write down what a session is going to run: its cells, and the digests of what they are made from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from pytest_benchflow.catalog.load import find
from pytest_benchflow.rollout.cell import task_of
from pytest_benchflow.tasks.load import task_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_benchflow.rollout.config import RolloutConfig


def matrix_record(cells: Iterable[RolloutConfig]) -> dict[str, Any]:
    """Return the matrix and the digests of job.json for settled cells, in an order that only they decide."""
    found = {cell.rollout_name(task_of(cell)): cell for cell in cells}
    tasks = {task.path: task for task in map(task_of, found.values())}
    return {
        "digests": {
            "tasks": {str(path): task_digest(tasks[path]) for path in sorted(tasks)},
            "agents": {name: agent_digest(name) for name in sorted({cell.agent_name for cell in found.values()})},
        },
        "matrix": sorted((_entry(name, cell) for name, cell in found.items()), key=_place),
    }


def _entry(name: str, cell: RolloutConfig) -> dict[str, Any]:
    task = task_of(cell)
    return {
        "rollout": name,
        "task": task.name,
        "task_path": str(task.path),
        "agent": cell.agent_name,
        "model": cell.model,
        "skills": cell.skills,
        "reasoning_effort": cell.reasoning_effort,
        "trial": cell.trial,
    }


def _place(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[name] for name in ("task_path", "agent", "model", "skills", "trial"))


def agent_digest(name: str) -> str | None:
    """Return the SHA-256 of an agent's catalogue entry; None: it has none, and is pinned by a package's version."""
    manifest = find(name)
    return None if manifest is None else hashlib.sha256(manifest.file.read_bytes()).hexdigest()
