"""Run a rollout in a container of a Docker engine, here or elsewhere, from the task's own image."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Capabilities, Remain
from pytest_benchflow.errors import SandboxError, UnsupportedError
from pytest_benchflow.sandboxes._docker.compose import read_compose
from pytest_benchflow.sandboxes._docker.container import DockerSandbox
from pytest_benchflow.sandboxes._docker.engine import Engine, engine_address, why_no_engine
from pytest_benchflow.sandboxes._docker.image import fingerprint, have_image, source_of, why_unsupported
from pytest_benchflow.sandboxes._docker.install import install_there
from pytest_benchflow.sandboxes._docker.services import remove_all
from pytest_benchflow.sandboxes._install import install_here
from pytest_benchflow.sandboxes._labels import MANAGED
from pytest_benchflow.sandboxes._private import check_private_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_benchflow.contracts import Installation, Mount, SandboxSpec
    from pytest_benchflow.tasks.task import Task


_UNSEEN = ("GPUs", "rootless engines", "Docker Desktop")
_IN_USE_SEC = 10.0
_LOOK_SEC = 0.3


class DockerBackend:
    """Makes containers on the engine that DOCKER_HOST names."""

    name = "docker"
    dies_with_process = False

    def check(self) -> None:
        """Refuse private hosts that are none; whether there is an engine is for `available`. Raises: UsageError."""
        check_private_hosts()

    def available(self) -> str | None:
        """Return None when this machine can run it, else one sentence that says what is missing and what to do."""
        return why_no_engine(engine_address())

    def unsupported(self, task: Task) -> str | None:
        """Return None when the task can run here, else the reason to skip. Raises: TaskError on a broken Dockerfile."""
        return why_unsupported(task) or (_why_no_gpu() if task.environment.gpus else None)

    def fingerprint(self, task: Task) -> str:
        """Name the image: an agent is installed once for each."""
        return fingerprint(task)

    @property
    def capabilities(self) -> Capabilities:
        """Return what its sandboxes can do here."""
        limits = frozenset({"memory", "cpus", "processes"})
        return Capabilities(
            networks=frozenset({"proxy", "public", "allowlist", "none"}), limits=limits, root=True, unseen=_UNSEEN
        )

    async def install(self, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
        """Return the mounts of an installation, made first where there is none; an engine elsewhere keeps it itself.

        Raises: AgentError.
        """
        engine = await asyncio.to_thread(Engine.at, engine_address())
        if await asyncio.to_thread(lambda: engine.beside):
            return await install_here(self, installation, task, log)
        return await install_there(self, engine, installation, task, log)

    async def close(self) -> None:
        """Let go of the connections to engines; safe to call twice, and to go on after."""
        await asyncio.to_thread(Engine.close_all)

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """Make a container of the task's image; nothing of its tests or solution."""
        if reason := self.available() or self.unsupported(spec.task):
            raise UnsupportedError(reason)
        engine = await asyncio.to_thread(Engine.at, engine_address())
        task = spec.task
        compose = read_compose(task, spec.env) if task.compose_file is not None else None
        source = (compose.main.image if compose else None) or source_of(task)
        image = await have_image(engine, source, task.environment.build_timeout_sec)
        sandbox = DockerSandbox(engine, spec, image, compose)
        try:
            await sandbox.prepare()
        except BaseException:
            await asyncio.shield(sandbox.stop())
            raise
        return sandbox

    @property
    def place(self) -> str:
        """Return the engine's address."""
        return engine_address()

    def reap(self, scratch: Path, place: str) -> bool:
        """Remove what a killed process left in the engine at `place`; False: it cannot be told."""
        if why_no_engine(place) is not None:
            return False
        try:
            remove_all(Engine.at(place), scratch)
        except SandboxError:
            return False
        return True

    async def remains(self) -> list[Remain]:
        """Return what the engine has under our label: containers, then their volumes and networks."""
        engine = await asyncio.to_thread(Engine.at, engine_address())
        found: list[Remain] = await engine.work(functools.partial(_remains, engine))
        return found

    async def discard(self, name: str) -> None:
        """Remove one of `remains`; nothing happens when it is gone. Raises: SandboxError when it is still in use."""
        engine = await asyncio.to_thread(Engine.at, engine_address())
        kind, _, one = name.rpartition(":")
        options = {"v": True, "force": True} if kind == "container" else {}
        until = asyncio.get_running_loop().time() + _IN_USE_SEC
        while True:
            try:
                with contextlib.suppress(FileNotFoundError):
                    await engine.call(f"remove_{kind}", one, **options)
            except SandboxError:
                # The container that uses it may be on its way out.
                if kind == "container" or asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(_LOOK_SEC)
            else:
                return


def _why_no_gpu() -> str | None:
    if reason := why_no_engine(engine_address()):
        return f"needs a GPU, and no engine says whether it has one: {reason}"
    try:
        runtimes = Engine.at(engine_address()).ask("info").get("Runtimes") or {}
    except SandboxError as error:
        return f"needs a GPU, and no engine says whether it has one: {error}"
    return None if "nvidia" in runtimes else "needs a GPU, and the Docker engine has no nvidia runtime to pass one on"


def _remains(engine: Engine) -> list[Remain]:
    wanted = {"label": [MANAGED]}
    found = [
        Remain(f"container:{each['Id']}", "docker", each["Labels"], each["Created"], about=_about(each))
        for each in engine.ask("containers", all=True, filters=wanted)
    ]
    for kind, things in (
        ("volume", engine.ask("volumes", filters=wanted)["Volumes"] or ()),
        ("network", engine.ask("networks", filters=wanted)),
    ):
        for each in things:
            made = each.get("CreatedAt") or each.get("Created")
            about = f"{kind} {each['Name']}"
            found.append(Remain(f"{kind}:{each['Name']}", "docker", each["Labels"], made, about=about))
    return found


def _about(container: Mapping[str, Any]) -> str:
    names = ", ".join(name.lstrip("/") for name in container["Names"])
    return f"container {names}, {container['State']}"


backend = DockerBackend()
