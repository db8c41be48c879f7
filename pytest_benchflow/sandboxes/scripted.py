"""Answer commands from a script in place of running them: for tests of what is around a sandbox, never of an agent.

It keeps files as every sandbox does, and starts no process: a command is answered by the first entry that fits it in
`environment/scripted.toml` of its task, by nothing and exit code 0 where none does. A verifier that leaves no reward
of its own gets the reward 0.
"""

from __future__ import annotations

import asyncio
import functools
import os
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Capabilities
from pytest_benchflow.errors import AgentError, SandboxError
from pytest_benchflow.sandboxes._copies import Copies
from pytest_benchflow.sandboxes._files import InsideRoot, copy_in, copy_out, new_file
from pytest_benchflow.sandboxes._running import run_to_end
from pytest_benchflow.sandboxes._scripted.answers import Answer, read_answers
from pytest_benchflow.sandboxes._scripted.process import ScriptedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.contracts import (
        Endpoint,
        ExecResult,
        Installation,
        Mount,
        Network,
        PhaseName,
        Remain,
        SandboxSpec,
    )
    from pytest_benchflow.tasks.task import Task

SCRIPT = "scripted.toml"
WARNING = "the scripted sandbox ran no command: what came of each was written down beforehand, and tells of no agent"
_DIRECTORIES = ("logs/agent", "logs/verifier", "logs/artifacts", "tmp")
_REWARD = "BENCHFLOW_REWARD_TEXT"


class ScriptedBackend:
    """Makes sandboxes in which nothing runs."""

    name = "scripted"
    dies_with_process = True
    place = ""

    def check(self) -> None:
        """Refuse nothing: no variable asks anything of it."""

    def available(self) -> str | None:
        """Return None: it needs nothing."""
        return None

    def unsupported(self, task: Task) -> str | None:
        """Return None: nothing of a task's environment is made. Raises: TaskError on a faulty script."""
        _answers(task)
        return None

    def fingerprint(self, task: Task) -> str:  # noqa: ARG002 - one answer for all tasks
        """Name what an installation would depend on, if there could be one."""
        return "scripted"

    @property
    def capabilities(self) -> Capabilities:
        """Return what it can do: what runs nothing reaches nothing, whatever the network."""
        networks: frozenset[Network] = frozenset({"proxy", "public", "allowlist", "none"})
        return Capabilities(networks=networks, limits=frozenset(), root=True, programs=False)

    async def install(self, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
        """Refuse to install. Raises: AgentError."""
        del task, log
        raise AgentError(f"{installation.name} cannot be installed: the scripted sandbox runs no program")

    async def close(self) -> None:
        """Let go of nothing: nothing is held between sandboxes."""

    async def create(self, spec: SandboxSpec) -> ScriptedSandbox:
        """Make a sandbox with the directories that every one has."""
        sandbox = ScriptedSandbox(spec, await asyncio.to_thread(_answers, spec.task))
        try:
            await sandbox.prepare()
        except BaseException:
            await asyncio.shield(sandbox.stop())
            raise
        return sandbox

    def reap(self, scratch: Path, place: str) -> bool:  # noqa: ARG002 - nothing of it is outside its scratch directory
        """Remove nothing: a scratch directory is all that can be left, and its session's to remove."""
        return True

    async def remains(self) -> list[Remain]:
        """Return nothing: what dead sessions left is removed with their scratch directories."""
        return []

    async def discard(self, name: str) -> None:
        """Remove nothing. Raises: SandboxError."""
        raise SandboxError(f"{name} is no scripted sandbox; those leave nothing")


class ScriptedSandbox:
    """Files in a directory, and answers to commands."""

    backend = "scripted"
    transport = "local-stdio"

    def __init__(self, spec: SandboxSpec, answers: Sequence[Answer]) -> None:
        self.id = spec.id
        self.workdir = spec.task.environment.workdir or "/app"
        self.limits: Mapping[str, Any] = {"programs": {"asked": "run", "applied": None, "warning": WARNING}}
        self._root = spec.scratch / "root"
        self._inside = InsideRoot(self._root)
        self._answers = answers
        self._network: Network = "none"
        self._phase: PhaseName = "setup"
        self._processes: set[ScriptedProcess] = set()
        self._copies = Copies()
        self._stopped = False

    async def prepare(self) -> None:
        """Make the directories."""
        await self._copying(self._build)

    def _build(self) -> None:
        for name in (*_DIRECTORIES, self.workdir.lstrip("/")):
            (self._root / name).mkdir(parents=True, exist_ok=True)

    async def enter(self, phase: PhaseName, network: Network, hosts: Sequence[str] = ()) -> None:
        """End the commands of the phase before; files stay."""
        del hosts
        self._check_alive()
        await self._end_all()
        self._phase, self._network = phase, network

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Answer a command, which takes the time that its script says; `timed_out` where that is over `timeout`."""
        process = await self.spawn(argv, env=env, cwd=cwd, user=user)
        return await run_to_end(process, stdin, timeout)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> ScriptedProcess:
        """Begin to answer a command."""
        del cwd, user
        self._check_alive()
        found = next((each for each in self._answers if each.fits(argv, self._phase)), Answer())
        process = ScriptedProcess(found, functools.partial(self._write, found.files, (env or {}).get(_REWARD)))
        self._processes.add(process)
        process.when_ended(self._processes.discard)
        return process

    async def _write(self, files: Mapping[str, str], reward: str | None) -> None:
        await self._copying(self._write_now, files, reward)

    def _write_now(self, files: Mapping[str, str], reward: str | None) -> None:
        for path, text in files.items():
            self._put(path, text)
        # A verifier is told where its reward belongs, and nothing else is.
        if reward and not any(os.path.dirname(path) == os.path.dirname(reward) for path in files):  # noqa: PTH120
            self._put(reward, "0\n")

    def _put(self, path: str, text: str) -> None:
        with self._inside.parent(path, make=True) as (directory, name), new_file(directory, name) as file:
            file.write(text.encode())

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory to the absolute path `target`, making parents; links out of it are refused."""
        await self._copying(copy_in, source, self._inside, target)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory out; links are not followed. Raises: FileNotFoundError when it is not there."""
        await self._copying(copy_out, self._inside, source, target)

    async def remove(self, path: str) -> None:
        """Remove a file or directory; nothing happens when it is not there."""
        await self._copying(self._inside.remove, path)

    async def _copying(self, copy: Callable[..., None], *args: Any) -> None:
        self._check_alive()
        await self._copies.run(copy, *args)

    async def reach(self, endpoint: Endpoint) -> str:
        """Return the endpoint's URL on this host, which nothing in here will ask."""
        self._check_alive()
        if self._network == "none":
            raise SandboxError('this phase has network "none"; enter it with "proxy" to reach an endpoint')
        return f"http://127.0.0.1:{await endpoint.port()}"

    async def stop(self) -> None:
        """End all; safe to call twice. The files stay in the spec's scratch directory, which is the caller's."""
        self._stopped = True
        await self._end_all()

    async def _end_all(self) -> None:
        for process in tuple(self._processes):
            await process.kill()
        await self._copies.ended()

    def _check_alive(self) -> None:
        if self._stopped:
            raise SandboxError(f"sandbox {self.id} was stopped")


def _answers(task: Task) -> tuple[Answer, ...]:
    file = task.environment_dir / SCRIPT if task.environment_dir else None
    return read_answers(file) if file is not None and file.is_file() else ()


backend = ScriptedBackend()
