"""Write down what a session is going to run: its cells, and the digests of what they are made from."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from pytest_benchflow.catalog.load import find
from pytest_benchflow.errors import UnpricedError, UsageError
from pytest_benchflow.rollout.cell import task_of
from pytest_benchflow.rollout.config import asked_effort
from pytest_benchflow.tasks.load import task_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_benchflow.rollout.config import RolloutConfig

_SETTINGS = (
    *("agent_timeout", "idle_timeout", "model_timeout", "reasoning_effort"),
    *("agent_network", "replay_strict", "keep_sandbox"),
)


def matrix_record(cells: Iterable[RolloutConfig]) -> dict[str, Any]:
    """Return the matrix and the digests of job.json for settled cells, in an order that only they decide."""
    found = {cell.rollout_name(task_of(cell)): cell for cell in cells}
    tasks = {task.path: task for task in map(task_of, found.values())}
    return {
        "digests": {
            "tasks": {str(path): task_digest(tasks[path]) for path in sorted(tasks)},
            "agents": {name: agent_digest(name) for name in sorted({cell.agent_name for cell in found.values()})},
            "prices": dict(sorted(_prices(found.values()).items())),
            "settings": _settings_digest(found.values()),
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
        "reasoning_effort": _effort(cell),
        "trial": cell.trial,
        "canary": cell.canary,
    }


def _effort(cell: RolloutConfig) -> str | None:
    """Return the effort that the cell will ask for, a variable's too; where those disagree it does not run."""
    try:
        return asked_effort(cell.reasoning_effort, cell.agent_env)
    except UsageError:
        return cell.reasoning_effort


def _place(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[name] for name in ("task_path", "agent", "model", "skills", "trial"))


def agent_digest(name: str) -> str | None:
    """Return the SHA-256 of an agent's catalogue entry; None: it has none, and is pinned by a package's version."""
    manifest = find(name)
    return None if manifest is None else hashlib.sha256(manifest.file.read_bytes()).hexdigest()


def _prices(cells: Iterable[RolloutConfig]) -> dict[str, str | None]:
    """Return by model that costs something the SHA-256 of its prices; None: they are not known."""
    found: dict[str, str | None] = {}
    for cell in cells:
        if cell.model not in ("none", "replay") and cell.model not in found:
            try:
                found[cell.model] = _digest(cell.prices.of(cell.model).as_json())
            except UnpricedError:
                found[cell.model] = None
    return found


def _settings_digest(cells: Iterable[RolloutConfig]) -> str:
    """Return the SHA-256 of what cells are asked beside what tells them apart; variables count by their names."""
    asked = {_canonical({**{name: getattr(cell, name) for name in _SETTINGS}, **_named(cell)}) for cell in cells}
    return hashlib.sha256(b"\n".join(sorted(asked))).hexdigest()


def _named(cell: RolloutConfig) -> dict[str, Any]:
    sandbox = cell.sandbox if isinstance(cell.sandbox, str) else cell.sandbox.name
    return {"sandbox": sandbox, "agent_env": sorted(cell.agent_env)}


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
