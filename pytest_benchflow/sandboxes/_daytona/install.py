"""Install an agent once for each image at Daytona, and keep the result as a snapshot that rollouts start from."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import INSTALL_HOME, INSTALL_ROOT, Mount, SandboxSpec
from pytest_benchflow.errors import AgentError, SandboxError
from pytest_benchflow.sandboxes._daytona.api import Api, GoneError, api_url
from pytest_benchflow.sandboxes._install import keep_log, locked, why_failed
from pytest_benchflow.settings import cache_dir

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Installation
    from pytest_benchflow.sandboxes.daytona import DaytonaBackend
    from pytest_benchflow.tasks.task import Task

_ACTIVE = "active"
_BROKEN = frozenset({"error", "build_failed"})
_SNAPSHOT_SEC = 1800.0
_TICK_SEC = 2.0
# Everything below / is kept: what was downloaded goes, what the task's environment holds stays.
_SCRIPT = """\
exec 2>&1
mkdir -p {home}
for name in python{version}; do
    found=$(command -v "$name" || :)
    [ -z "$found" ] || export BENCHFLOW_PYTHON="$found"
done
( {script}
)
code=$?
rm -rf /tmp/downloads
chmod -R go-w {root}
exit $code
"""
_CACHES = {"XDG_CACHE_HOME": "/tmp/downloads", "npm_config_cache": "/tmp/downloads/npm"}  # noqa: S108 - of the sandbox


async def install(backend: DaytonaBackend, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
    """Return the mount that names the snapshot of an installation, made first where there is none.

    Raises: AgentError naming the log.
    """
    name = snapshot_name(installation, backend.fingerprint(task))
    mounts = (Mount(Path(name), INSTALL_ROOT, there=True),)
    turns = cache_dir() / "daytona"
    turns.mkdir(parents=True, exist_ok=True)
    api = Api(api_url())
    try:
        async with locked(turns / f".{name}.lock"):
            if not await _is_there(api, name):
                await _make(backend, installation, task, log=log, name=name)
                if not await _is_there(api, name):
                    raise AgentError(f"Daytona did not keep the snapshot {name} of {installation.name}'s installation")
    except SandboxError as error:
        raise AgentError(f"{installation.name} could not be installed at Daytona: {error}") from error
    finally:
        await api.close()
    return mounts


def snapshot_name(installation: Installation, fingerprint: str) -> str:
    """Return the name of an installation's snapshot: it tells all that what is in it depends on."""
    parts = (INSTALL_ROOT, fingerprint, installation.name, installation.script, str(installation.python))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return f"benchflow-{installation.name}-{digest}"


async def _is_there(api: Api, name: str) -> bool:
    """Tell whether a snapshot is ready, after waiting for one that is being made. Raises: SandboxError."""
    client = await api.open()
    until = asyncio.get_running_loop().time() + _SNAPSHOT_SEC
    while True:
        try:
            found = await api.ask("looking for a snapshot", lambda: client.snapshot.get(name))
        except GoneError:
            return False
        state = str(getattr(found.state, "value", found.state))
        if state == _ACTIVE:
            return True
        if state in _BROKEN:
            await api.ask("removing a broken snapshot", functools.partial(client.snapshot.delete, found))
            return False
        if state == "inactive":
            await api.ask("waking a snapshot", functools.partial(client.snapshot.activate, found))
        if asyncio.get_running_loop().time() > until:
            raise SandboxError(f"the snapshot {name} is still {state} after {_SNAPSHOT_SEC:.0f} s")
        await asyncio.sleep(_TICK_SEC)


async def _make(backend: DaytonaBackend, installation: Installation, task: Task, *, log: Path, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="benchflow-daytona-") as scratch:
        spec = SandboxSpec(
            id=f"install-{secrets.token_hex(4)}",
            task=task,
            scratch=Path(scratch),
            lifetime_sec=installation.timeout_sec + _SNAPSHOT_SEC,
        )
        # The task's own files are no part of what its image's other tasks start from.
        sandbox = await backend.make(spec, with_files=False)
        try:
            await sandbox.enter("setup", "public")
            script = _SCRIPT.replace("{script}", installation.script).replace("{version}", installation.python or "3")
            script = script.replace("{root}", INSTALL_ROOT).replace("{home}", INSTALL_HOME)
            env = {"HOME": INSTALL_HOME, **_CACHES, **installation.env}
            result = await sandbox.exec(
                ["sh", "-c", script], env=env, cwd="/", user="root", timeout=installation.timeout_sec
            )
            keep_log(log, result)
            if result.exit_code != 0:
                raise AgentError(why_failed(installation, result, log))
            await sandbox.keep_as(name, _SNAPSHOT_SEC)
        finally:
            await asyncio.shield(sandbox.stop())
