"""Install an agent once per version and image in a directory of this machine, which every rollout is given read-only.

What the script leaves below /opt/benchflow is kept, its own HOME among it; nothing else is.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import INSTALL_HOME, INSTALL_ROOT, Mount, SandboxSpec
from pytest_benchflow.errors import AgentError
from pytest_benchflow.sandboxes._host import find_python, package_sources, python_mounts
from pytest_benchflow.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from pytest_benchflow.contracts import Backend, ExecResult, Installation
    from pytest_benchflow.tasks.task import Task

_MARKER = ".complete.json"
_PLACE = "place"  # of an unfinished installation's sandbox
_LOCK_TICK_SEC = 0.2
# Downloads that no rollout needs stay out of the installation.
CACHES = {"XDG_CACHE_HOME": "/tmp/downloads", "npm_config_cache": "/tmp/downloads/npm"}  # noqa: S108 - of the sandbox
_CREDENTIALS = re.compile(r"://[^/@\s]+@")

# An installation that failed is not tried again by the next rollout of the same session.
_failed: dict[str, str] = {}


@functools.cache
def _interpreter(version: str) -> Path | None:
    # A version manager's shim takes a third of a second to answer: once for each process is enough.
    return find_python(version)


async def install_here(backend: Backend, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
    """Return the mounts of an installation, made first in a sandbox of `backend` where the cache has none.

    The directory appears under its name only when it is complete. Raises: AgentError naming the log.
    """
    wanted = installation.python
    python = await asyncio.to_thread(_interpreter, wanted) if wanted else None
    digest = _digest(installation, backend.fingerprint(task), python)
    key = f"{installation.name}@{installation.version or 'latest'}-{digest}"
    root = cache_dir() / "agents"
    final = root / key
    mounts = (Mount(final, INSTALL_ROOT), *python_mounts(python))
    if (final / _MARKER).is_file():
        return mounts
    if key in _failed:
        raise AgentError(_failed[key])
    root.mkdir(parents=True, exist_ok=True)
    async with locked(root / f".{key}.lock"):
        if key in _failed:  # while another rollout's attempt was waited for
            raise AgentError(_failed[key])
        if not (final / _MARKER).is_file():
            await _build(installation, backend, task, log=log, final=final, python=python)
    return mounts


async def _build(
    installation: Installation, backend: Backend, task: Task, *, log: Path, final: Path, python: Path | None
) -> None:
    """Install into a draft beside `final` and rename it. Call it with the lock held."""
    for left in final.parent.glob(f".{final.name}.draft-*"):
        place = left / _PLACE
        # What cannot be told to be gone is asked for again by the next installation.
        if not place.is_file() or await asyncio.to_thread(backend.reap, left / "scratch", place.read_text("utf-8")):
            await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)
    await asyncio.to_thread(shutil.rmtree, final, ignore_errors=True)
    draft = final.parent / f".{final.name}.draft-{secrets.token_hex(4)}"
    files, scratch = draft / "files", draft / "scratch"
    (files / INSTALL_HOME.removeprefix(f"{INSTALL_ROOT}/")).mkdir(parents=True)
    scratch.mkdir(mode=0o700)
    (draft / _PLACE).write_text(backend.place, "utf-8")
    try:
        sources, local = package_sources()
        env = {**sources, "HOME": INSTALL_HOME, **CACHES, **installation.env}
        if python is not None:
            env["BENCHFLOW_PYTHON"] = str(python)
        mounts = (Mount(files, INSTALL_ROOT, writable=True), *python_mounts(python), *local)
        spec = SandboxSpec(id=f"install-{secrets.token_hex(4)}", task=task, scratch=scratch, mounts=mounts)
        result = await _run(installation, backend, spec, env)
        keep_log(log, result)
        if result.exit_code != 0:
            _failed[final.name] = why_failed(installation, result, log)
            raise AgentError(_failed[final.name])
        facts = {"name": installation.name, "version": installation.version, "python": str(python)}
        (files / _MARKER).write_text(json.dumps(facts), "utf-8")
        files.rename(final)
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)


async def _run(installation: Installation, backend: Backend, spec: SandboxSpec, env: Mapping[str, str]) -> ExecResult:
    sandbox = await backend.create(spec)
    try:
        await sandbox.enter("setup", "public")
        script = f"exec 2>&1\n{installation.script}"
        # Whoever the task's own work is done as may write nothing of what others will run.
        return await sandbox.exec(["sh", "-c", script], env=env, cwd="/", user="root", timeout=installation.timeout_sec)
    finally:
        await asyncio.shield(sandbox.stop())


def keep_log(path: Path, result: ExecResult) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # An index's URL may hold a password.
    path.write_text(_CREDENTIALS.sub("://***@", result.stdout + result.stderr), "utf-8", errors="replace")


def why_failed(installation: Installation, result: ExecResult, log: Path) -> str:
    limit = installation.timeout_sec
    how = f"took over {limit:g} s" if result.timed_out else f"ended with exit code {result.exit_code}"
    last = "\n".join(log.read_text("utf-8").strip().splitlines()[-8:])
    what = f"{installation.name} {installation.version or ''}".strip()
    return f"{what} could not be installed: its install_cmd {how}; log: {log}; the last lines:\n{last}"


def _digest(installation: Installation, fingerprint: str, python: Path | None) -> str:
    text = "\0".join((INSTALL_ROOT, fingerprint, installation.name, installation.script, str(python)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Hold a file lock without holding up the loop; the kernel frees it however the process ends."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_TICK_SEC)
        yield
    finally:
        os.close(file)
