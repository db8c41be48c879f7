"""Run a rollout in a container of a Docker engine on this machine, from the task's own image."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import posixpath
import re
import secrets
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Capabilities, Remain
from pytest_benchflow.errors import SandboxError, UnsupportedError
from pytest_benchflow.sandboxes._accounts import find_account
from pytest_benchflow.sandboxes._attached import DockerProcess, attach
from pytest_benchflow.sandboxes._docker_image import fingerprint, have_image, why_unsupported
from pytest_benchflow.sandboxes._egress import Egress, egress_env
from pytest_benchflow.sandboxes._engine import Engine, engine_address, why_no_engine
from pytest_benchflow.sandboxes._files import copy_in, copy_out, is_directory
from pytest_benchflow.sandboxes._inhabited import RUN_VARIABLE, Inhabited
from pytest_benchflow.sandboxes._install import install_here
from pytest_benchflow.sandboxes._labels import MANAGED, SCRATCH, labels_for, owner_of
from pytest_benchflow.sandboxes._limits import MAX_PROCESSES
from pytest_benchflow.sandboxes._running import run_to_end

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
        SandboxSpec,
    )
    from pytest_benchflow.sandboxes._files import InsideRoot
    from pytest_benchflow.tasks.task import Environment, Task

PROXY_PORT = 8000
EGRESS_PORT = 8001
_KILL_SEC = 5.0
_LOOK_SEC = 0.3
_REMOVAL_SEC = 30.0
_SHARED_DIRECTORIES = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
_STICKY_DIRECTORIES = ("/tmp", "/var/tmp")  # noqa: S108 - of the sandbox
# A shell as process 1 takes the orphans in, and is ended from outside.
_IDLE = "while :; do sleep 86400; done"
# The engine's own words for a missing directory or program differ from one version to the next.
_RUN = 'cd "$1" || exit 126; shift; exec "$@"'


class DockerBackend:
    """Makes containers; what they need of the host is that engine and pytest share its processes."""

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
        return Capabilities(networks=frozenset({"proxy", "public", "none"}), limits=limits, root=True)

    async def install(self, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
        """Return the mounts of an installation, made first where the cache has none. Raises: AgentError."""
        return await install_here(self, installation, task, log)

    async def close(self) -> None:
        """Let go of nothing: nothing is held between sandboxes."""

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """Make a container of the task's image; nothing of its tests or solution."""
        if reason := self.available() or self.unsupported(spec.task):
            raise UnsupportedError(reason)
        engine = Engine.at(engine_address())
        sandbox = DockerSandbox(engine, spec, await have_image(engine, spec.task))
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
        engine = Engine.at(place)
        label = f"{SCRATCH}={scratch}"
        try:
            for found in engine.ask("containers", all=True, filters={"label": [label]}):
                if found["Labels"].get(SCRATCH) == str(scratch):
                    with contextlib.suppress(FileNotFoundError):
                        engine.ask("remove_container", found["Id"], v=True, force=True)
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


