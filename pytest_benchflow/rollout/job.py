"""Write a job's own files, and complete what a killed run left."""

from __future__ import annotations

import dataclasses
import fcntl
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow import __version__
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.job import write_job_files
from pytest_benchflow.records.journal import read_json, write_json
from pytest_benchflow.records.recover import recover_pending
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.rollout.outcome import complete
from pytest_benchflow.rollout.state import now

if TYPE_CHECKING:
    from pytest_benchflow.settings import Settings


def begin_job(job_dir: Path, settings: Settings, session_id: str) -> None:
    """Write job.json; variables for agents are named, never valued."""
    asked = {
        name: str(value) if isinstance(value, Path) else value for name, value in dataclasses.asdict(settings).items()
    }
    asked["agent_env"] = [item.partition("=")[0] for item in settings.agent_env]
    write_json(
        job_dir / "job.json",
        {
            "job_name": job_dir.name,
            "session_id": session_id,
            "started_at": now(),
            "finished_at": None,
            "settings": asked,
            "versions": {"pytest_benchflow": __version__, "python": platform.python_version()},
        },
    )


def finish_job(job_dir: Path) -> None:
    """Write the job's results.jsonl and summary.json and mark it finished."""
    write_job_files(job_dir)
    job = read_json(job_dir / "job.json")
    write_json(job_dir / "job.json", {**job, "finished_at": now()})


def recover_jobs(jobs_dir: Path, *, except_job: Path | None = None) -> list[Path]:
    """Complete the rollouts of jobs whose session was killed; return their directories. Live jobs are left alone."""
    recovered = []
    for job_file in sorted(jobs_dir.glob("*/job.json")) if jobs_dir.is_dir() else []:
        job_dir = job_file.parent
        try:
            if read_json(job_file).get("finished_at") is not None and job_dir != except_job:
                continue
        except RecordError:
            continue
        with (job_dir / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            found = [path for path in sorted(job_dir.iterdir()) if (path / "config.json").is_file()]
            recovered += [path for path in found if _recover(RunDir(path))]
            finish_job(job_dir)
    return recovered


def _recover(rundir: RunDir) -> bool:
    """Record the open exchanges of a killed rollout and give it a result; False when there was nothing to do."""
    interrupted = recover_pending(rundir)
    if rundir.result.exists() and not interrupted:
        return False
    try:
        config = read_json(rundir.config)
    except RecordError:
        return False
    if not rundir.result.exists():
        complete(rundir, _killed(rundir, config), config)
    return True


def _killed(rundir: RunDir, config: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a rollout whose process was killed: what is not known stays null."""
    return {
        "task_name": config.get("task_name"),
        "rollout_name": rundir.path.name,
        "agent": config.get("agent"),
        "agent_name": config.get("agent"),
        "agent_version": config.get("agent_version"),
        "model": config.get("model"),
        "skill_mode": config.get("skill_mode"),
        "task_skills_loading": None,
        "skill_catalog": None,
        "rewards": None,
        "n_tool_calls": None,
        "n_skill_invocations": None,
        "n_prompts": None,
        "agent_result": {"cost_usd": None, "price_source": None, "usage_source": None, "reported": None},
        "error": "the session that ran this rollout was killed",
        "error_category": "interrupted",
        "error_details": None,
        "verifier_error": None,
        "verifier_error_category": None,
        "export_error": None,
        "partial_trajectory": True,
        "warnings": [],
        "started_at": config.get("started_at"),
        "finished_at": now(),
        "timing": {"total": None, "agent_started_at": None, "agent_finished_at": None, "verifier_started_at": None},
        "verifier_started_after_agent": None,
        "idle_before_timeout_s": None,
        "in_flight_at_timeout": None,
        "sandbox_id": None,
        "proxy": None,
        "source": config.get("source"),
    }
