"""Make sandboxes for tests and see that they are gone afterwards."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_benchflow.contracts import EndpointReport, SandboxSpec
from pytest_benchflow.rollout.scratch import ScratchBase
from pytest_benchflow.sandboxes._ssh.far_sandbox import key_of
from pytest_benchflow.tasks.task import AgentPhase, Environment, Step, Task, VerifierPhase

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from pytest_benchflow.contracts import Backend, ExecResult, Mount, Sandbox

T = TypeVar("T")


def make_task(path: Path, *, dockerfile: str | None = None, user: str | int | None = None, **environment: Any) -> Task:
    """Return a task without a file of its own; `dockerfile` is written to environment/ below `path`."""
    context = path / "environment"
    context.mkdir(parents=True, exist_ok=True)
    if dockerfile is not None:
        (context / "Dockerfile").write_text(dockerfile)
    step = Step(
        name=None,
        instruction="Do it.",
        agent=AgentPhase(user=user),
        verifier=VerifierPhase(),
        tests=path / "tests",
        solution=None,
    )
    return Task(
        path=path,
        file=path / "task.toml",
        name=path.name,
        form="harbor",
        schema_version="1.0",
        steps=(step,),
        environment=Environment(**environment),
        environment_dir=context,
        dockerfile=context / "Dockerfile" if dockerfile is not None else None,
        compose_file=None,
        skills=(),
        skills_path=None,
        solution_env={},
        metadata={},
    )


class Rig:
    """One event loop, and sandboxes that live on it."""

    def __init__(self, backend: Backend, base: Path, image: str | None = None) -> None:
        self.backend = backend
        self.base = base
        self.image = image  # for tasks that name none, where the backend needs one
        self.runner = asyncio.Runner()
        self.scratch = ScratchBase(base / "scratch")
        self._numbers = itertools.count(1)
        self._made: list[Sandbox] = []

    def __enter__(self) -> Rig:
        self.scratch.open()
        return self

    def __exit__(self, *_: object) -> None:
        for sandbox in self._made:
            self.run(sandbox.stop())
        self.scratch.close()
        self.runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop that the sandboxes live on."""
        return self.runner.run(work)

    def spec(
        self, task: Task | None = None, *, mounts: tuple[Mount, ...] = (), env: Mapping[str, str] | None = None
    ) -> SandboxSpec:
        """Return a spec with a fresh scratch directory; without a task, of one that asks for nothing."""
        name = f"rig-{os.getpid()}-{next(self._numbers)}"
        task = task or make_task(self.base / "plain")
        if self.image and task.dockerfile is None and task.environment.docker_image is None:
            task = replace(task, environment=replace(task.environment, docker_image=self.image))
        return SandboxSpec(id=name, task=task, scratch=self.scratch.new(name), mounts=mounts, env=env or {})

    def create(
        self, task: Task | None = None, *, mounts: tuple[Mount, ...] = (), env: Mapping[str, str] | None = None
    ) -> Sandbox:
        """Return a sandbox that is stopped when the test ends."""
        sandbox = self.run(self.backend.create(self.spec(task, mounts=mounts, env=env)))
        self._made.append(sandbox)
        return sandbox

    def sh(self, sandbox: Sandbox, script: str, **options: Any) -> ExecResult:
        """Run a shell script in a sandbox."""
        return self.run(sandbox.exec(["sh", "-c", script], **options))

    def python(self, sandbox: Sandbox, program: str, **options: Any) -> Any:
        """Run a Python program in a sandbox and return what it prints as JSON."""
        result = self.run(sandbox.exec(["python3", "-c", textwrap.dedent(program)], **options))
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)


class EchoEndpoint:
    """An endpoint that answers every connection with one line, on its port and on adopted listeners."""

    token = "echo-token"

    def __init__(self, word: str = "echo") -> None:
        self.mismatch: str | None = None
        self.rejected: str | None = None
        self._word = word
        self._servers: list[asyncio.Server] = []

    async def port(self) -> int:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, start_serving=False)
        self._servers.append(server)
        # Started when it is known: a caller that is cancelled here leaves no server behind.
        await server.start_serving()
        return int(server.sockets[0].getsockname()[1])

    async def adopt(self, listener: Any) -> None:
        listener.setblocking(False)
        self._servers.append(await asyncio.start_server(self._answer, sock=listener, start_serving=False))
        await self._servers[-1].start_serving()

    @property
    def open_requests(self) -> tuple[str, ...]:
        return ()

    @property
    def received(self) -> int:
        return 0

    async def close(self) -> EndpointReport:
        for server in self._servers:
            server.close()
            await server.wait_closed()
        return EndpointReport(received=0, recorded=0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(f"{self._word}\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def processes_of(scratch: Path) -> list[int]:
    """Return the host's processes of a sandbox: those with `scratch`, or a name made of its own, as they are shown.

    That is in a command line, mounts or variables; over SSH a name made of its own is all there is.
    """
    found = []
    marks = (os.fsencode(scratch), os.fsencode(f"-{scratch.name}-"), os.fsencode(key_of(scratch)))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = b"".join((entry / name).read_bytes() for name in ("cmdline", "mountinfo", "environ"))
            except OSError:
                continue
            if any(mark in text for mark in marks):
                found.append(int(entry.name))
    return found
