"""Run a rollout in a container of a Docker engine, here or elsewhere, from the task's own image."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import Capabilities, Remain
from pytest_benchflow.errors import SandboxError, UnsupportedError
from pytest_benchflow.sandboxes._compose import read_compose
from pytest_benchflow.sandboxes._container import DockerSandbox
from pytest_benchflow.sandboxes._docker_image import fingerprint, have_image, source_of, why_unsupported
from pytest_benchflow.sandboxes._engine import Engine, engine_address, why_no_engine
from pytest_benchflow.sandboxes._install import install_here
from pytest_benchflow.sandboxes._labels import MANAGED
from pytest_benchflow.sandboxes._services import remove_all

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import Installation, Mount, SandboxSpec
    from pytest_benchflow.tasks.task import Task


class DockerBackend:
    """Makes containers on the engine that DOCKER_HOST names."""

    name = "docker"
    dies_with_process = False

    def available(self) -> str | None:
        """Return None when this machine can run it, else one sentence that says what is missing and what to do."""
        return why_no_engine(engine_address())

    def unsupported(self, task: Task) -> str | None:
        """Return None when the task can run here, else the reason to skip. Raises: TaskError on a broken Dockerfile."""
        return why_unsupported(task)

    def fingerprint(self, task: Task) -> str:
        """Name the image: an agent is installed once for each."""
        return fingerprint(task)

    @property
    def capabilities(self) -> Capabilities:
        """Return what its sandboxes can do here."""
        limits = frozenset({"memory", "cpus", "processes"})
        return Capabilities(networks=frozenset({"proxy", "public", "allowlist", "none"}), limits=limits, root=True)

    async def install(self, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
        """Return the mounts of an installation, made first where the cache has none. Raises: AgentError."""
        return await install_here(self, installation, task, log)

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
        """Return the containers that the engine has under our label. Raises: SandboxError."""
        found = await Engine.at(engine_address()).call("containers", all=True, filters={"label": [MANAGED]})
        return [
            Remain(
                str(each["Id"]), self.name, each["Labels"], each["Created"], about=f"{each['Names']}, {each['State']}"
            )
            for each in found
        ]

    async def discard(self, name: str) -> None:
        """Remove a container with its volumes. Raises: SandboxError."""
        with contextlib.suppress(FileNotFoundError):
            await Engine.at(engine_address()).call("remove_container", name, v=True, force=True)


backend = DockerBackend()
