"""Write a job's own files, and complete what a killed run left."""

from __future__ import annotations

import dataclasses
import fcntl
import platform
from typing import TYPE_CHECKING, Any

from pytest_benchflow import __version__
from pytest_benchflow.errors import RecordError, UsageError
from pytest_benchflow.records.job import write_job_files
from pytest_benchflow.records.journal import read_json, write_json
from pytest_benchflow.records.recover import recover_pending
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.records.values import now
from pytest_benchflow.rollout.outcome import complete, empty_result
from pytest_benchflow.rollout.place import held

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.settings import Settings


def begin_job(job_dir: Path, *, session_id: str | None = None, settings: Settings | None = None) -> None:
    """Write job.json; variables for agents are named, never valued.

    Without `settings` the job is one of the Python interface, whose rollouts say each for itself what was asked; one
    that is there already stays as it is.
    """
    path = job_dir / "job.json"
    if settings is None and path.exists():
        return
    asked: dict[str, Any] | None = None
    if settings is not None:
        asked = dataclasses.asdict(settings)
        asked["jobs_dir"] = str(settings.jobs_dir)
        asked["agent_env"] = [item.partition("=")[0] for item in settings.agent_env]
    write_json(
        path,
        {
            "job_name": job_dir.name,
            "session_id": session_id,
            "started_at": now(),
            "finished_at": None,
            "settings": asked,
            "versions": {"pytest_benchflow": __version__, "python": platform.python_version()},
        },
    )


def finish_job(job_dir: Path) -> list[Path]:
    """Complete what dead workers left, write the job's results.jsonl and summary.json, and mark it finished.

    Returns the rollouts that were completed. A job in which a rollout is still being written stays unfinished.
    """
    completed, busy = [], False
    for path in sorted(job_dir.iterdir()):
        if (path / "config.json").is_file():
            try:
                with held(RunDir(path), wait=False):
                    completed += [path] if _recover(RunDir(path)) else []
            except UsageError:
                busy = True
    write_job_files(job_dir)
    if not busy:
        job = read_json(job_dir / "job.json")
        write_json(job_dir / "job.json", {**job, "finished_at": now()})
    return completed


def recover_jobs(jobs_dir: Path, *, also: Path | None = None) -> list[Path]:
    """Complete the rollouts of jobs whose session was killed, and those of the job `also` though it is finished.

    Returns their directories. What another process works on is left alone.
    """
    recovered = []
    for job_file in sorted(jobs_dir.glob("*/job.json")) if jobs_dir.is_dir() else []:
        job_dir = job_file.parent
        try:
            if read_json(job_file).get("finished_at") is not None and job_dir != also:
                continue
        except RecordError:
            continue
        with (job_dir / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            recovered += finish_job(job_dir)
    return recovered


def _recover(rundir: RunDir) -> bool:
    """Record the open exchanges of a killed rollout and give it a result; False when there was nothing to do."""
    recover_pending(rundir)
    try:
        config = read_json(rundir.config)
    except RecordError:
        return False
    try:
        result = read_json(rundir.result)
    except RecordError:
        result = {
            **empty_result(rundir, config),
            "error": "the session that ran this rollout was killed",
            "error_category": "interrupted",
            "partial_trajectory": True,
            "finished_at": now(),
        }
    # A result without a verdict: the kill came between the two times it is written.
    if result.get("verdict") is not None:
        return False
    complete(rundir, result, config)
    return True
