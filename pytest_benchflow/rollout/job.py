"""Write a job's own files, and complete what a killed run left."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError, UsageError
from pytest_benchflow.records.coverage import CELLS, runs_of
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.job import is_ours, write_job_files
from pytest_benchflow.records.journal import Journal, read_json, write_json
from pytest_benchflow.records.recover import recover_pending
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.records.values import mapping, now
from pytest_benchflow.rollout.asked import versions
from pytest_benchflow.rollout.cell import secret_values
from pytest_benchflow.rollout.outcome import complete, empty_result
from pytest_benchflow.rollout.place import LOCK, held, open_lock_file
from pytest_benchflow.rollout.plan import agent_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_benchflow.settings import Settings


def begin_job(
    job_dir: Path,
    *,
    session_id: str | None = None,
    settings: Settings | None = None,
    planned: Callable[[], dict[str, Any]] | None = None,
) -> None:
    """Write into job.json what a session is going to do; variables for agents are named, never valued.

    The first session of a job is the file's own, each later one is added to its `further_runs`. `planned` gives the
    matrix and the digests, and is asked once a session, whichever of its processes comes first. Without `settings` the
    job is one of the Python interface, whose rollouts say each for itself what was asked; one that is there already
    stays as it is. Raises: UsageError when job.json is something else's.
    """
    with _turn(job_dir):
        path = job_dir / "job.json"
        job = _read_job(path)
        if settings is None and job is not None:
            return
        runs = runs_of(job) if job else []
        run = next((run for run in runs if run.get("session_id") == session_id), None)
        if run is None:
            run = _new_run(session_id, settings)
            runs.append(run)
        elif planned is None or run["matrix"] is not None:
            return
        if planned is not None:
            run.update(planned())
        write_json(path, _as_job(job_dir, Redactor(_secrets(settings)).value(runs)))


def adopt_run(job_dir: Path, far: dict[str, Any], *, moved: tuple[str, str]) -> None:
    """Take what a session planned from the job.json of another machine, where `moved[0]` is what is `moved[1]` here."""
    planned = {run.get("session_id"): run for run in runs_of(far)}
    with _turn(job_dir):
        runs = runs_of(read_json(job_dir / "job.json"))
        for run in runs:
            theirs = planned.get(run.get("session_id"), {})
            if run.get("matrix") is None and theirs.get("matrix") is not None:
                digests = mapping(theirs.get("digests"))
                tasks = {path.replace(*moved, 1): digest for path, digest in mapping(digests.get("tasks")).items()}
                run["digests"] = {**digests, "tasks": tasks}
                run["matrix"] = [
                    {**cell, "task_path": str(cell.get("task_path")).replace(*moved, 1)} for cell in theirs["matrix"]
                ]
        write_json(job_dir / "job.json", _as_job(job_dir, runs))


def note_cell(job_dir: Path, name: str, settings: Settings, **what: Any) -> None:
    """Record of a planned cell that leaves no rollout of its name why: `skipped`, `error`, or the other `rollout`."""
    record = {"cell": name, "time": now(), **what}
    journal = Journal(job_dir / CELLS, Redactor(_secrets(settings)).value)
    try:
        journal.append(record)
    finally:
        journal.close()


def _new_run(session_id: str | None, settings: Settings | None) -> dict[str, Any]:
    asked: dict[str, Any] | None = None
    if settings is not None:
        asked = dataclasses.asdict(settings)
        asked["jobs_dir"] = str(settings.jobs_dir)
        asked["agent_env"] = [item.partition("=")[0] for item in settings.agent_env]
    return {
        "session_id": session_id,
        "started_at": now(),
        "finished_at": None,
        "settings": asked,
        "versions": versions(),
        "digests": None,
        "matrix": None,
    }


def _as_job(job_dir: Path, runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"job_name": job_dir.name, **runs[0], "further_runs": runs[1:]}


def _secrets(settings: Settings | None) -> list[str]:
    return secret_values(agent_environment(settings)) if settings else []


def _read_job(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    job = read_json(path)
    if not is_ours(job):
        raise UsageError(f"{path} is no file of this program; pass another --benchflow-job-name")
    return job


@contextmanager
def _turn(job_dir: Path) -> Iterator[None]:
    """Keep the session's other processes from changing job.json meanwhile."""
    descriptor = os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def finish_job(job_dir: Path, session_id: str | None = None) -> list[Path]:
    """Complete what dead workers left, write the job's results.jsonl and summary.json, and mark it finished.

    `session_id` is the session that ends, None where it was killed itself. Returns the rollouts that were completed. A
    job in which a rollout is still being written stays unfinished.
    """
    completed, busy = [], False
    for path in sorted(job_dir.iterdir()):
        # What a link leads to is no rollout of this job.
        if not path.is_symlink() and (path / "config.json").is_file():
            try:
                with held(RunDir(path), wait=False):
                    completed += [path] if _recover(RunDir(path), session_id) else []
            except UsageError:
                busy = True
    write_job_files(job_dir)
    if not busy:
        with _turn(job_dir):
            runs = runs_of(read_json(job_dir / "job.json"))
            ended = [{**run, "finished_at": run.get("finished_at") or now()} for run in runs]
            write_json(job_dir / "job.json", _as_job(job_dir, ended))
    return completed


def recover_jobs(jobs_dir: Path, *, also: Path | None = None) -> list[Path]:
    """Complete the rollouts of jobs whose session was killed, and those of the job `also` though it is finished.

    Returns their directories. What another process works on is left alone.
    """
    recovered = []
    for job_file in sorted(jobs_dir.glob("*/job.json")) if jobs_dir.is_dir() else []:
        job_dir = job_file.parent
        try:
            job = read_json(job_file)
        except RecordError:
            continue
        finished = all(run.get("finished_at") is not None for run in runs_of(job))
        if not is_ours(job) or (finished and job_dir != also):
            continue
        try:
            lock = open_lock_file(job_dir / LOCK)
        except UsageError:
            continue
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            recovered += finish_job(job_dir)
    return recovered


def complete_lost(rundir: RunDir) -> bool:
    """Complete a rollout, which the caller holds, whose process died while its session went on; False: it is done."""
    return _recover(rundir, None, lost=True)


def _recover(rundir: RunDir, session_id: str | None, *, lost: bool = False) -> bool:
    """Record the open exchanges of a killed rollout and give it a result; False when there was nothing to do."""
    if strange_files(rundir):
        return False  # written to by nobody, and the checks tell why
    recover_pending(rundir)
    try:
        config = read_json(rundir.config)
    except RecordError:
        return False
    try:
        result = read_json(rundir.result)
    except RecordError:
        lost = lost or (session_id is not None and config.get("session_id") == session_id)
        result = {
            **empty_result(rundir, config),
            "error": f"the {'worker process' if lost else 'session'} that ran this rollout was killed",
            "error_category": "interrupted",
            "partial_trajectory": True,
            "finished_at": now(),
        }
    # A result without a verdict: the kill came between the two times it is written.
    if result.get("verdict") is not None:
        return False
    complete(rundir, result, config)
    return True
