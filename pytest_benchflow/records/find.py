"""Find the rollouts at or below a path. Directories of runs are untrusted: no link is followed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.coverage import CELLS, coverage
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.rundir import RunDir, is_run

if TYPE_CHECKING:
    from pathlib import Path


# Any of these makes a directory a rollout, were it the only thing left of it.
_MARKS = ("config.json", "result.json", "results.jsonl", "trajectory", ".lock")
# What only a rollout's own records name; other tools give a job a config.json and a result.json too.
_NAMES = (("result.json", ("task_name", "rollout_name")), ("config.json", ("task_path",)))
# Parts of a rollout that hold what an agent or a verifier wrote.
_FOREIGN = frozenset({"agent", "artifacts", "verifier"})
_ATTEMPTS = "attempts"


def find_rollouts(path: Path) -> list[Path]:
    """Return the rollouts at or below a directory, sorted; earlier attempts only where `path` leads to one.

    A directory with only some of a rollout's files is a rollout too, unless it is one that holds rollouts.
    """
    return _search(path)[0]


def find_missing(path: Path) -> list[Path]:
    """Return where rollouts would be that a job at or below `path` planned, and that left nothing and no reason."""
    rollouts, jobs = _search(path)
    missing: list[Path] = []
    for job in jobs:
        # What is read may be a link out of the job, or a pipe.
        plain = (job / "job.json").is_file() and not any((job / name).is_symlink() for name in ("job.json", CELLS))
        if plain and is_run(job):
            there = {rollout.name: True for rollout in rollouts if rollout.parent == job}
            cells = coverage(job, there).missing
            missing += [job / cell for cell in cells if "/" not in cell and cell not in ("", ".", "..")]
    return sorted(missing)


def _search(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the rollouts at or below a directory, sorted, and the directories that say they are jobs."""
    found: list[Path] = []
    doubtful: list[Path] = []
    jobs: list[Path] = []
    waiting = [path]
    while waiting:
        place = waiting.pop()
        marked = any(os.path.lexists(place / name) for name in _MARKS)
        if marked and _is_surely_rollout(place):
            found.append(place)
            continue
        is_job = os.path.lexists(place / "job.json")
        if is_job or marked:
            (jobs if is_job else doubtful).append(place)
        skipped = _FOREIGN | {_ATTEMPTS} if marked else {_ATTEMPTS}
        waiting += [place / name for name in _directories(place) if name not in skipped]
    holding = {parent for rollout in found for parent in rollout.parents}
    # Deepest first, so that a directory gives way to the rollouts in it.
    for place in sorted(doubtful, key=lambda each: len(each.parts), reverse=True):
        if place not in holding:
            found.append(place)
            holding.update(place.parents)
    return sorted(found), jobs


def is_rollout(path: Path) -> bool:
    """Tell whether a directory is a rollout, whole or in part: never a job, nor a directory of jobs."""
    return find_rollouts(path) == [path]


def is_attempt(path: Path) -> bool:
    """Tell whether a path is a rollout's earlier attempt, or the directory that holds them."""
    return any(place.name == _ATTEMPTS and is_rollout(place.parent) for place in (path, path.parent))


def _is_surely_rollout(path: Path) -> bool:
    """Tell whether the records in a directory are a rollout's own."""
    if os.path.lexists(RunDir(path).llm.parent):
        return True
    for name, keys in _NAMES:
        file = path / name
        try:
            record = read_json(file) if file.is_file() and not file.is_symlink() else {}
        except (RecordError, OSError):
            continue
        if any(record.get(key) for key in keys):
            return True
    return False


def _directories(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