class DockerSandbox:
    """One container that is started anew for each phase: its files stay, its processes and its network do not."""

    backend = "docker"
    transport = "docker-stdio"

    def __init__(self, engine: Engine, spec: SandboxSpec, image: Mapping[str, Any]) -> None:
        self.id = spec.id
        self._engine = engine
        self._spec = spec
        self._image = str(image["Id"])
        facts = image.get("Config") or {}
        self._image_variables = {str(line).partition("=")[0] for line in facts.get("Env") or ()}
        self.workdir = _workdir(spec.task, str(facts.get("WorkingDir") or ""))
        self._name = f"benchflow-{re.sub(r'[^A-Za-z0-9_.-]', '-', spec.id)}-{secrets.token_hex(3)}"
        self._applied: dict[str, Any] = {}
        self.limits: Mapping[str, Any] = self._applied
        self._network: Network = "none"
        self._hosts: tuple[str, ...] = ()
        self._inside: Inhabited | None = None
        self._egress: Egress | None = None
        self._touched = False  # something ran or listened in there since the last start
        self._starting = asyncio.Lock()
        self._way_out: Mapping[str, str] = {}
        self._processes: list[DockerProcess] = []
        self._copies: set[asyncio.Future[Any]] = set()
        self._runs = itertools.count(1)
        self._stopped = False

    async def prepare(self) -> None:
        """Make the container, start it and lay out what every task may rely on."""
        info = await self._engine.call("info")
        config = _config(self._spec, self._image, self._name, info, self._applied)
        self._applied["image"] = {"asked": _asked_image(self._spec.task), "applied": self._image}
        await self._ask("create_container_from_config", config, self._name)
        await self._with_files(functools.partial(_lay_out, self.workdir))

    async def enter(self, phase: PhaseName, network: Network, hosts: Sequence[str] = ()) -> None:  # noqa: ARG002 - all phases are alike here
        """Kill every process of the phase before, prove them dead, then switch to `network`; files stay."""
        self._check_alive()
        if self._touched:
            await self._end_phase()
        self._network, self._hosts = network, tuple(hosts)

    async def _end_phase(self) -> None:
        async with self._starting:
            inside = await self._let_go()
            if inside is not None:
                try:
                    await asyncio.shield(asyncio.ensure_future(self._kill_container(inside)))
                finally:
                    inside.close()
            self._touched = False
            for process in self._processes:
                # What it said last is on its way still.
                await process.ends_within(_KILL_SEC)
                process.died()

    async def _let_go(self) -> Inhabited | None:
        """End what goes on in a phase from outside, and return what has been started, which nobody uses any more."""
        if self._egress is not None:
            await self._egress.close()
            self._egress = None
        while self._copies:
            await asyncio.wait(self._copies)
        for process in self._processes:
            process.doom()
        inside, self._inside = self._inside, None
        return inside

    async def _kill_container(self, inside: Inhabited) -> None:
        with contextlib.suppress(FileNotFoundError):
            try:
                await self._engine.call("kill", self._name)
            except SandboxError:
                # It may have ended by itself; whether it has is seen below.
                if inside.lives:
                    raise
            await asyncio.to_thread(inside.wait_dead)
            await self._engine.call("wait", self._name)

    async def _running(self) -> Inhabited:
        """Return the started container."""
        self._check_alive()
        async with self._starting:
            self._check_alive()
            if self._inside is None:
                await self._ask("start", self._name)
                state = (await self._ask("inspect_container", self._name))["State"]
                self._inside = await asyncio.to_thread(Inhabited, int(state["Pid"]), self._name)
            if self._network == "public" and self._egress is None:
                self._touched = True
                self._egress = Egress(self._inside.listen(EGRESS_PORT))
                self._way_out = self._find_way_out(self._inside)
            return self._inside

    async def _ask(self, name: str, *args: Any, **options: Any) -> Any:
        try:
            return await self._engine.call(name, *args, **options)
        except FileNotFoundError as error:
            raise SandboxError(f"the container of sandbox {self.id} is gone; somebody removed it ({error})") from error

    def _find_way_out(self, inside: Inhabited) -> dict[str, str]:
        """Return the variables that lead to the egress, without a list of authorities that the image has not."""
        with inside.files() as files:
            return {
                name: value
                for name, value in egress_env(EGRESS_PORT).items()
                if name not in self._image_variables and (not value.startswith("/") or _is_file(files, value))
            }

    def _check_alive(self) -> None:
        if self._stopped:
            raise SandboxError(f"sandbox {self.id} was stopped")

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
        """Run a command to its end; on timeout its whole tree is killed and `timed_out` is set.

        Output beyond 16 MiB of a stream is cut in its middle. What is left running keeps running until the phase ends.
        """
        process = await self._start(argv, env=env, cwd=cwd, user=user, with_stdin=stdin is not None)
        try:
            return await run_to_end(process, stdin, timeout)
        finally:
            self._processes.remove(process)
            await process.closed()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> DockerProcess:
        """Start a command and return it alive."""
        return await self._start(argv, env=env, cwd=cwd, user=user, with_stdin=True)

    async def _start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: str | None,
        user: str | int | None,
        with_stdin: bool,
    ) -> DockerProcess:
        inside = await self._running()
        run = f"{self._name}-{next(self._runs)}"
        full = {
            **(self._way_out if self._network == "public" else {}),
            **self._spec.env,
            **(env or {}),
            RUN_VARIABLE: run,
        }
        command = ["/bin/sh", "-c", _RUN, "sh", cwd or self.workdir, *argv]
        for text in (*command, *full, *full.values()):
            if "\0" in text:
                raise SandboxError(f"{text!r} holds a NUL byte, which no command line or variable can")
        if user is not None:
            await self._with_files(lambda files: find_account(files, user))
        self._touched = True
        made = await self._ask(
            "exec_create",
            self._name,
            command,
            stdin=with_stdin,
            environment=[f"{name}={value}" for name, value in full.items()],
            user="" if user is None else str(user),
            workdir="/",
        )
        starting = asyncio.ensure_future(attach(self._engine, made["Id"]))
        try:
            stream = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                starting.result()[1].transport.abort()
                await asyncio.to_thread(inside.kill_run, run)
            raise
        process = DockerProcess(self._engine, made["Id"], run, stream, self._kill)
        self._processes.append(process)
        return process

    async def _kill(self, process: DockerProcess) -> None:
        """Kill a command with everything it started; when that cannot be had, kill the whole phase."""
        process.doom()
        inside = self._inside
        until = asyncio.get_running_loop().time() + _KILL_SEC
        while inside is not None and await asyncio.to_thread(inside.kill_run, process.run):
            # It may not have carried its mark yet when it was looked for.
            if await process.ends_within(_LOOK_SEC) and await asyncio.to_thread(inside.kill_run, process.run):
                return
            if asyncio.get_running_loop().time() > until:
                break
        await self._end_phase()
        process.died()

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory to the absolute path `target`, making parents; links out of it are refused."""
        await self._with_files(lambda files: copy_in(source, files, target))

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory out; links are not followed. Raises: FileNotFoundError when it is not there."""
        await self._with_files(lambda files: copy_out(files, source, target))

    async def remove(self, path: str) -> None:
        """Remove a file or directory, running nothing of the sandbox's; nothing happens when it is not there."""
        await self._with_files(lambda files: files.remove(path))

    async def _with_files(self, work: Callable[[InsideRoot], object]) -> None:
        """Do something with the container's files in a thread; a cancelled one goes on, and the phase's end waits."""
        inside = await self._running()

        def run() -> None:
            with inside.files() as files:
                work(files)

        job = asyncio.get_running_loop().run_in_executor(None, run)
        self._copies.add(job)
        job.add_done_callback(self._copies.discard)
        await asyncio.shield(job)

    async def reach(self, endpoint: Endpoint) -> str:
        """Make `endpoint` reachable in this phase and return its URL as seen from inside (no path, no slash)."""
        if self._network == "none":
            raise SandboxError('this phase has network "none"; enter it with "proxy" to reach an endpoint')
        inside = await self._running()
        self._touched = True
        await endpoint.adopt(await asyncio.to_thread(inside.listen, PROXY_PORT))
        return f"http://127.0.0.1:{PROXY_PORT}"

    async def stop(self) -> None:
        """Kill everything and remove the container with its volumes; safe to call twice and after a failed start.

        Raises: SandboxError when the engine does not remove it.
        """
        self._stopped = True
        async with self._starting:
            inside = await self._let_go()
            try:
                await self._remove_container()
                if inside is not None:
                    await asyncio.to_thread(inside.wait_dead)
            finally:
                if inside is not None:
                    inside.close()
                processes, self._processes = self._processes, []
                for process in processes:
                    process.died()
                    process.close()
                for process in processes:
                    await process.closed()

    async def _remove_container(self) -> None:
        until = asyncio.get_running_loop().time() + _REMOVAL_SEC
        with contextlib.suppress(FileNotFoundError):
            while True:
                try:
                    await self._engine.call("remove_container", self._name, v=True, force=True)
                except SandboxError as error:
                    # Somebody else is removing it; it is gone when they are done.
                    if "already in progress" not in str(error) or asyncio.get_running_loop().time() > until:
                        raise
                    await asyncio.sleep(_LOOK_SEC)


