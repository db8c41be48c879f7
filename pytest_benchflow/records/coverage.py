"""Say what became of each planned cell of a job, from job.json, cells.jsonl and the rollouts that are there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.journal import read_json, read_lines
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

CELLS = "cells.jsonl"


@dataclass(slots=True)
class Coverage:
    """The planned cells of a job by what became of them: each counts once, and none is left out."""

    healthy: list[str] = field(default_factory=list)
    unhealthy: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # a cell that could not run here -> the reason
    missing: dict[str, str | None] = field(default_factory=dict)  # one that left nothing -> the error; None: not known

    def counts(self, among: Collection[str] | None = None) -> dict[str, int]:
        """Return how many cells were planned, all or those `among` them, and how many of these became what."""
        parts = {
            name: sum(among is None or cell in among for cell in getattr(self, name))
            for name in ("healthy", "unhealthy", "skipped", "missing")
        }
        return {"planned": sum(parts.values()), **parts}

    def left_out(self) -> dict[str, list[dict[str, str | None]]]:
        """Return the cells without a rollout, each with its reason."""
        tables: dict[str, Mapping[str, str | None]] = {"skipped": self.skipped, "missing": self.missing}
        return {
            name: [{"rollout": cell, "reason": reason} for cell, reason in table.items()]
            for name, table in tables.items()
        }


def coverage(job_dir: Path, healthy: Mapping[str, bool]) -> Coverage:
    """Return what became of the cells; `healthy` tells it of each rollout that is there, by name.

    A rollout that nobody planned, as one of the Python interface, counts as planned by being there.
    """
    notes = {str(note.get("cell")): note for note in notes_of(job_dir / CELLS)}
    planned = dict.fromkeys(str(cell.get("rollout")) for cell in planned_cells(job_dir / "job.json"))
    became = {cell: str(notes[cell]["rollout"]) for cell in planned if "rollout" in notes.get(cell, {})}
    found = Coverage()
    for cell in [*planned, *(name for name in healthy if name not in {*planned, *became.values()})]:
        rollout = cell if cell in healthy else became.get(cell, cell)
        note = notes.get(rollout, {})
        if rollout in healthy:
            (found.healthy if healthy[rollout] else found.unhealthy).append(cell)
        elif "skipped" in note:
            found.skipped[cell] = str(note["skipped"])
        else:
            found.missing[cell] = str(note["error"]) if "error" in note else None
    return found


def runs_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sessions that job.json tells of, in the order they began."""
    run = {name: value for name, value in job.items() if name not in ("job_name", "further_runs")}
    return [run, *(further for further in sequence(job.get("further_runs")) if isinstance(further, dict))]


def planned_cells(job_file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of the matrix; an unreadable job.json plans none."""
    try:
        runs = runs_of(read_json(job_file))
    except RecordError:
        return
    for run in runs:
        yield from map(mapping, sequence(run.get("matrix")))


def notes_of(path: Path) -> Iterable[dict[str, Any]]:
    """Yield what cells.jsonl tells, the oldest first; a torn line, as a full disk leaves, tells nothing."""
    for _number, line in read_lines(path) if path.is_file() else ():
        try:
            note = loads(line)
        except ValueError:
            continue
        if isinstance(note, dict):
            yield note
