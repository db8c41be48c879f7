"""Read what a report tells of a job as a whole: the numbers that the job itself has written, and what is odd."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError, UsageError
from pytest_benchflow.records.arms import arm_key
from pytest_benchflow.records.coverage import CELLS, planned_cells, runs_of
from pytest_benchflow.records.find import find_rollouts
from pytest_benchflow.records.job import rollouts_of, summary_of
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.values import integer, mapping, sequence
from pytest_benchflow.report.html.rollout import refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_WHOLE = 64 << 20
_RUN_FACTS = ("session_id", "started_at", "finished_at", "settings", "versions")


class _Refused(Rollout):
    """A rollout whose files must not be read."""

    @property
    def config(self) -> dict[str, Any]:
        raise RecordError(f"{self.path}: not read")

    @property
    def result(self) -> dict[str, Any]:
        raise RecordError(f"{self.path}: not read")


class Job:
    """A job to report: its rollouts' directories, its plan, and the numbers of its summary.json."""

    def __init__(self, path: Path) -> None:
        """Read the job's own files. Raises: UsageError when it is no job, RecordError when a file is not its own."""
        self.path = path
        self.name = path.resolve().name
        _refuse_others(path)
        self.rollouts = _rollouts(path)
        self.plan: dict[str, Mapping[str, Any]] = {
            str(cell.get("rollout")): cell for cell in planned_cells(path / "job.json")
        }
        self.notes: list[str] = []
        self.summary = self._summary()
        if not self.rollouts and not self.plan:
            raise UsageError(f"{path} holds no rollout; name a job's directory, such as jobs/NAME")

    def head(self) -> dict[str, Any]:
        """Return the job's name, and its sessions as job.json tells of them."""
        try:
            job = read_json(self.path / "job.json")
        except RecordError as error:
            if (self.path / "job.json").exists():
                self.notes.append(f"job.json cannot be read, so nothing is known of what was planned: {error}")
            return {"name": self.name, "runs": []}
        runs = [{fact: run.get(fact) for fact in _RUN_FACTS} for run in runs_of(job)]
        return {"name": self.name, "runs": runs}

    def absent(self) -> Iterator[dict[str, Any]]:
        """Yield a line for each planned cell without a rollout, as summary.json names them."""
        there = {path.name for path in self.rollouts}
        for verdict in ("missing", "skipped"):
            for left_out in map(mapping, sequence(self.summary.get(verdict))):
                name = str(left_out.get("rollout"))
                if name in there:
                    continue
                cell = self.plan.get(name, {})
                agent, model, skills = arm_key(cell)
                yield {
                    "name": name,
                    "task": str(cell.get("task")),
                    "agent": agent,
                    "model": model,
                    "skills": skills,
                    "trial": integer(cell.get("trial")),
                    "canary": cell.get("canary") is True,
                    "verdict": verdict,
                    "said": None if left_out.get("reason") is None else str(left_out["reason"])[:300],
                }

    def _summary(self) -> dict[str, Any]:
        """Return summary.json; counted anew by the code that writes it only where there is none to read."""
        path = self.path / "summary.json"
        try:
            summary = read_json(path)
        except RecordError as error:
            why = f"summary.json cannot be read ({error})" if path.exists() else "this job has no summary.json yet"
            self.notes.append(f"{why}: these numbers were counted when the report was made")
            return summary_of(self.path, [_Refused(each) if refused(each) else Rollout(each) for each in self.rollouts])
        told = mapping(summary.get("rollouts"))
        counted = sum(integer(told.get(name)) or 0 for name in ("healthy", "unhealthy"))
        copies = sequence(summary.get("copies"))
        if copies:
            self.notes.append(f"not counted, as they are copies of other rollouts: {', '.join(map(str, copies[:20]))}")
        if counted + len(copies) != len(self.rollouts):
            self.notes.append(
                f"summary.json tells of {counted + len(copies)} rollouts, and {len(self.rollouts)} are here: its "
                "numbers are older than what lies in the job"
            )
        return summary


def _refuse_others(path: Path) -> None:
    if not path.is_dir():
        said = "is no directory" if path.exists() else "does not exist"
        raise UsageError(f"{path} {said}; name a job's directory, such as jobs/NAME")
    for name in ("job.json", "summary.json", CELLS):
        file = path / name
        if file.is_symlink():
            raise RecordError(f"{file}: not read, as it is a link")
        if not file.exists():
            continue
        if not stat.S_ISREG(file.stat().st_mode):
            raise RecordError(f"{file}: not read, as it is no regular file")
        if (size := file.stat().st_size) > _WHOLE:
            raise RecordError(f"{file}: not read, as it has {size:,} bytes; at most {_WHOLE:,} are read")
    if find_rollouts(path) == [path]:
        raise UsageError(f"{path} is a rollout; name its job's directory, such as {path.resolve().parent}")


def _rollouts(path: Path) -> list[Path]:
    """Return the directories that are rollouts of the job, with those that are links out of it, sorted."""
    found = {rollout.path for rollout in rollouts_of(path)}
    # Also those of which less is left; deeper ones are of a directory of jobs.
    found |= {each for each in find_rollouts(path) if each.parent == path}
    return sorted(found)
