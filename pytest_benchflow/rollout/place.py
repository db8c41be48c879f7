"""Decide where a rollout's records go, and hold that place while they are written."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_benchflow.errors import UsageError
from pytest_benchflow.records.recover import recover_pending
from pytest_benchflow.records.rundir import RunDir, new_job_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.tasks.task import Task


def own_job(config: RolloutConfig) -> RolloutConfig:
    """Return the configuration with a job of its own where it names none; the directory is made at once."""
    while not config.job_name:
        name = new_job_name(config.jobs_dir)
        try:
            (config.jobs_dir / name).mkdir(parents=True)
        except FileExistsError:
            continue
        config = replace(config, job_name=name)
    return config


def rundir_of(config: RolloutConfig, task: Task) -> RunDir:
    """Return the directory of a rollout whose configuration names its job."""
    return RunDir(config.jobs_dir / config.job_name / config.rollout_name(task))


@contextmanager
def held(rundir: RunDir, *, wait: bool) -> Iterator[None]:
    """Hold a rollout's directory; the kernel lets go with the process, so a stale lock cannot exist.

    Raises: UsageError when another rollout is being written there and `wait` is False.
    """
    rundir.path.mkdir(parents=True, exist_ok=True)
    with rundir.lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UsageError(
                f"{rundir.path} is being written by another rollout; "
                "give each one a trial number or a job_name of its own"
            ) from None
        yield


def set_aside(rundir: RunDir) -> None:
    """Move what an earlier attempt left into attempts/<k>/: nothing captured is ever overwritten.

    Model calls that it left open are recorded first.
    """
    left = [p for p in rundir.path.iterdir() if p not in (rundir.attempts, rundir.lock)] if rundir.path.is_dir() else []
    if not left:
        return
    recover_pending(rundir)
    left = [path for path in rundir.path.iterdir() if path not in (rundir.attempts, rundir.lock)]
    done = [int(p.name) for p in rundir.attempts.iterdir() if p.name.isdigit()] if rundir.attempts.is_dir() else []
    target = rundir.attempts / str(max(done, default=0) + 1)
    target.mkdir(parents=True)
    for path in left:
        path.rename(target / path.name)
