"""Make jobs of invented data out of small rollouts, also large ones quickly."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.job import write_job_files
from pytest_benchflow.records.rundir import RunDir
from tests.unit.rollouts import write_rollout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Json = dict[str, Any]
VERSIONS = {"pytest_benchflow": "0.1.0", "python": "3.11.7"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A planned rollout; `left` says what became of it: a verdict, missing, or skipped."""

    task: str
    agent: str = "baseline"
    model: str = "coder"
    skills: str = "default"
    trial: int = 1
    left: str = "pass"
    reward: float | None = 1.0
    records: Sequence[Json] | None = None
    result: Json = field(default_factory=dict)
    config: Json = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.task}__{self.agent}__{self.model}__{self.skills}__{self.trial}"

    def planned(self) -> Json:
        keys = ("task", "agent", "model", "skills", "trial")
        return {"rollout": self.name, **{key: getattr(self, key) for key in keys}}

    def facts(self) -> tuple[Json, Json]:
        """Return what result.json and config.json of its rollout say."""
        unhealthy = self.left == "unhealthy"
        result: Json = {
            "task_name": self.task,
            "rollout_name": self.name,
            "agent": self.agent,
            "model": self.model,
            "rewards": None if self.reward is None else {"reward": self.reward},
            "verdict": self.left,
            "verdict_category": "infra" if unhealthy else None,
            "warnings": [],
        }
        if unhealthy:
            result |= {"error": "the sandbox was lost", "error_category": "sandbox"}
        config = {"task_name": self.task, "agent": self.agent, "model": self.model, "trial": self.trial}
        return result | self.result, config | self.config


def write_job(job: Path, cells: Sequence[Cell], *, finished: bool = True) -> Path:
    """Write a job with a rollout for each cell that left one, job.json, cells.jsonl and summary.json."""
    for cell in cells:
        if cell.left not in ("missing", "skipped"):
            result, config = cell.facts()
            write_rollout(job / cell.name, cell.records, result_with=result, config_with=config)
    write_plan(job, cells, finished=finished)
    if finished:
        write_job_files(job)
    return job


def write_plan(job: Path, cells: Sequence[Cell], *, finished: bool = True) -> None:
    job.mkdir(parents=True, exist_ok=True)
    plan = {
        "job_name": job.name,
        "session_id": "0123456789abcdef",
        "started_at": "2026-03-01T10:00:00Z",
        "finished_at": "2026-03-01T11:00:00Z" if finished else None,
        "settings": {"sandbox": "local"},
        "versions": VERSIONS,
        "digests": None,
        "matrix": [cell.planned() for cell in cells],
        "further_runs": [],
    }
    (job / "job.json").write_text(json.dumps(plan), "utf-8")
    notes = [{"cell": cell.name, "skipped": "it needs docker"} for cell in cells if cell.left == "skipped"]
    (job / "cells.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes), "utf-8")


def write_large_job(job: Path, count: int) -> Path:
    """Write a job of many rollouts: one of each kind is made, and its files are copied under other names."""
    kinds = [Cell("fix-parser"), Cell("fix-parser", left="fail", reward=0.25)]
    kinds.append(Cell("fix-parser", left="unhealthy", reward=None))
    originals = [write_job(job.parent / f"{job.name}-original-{number}", [kind]) for number, kind in enumerate(kinds)]
    files = [
        [(file.relative_to(original / kind.name), file.read_text("utf-8")) for file in (original / kind.name).rglob("*")
         if file.is_file()]
        for original, kind in zip(originals, kinds, strict=True)
    ]  # fmt: skip
    cells = []
    for number in range(count):
        kind = kinds[number % 7 if number % 7 < len(kinds) else 0]
        task, agent = f"task-{number // 20:03}", ("alpha", "beta")[number % 2]
        cell = Cell(task, agent, trial=number % 20 // 2 + 1, left=kind.left, reward=kind.reward)
        place = RunDir(job / cell.name).create()
        for relative, text in files[kinds.index(kind)]:
            changed = text.replace("fix-parser__baseline__coder__default__1", cell.name)
            for old, new in (('"fix-parser"', f'"{task}"'), ('"baseline"', f'"{agent}"')):
                changed = changed.replace(old, new)
            (place.path / relative).write_text(changed.replace('"trial": 1', f'"trial": {cell.trial}'), "utf-8")
        cells.append(cell)
    write_plan(job, cells)
    write_job_files(job)
    return job