def _workdir(task: Task, of_image: str) -> str:
    """Return the working directory: a Dockerfile's own wins over what the task says, which wins over an image's."""
    asked = task.environment.workdir or ""
    first, second = (of_image, asked) if task.dockerfile is not None else (asked, of_image)
    return posixpath.normpath(posixpath.join("/", first or second or "/app"))


def _asked_image(task: Task) -> str | None:
    return task.environment.docker_image if task.dockerfile is None else task.dockerfile.name


def _is_file(files: InsideRoot, path: str) -> bool:
    try:
        with files.parent(path) as (directory, name):
            return os.access(name, os.R_OK, dir_fd=directory)
    except (OSError, SandboxError):
        return False


def _lay_out(workdir: str, files: InsideRoot) -> None:
    """Make the directories that every task may rely on; those of the image stay as they are."""
    for path, mode in (
        *((path, 0o777) for path in _SHARED_DIRECTORIES),
        *((path, 0o1777) for path in _STICKY_DIRECTORIES),
        (workdir, 0o755),
    ):
        made = not is_directory(files, path)
        with files.directory(path, make=True) as directory:
            if made or path in _SHARED_DIRECTORIES:
                os.fchmod(directory, mode)


def _config(spec: SandboxSpec, image: str, name: str, engine: Mapping[str, Any], limits: dict[str, Any]) -> Any:
    """Return what the engine is asked to make; each limit is noted in `limits` with what became of it."""
    return {
        "Image": image,
        "Hostname": re.sub(r"[^A-Za-z0-9]+", "-", spec.id)[:63].strip("-") or "sandbox",
        # Its own start-up would be a program of the task's that no phase knows of.
        "Entrypoint": ["/bin/sh", "-c", _IDLE, name],
        "Cmd": [],
        "WorkingDir": "/",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": labels_for(spec, owner_of("docker")),
        "NetworkDisabled": False,
        "HostConfig": {
            "NetworkMode": "none",
            # The host opens what it finds in there, and a device node is opened past the container's own limits.
            "CapDrop": ["MKNOD"],
            "LogConfig": {"Type": "none"},
            "Mounts": [
                {"Type": "bind", "Source": str(each.source), "Target": each.target, "ReadOnly": not each.writable}
                for each in spec.mounts
            ],
            **_limited(spec.task.environment, engine, limits),
        },
    }


def _limited(environment: Environment, engine: Mapping[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    applied: dict[str, Any] = {}

    def ask(key: str, asked: float | None, able: str, options: dict[str, Any]) -> None:
        if asked is not None:
            known = bool(engine.get(able))
            applied.update(options if known else {})
            how = "control group" if known else "nothing: this engine cannot"
            limits[key] = {"asked": asked, "applied": how}

    memory = (environment.memory_mb or 0) << 20
    ask("memory_mb", environment.memory_mb, "MemoryLimit", {"Memory": memory, "MemorySwap": memory})
    # An engine refuses more processors than it has.
    cpus = min(environment.cpus or 0, float(engine.get("NCPU") or 1))
    ask("cpus", environment.cpus, "CpuCfsQuota", {"NanoCpus": int(cpus * 1e9)})
    ask("processes", MAX_PROCESSES, "PidsLimit", {"PidsLimit": MAX_PROCESSES})
    if environment.storage_mb is not None:
        limits["storage_mb"] = {"asked": environment.storage_mb, "applied": "nothing: the engine's disk is shared"}
    return applied


backend = DockerBackend()
