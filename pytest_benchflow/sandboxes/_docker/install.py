"""Install an agent once for each image in a volume of an engine that is elsewhere, which keeps it for every rollout."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import INSTALL_HOME, INSTALL_ROOT, Mount, SandboxSpec
from pytest_benchflow.errors import AgentError
from pytest_benchflow.sandboxes._host import public_sources
from pytest_benchflow.sandboxes._install import CACHES, keep_log, locked, why_failed
from pytest_benchflow.settings import cache_dir

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Backend, Installation
    from pytest_benchflow.sandboxes._docker.engine import Engine
    from pytest_benchflow.tasks.task import Task

# A volume's labels stay as they were made and so does its name: what is complete is named by a second, empty volume.
_FILES = "benchflow.install.files"
_DRAFT = "benchflow.install.draft"
_MARGIN_SEC = 3600.0

_failed: dict[str, str] = {}


async def install_there(
    backend: Backend, engine: Engine, installation: Installation, task: Task, log: Path
) -> tuple[Mount, ...]:
    """Return the mount of an installation, made first in a container where the engine has none. Raises: AgentError."""
    fingerprint = await asyncio.to_thread(backend.fingerprint, task)
    text = "\0".join((INSTALL_ROOT, fingerprint, installation.name, str(installation.version), installation.script))
    key = f"{installation.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    marker = f"benchflow-agent-{key}"
    failed = f"{engine.address} {marker}"
    root = cache_dir() / "agents"
    root.mkdir(parents=True, exist_ok=True)
    async with locked(root / f".{marker}.lock"):
        files = await _complete(engine, marker)
        if files is None:
            if failed in _failed:
                raise AgentError(_failed[failed])
            try:
                files = await _build(backend, engine, installation, task, log=log, key=key, marker=marker)
            except AgentError as error:
                _failed[failed] = str(error)
                raise
    return (Mount(Path(files), INSTALL_ROOT, there=True),)


async def _complete(engine: Engine, marker: str) -> str | None:
    try:
        return str((await engine.call("inspect_volume", marker))["Labels"][_FILES])
    except (FileNotFoundError, KeyError, TypeError):
        return None


async def _build(
    backend: Backend, engine: Engine, installation: Installation, task: Task, *, log: Path, key: str, marker: str
) -> str:
    await _remove_old_drafts(engine, key, installation.timeout_sec + _MARGIN_SEC)
    draft = f"benchflow-agent-{key}-{secrets.token_hex(4)}"
    await engine.call("create_volume", draft, labels={_DRAFT: key})
    complete = False
    try:
        env = {**public_sources(), "HOME": INSTALL_HOME, **CACHES, **installation.env}
        mounts = (Mount(Path(draft), INSTALL_ROOT, writable=True, there=True),)
        spec = SandboxSpec(
            id=f"install-{secrets.token_hex(4)}", task=task, scratch=cache_dir() / "agents" / draft, mounts=mounts
        )
        sandbox = await backend.create(spec)
        try:
            await sandbox.enter("setup", "public")
            script = f"exec 2>&1\nmkdir -p {INSTALL_HOME}\n{installation.script}"
            limit = installation.timeout_sec
            result = await sandbox.exec(["sh", "-c", script], env=env, cwd="/", user="root", timeout=limit)
        finally:
            await asyncio.shield(sandbox.stop())
        keep_log(log, result)
        if result.exit_code != 0:
            raise AgentError(why_failed(installation, result, log))
        # Made by somebody else meanwhile, it keeps that one's label.
        await engine.call("create_volume", marker, labels={_FILES: draft})
        files = await _complete(engine, marker)
        complete = files == draft
    finally:
        if not complete:
            with contextlib.suppress(FileNotFoundError):
                await asyncio.shield(asyncio.ensure_future(engine.call("remove_volume", draft)))
    return files or draft


async def _remove_old_drafts(engine: Engine, key: str, age: float) -> None:
    """Remove what killed installations left; one that may still run is let be."""
    used: set[str] = set()
    found: list[dict[str, Any]] = (await engine.call("volumes"))["Volumes"] or []
    for each in found:
        used.add(str((each.get("Labels") or {}).get(_FILES)))
    for each in found:
        with contextlib.suppress(FileNotFoundError, ValueError):
            made = datetime.fromisoformat(str(each["CreatedAt"])).timestamp()
            if (each.get("Labels") or {}).get(_DRAFT) == key and each["Name"] not in used and made + age < time.time():
                await engine.call("remove_volume", each["Name"])
