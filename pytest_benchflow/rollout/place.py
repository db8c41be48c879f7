"""Decide where a rollout's records go, and hold that place while they are written."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.checks._check import plain
from pytest_benchflow.errors import UsageError
from pytest_benchflow.records.attempts import is_number
from pytest_benchflow.records.files import open_plain
from pytest_benchflow.records.jsontext import dumps, loads
from pytest_benchflow.records.recover import recover_pending
from pytest_benchflow.records.rundir import RunDir, new_job_name
from pytest_benchflow.records.values import mapping, now
from pytest_benchflow.rollout.aside import aside

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from typing import IO, Any

    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.tasks.task import Task

_LOCK_TICK_SEC = 0.05
# Held while a session works on a job.
LOCK = ".lock"
_LONGEST_HOLDER = 4096
# An attempt on its way into attempts/<k>/.
_MOVING = ".moving"


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


def open_lock_file(path: Path) -> IO[str]:
    """Open a lock, made where there is none: directories of runs are untrusted, and a link could lead to any file.

    Raises: UsageError when it is no plain file, OSError.
    """
    try:
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UsageError(f"{path} is no plain file, which a lock is; remove it") from None
    return os.fdopen(descriptor, "a+", encoding="utf-8", errors="replace")


async def take_lock(file: IO[Any]) -> None:
    """Take the lock of a file, with no thread that waits for it: many rollouts may wait at once."""
    while not _locked(file):  # noqa: ASYNC110 - another process may have it, and tells nobody when it lets go
        await asyncio.sleep(_LOCK_TICK_SEC)


def _locked(file: IO[Any]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@asynccontextmanager
async def holding(rundir: RunDir) -> AsyncIterator[None]:
    """Wait for a rollout's directory, and hold it as `held` does; one that is interrupted before it begins goes."""
    opened: list[IO[Any]] = []

    def open_lock() -> None:
        rundir.path.mkdir(parents=True, exist_ok=True)
        opened.append(open_lock_file(rundir.lock))

    try:
        while not opened or not _is_at(rundir.lock, opened[-1]):
            await aside(open_lock)
            await take_lock(opened[-1])
        try:
            yield
        except asyncio.CancelledError:
            _leave_nothing(rundir)
            raise
    finally:
        for file in opened:
            file.close()


def _is_at(path: Path, file: IO[Any]) -> bool:
    """Tell whether an open lock is still the one at its path: who had it may have removed it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    return False


def _leave_nothing(rundir: RunDir) -> None:
    """Remove the directory of a rollout, which is held, where it has no more than its lock: it would count as one."""
    with suppress(OSError):
        if os.listdir(rundir.path) == [rundir.lock.name]:  # noqa: PTH208 - names alone
            rundir.lock.unlink()
            rundir.path.rmdir()


@contextmanager
def held(rundir: RunDir, *, wait: bool) -> Iterator[None]:
    """Hold a rollout's directory; the kernel lets go with the process, so a stale lock cannot exist.

    Raises: UsageError when another rollout is being written there and `wait` is False, or its lock is no plain file.
    """
    rundir.path.mkdir(parents=True, exist_ok=True)
    with open_lock_file(rundir.lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UsageError(
                f"{rundir.path} is being written by another rollout; wait for it, "
                "or give each one a trial number or a job_name of its own"
            ) from None
        yield


def set_aside(rundir: RunDir) -> None:
    """Move what an earlier attempt left into attempts/<k>/: nothing captured is ever overwritten.

    Model calls that it left open are recorded first. After a kill in the middle a second call goes on where the first
    one was, so that an attempt stays whole. Raises: UsageError where attempts would go through a link.
    """
    moving = rundir.attempts / _MOVING
    for path in (rundir.attempts, moving):
        if path.is_symlink():
            raise UsageError(f"{path} is a link, and nothing is moved through one; remove it")
    if not moving.is_dir():
        if not _holds_files(rundir):
            return
        recover_pending(rundir)
        moving.mkdir(parents=True)
    left = [path for path in rundir.path.iterdir() if path not in (rundir.attempts, rundir.lock)]
    # What makes a directory a rollout goes first: nobody takes the rest for one that was killed.
    for path in sorted(left, key=lambda each: each != rundir.config):
        target = moving / path.name
        while os.path.lexists(target):
            target = target.with_name(f"{target.name}.again")
        path.rename(target)
    done = [int(path.name) for path in rundir.attempts.iterdir() if is_number(path.name)]
    moving.rename(rundir.attempts / str(max(done, default=0) + 1))


def _holds_files(rundir: RunDir) -> bool:
    """Tell whether an attempt left anything: one that was killed as it began has left empty directories at most."""
    if not rundir.path.is_dir():
        return False
    left = [path for path in rundir.path.iterdir() if path not in (rundir.attempts, rundir.lock)]
    return any(path.is_symlink() or not path.is_dir() or any(files for _, _, files in os.walk(path)) for path in left)


def take_job(job_dir: Path, words: Sequence[str], *, or_else: str = "") -> IO[str]:
    """Take a job's directory and write down who has it; `words` are the command line. Hold what is returned.

    `or_else` is what one may do other than wait for who has it. The kernel lets go with the process, so that a stale
    lock is taken over. Raises: UsageError naming the holder.
    """
    file = open_lock_file(job_dir / LOCK)
    if not _locked(file):
        file.seek(0)
        holder = _holder(file.read(_LONGEST_HOLDER))
        file.close()
        raise UsageError(
            f"{job_dir} is in use by another session ({holder}); wait for it" + (f", or {or_else}" if or_else else "")
        )
    file.truncate(0)
    command = " ".join(_harmless(word) for word in words)
    record = {"pid": os.getpid(), "host": socket.gethostname(), "since": now(), "command": command}
    file.write(dumps(record).decode())
    file.flush()
    return file


def _holder(text: str) -> str:
    """Say who has a lock, by what it wrote there: nothing, where it has not come to it."""
    try:
        record = mapping(loads(text.encode()))
    except ValueError:
        record = {}
    told = [("process {}", "pid"), ("on {}", "host"), ("since {}", "since"), ("`{}`", "command")]
    return plain(" ".join(how.format(record[name]) for how, name in told if record.get(name))) or "process unknown"


def _harmless(word: str) -> str:
    """Return a word of a command line for others to read: options that may hold a secret without their values."""
    name, given, value = word.partition("=")
    if not word.startswith("-"):
        return word if Path(word.partition("::")[0]).exists() else "…"
    ours = name.startswith("--benchflow-") and name != "--benchflow-agent-env"
    return (
        word if not given or ours else f"{name}={value.partition('=')[0] if name == '--benchflow-agent-env' else '…'}"
    )
