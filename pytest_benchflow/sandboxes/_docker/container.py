"""One rollout's container: started anew for each phase, reached into by what its engine allows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import re
import secrets
import socket
from typing import TYPE_CHECKING, Any, Protocol, cast

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._docker.afar import Afar
from pytest_benchflow.sandboxes._docker.attached import END_OF_OUTPUT, DockerProcess, attach
from pytest_benchflow.sandboxes._docker.config import container_config, workdir_of
from pytest_benchflow.sandboxes._docker.inhabited import RUN_VARIABLE, Inhabited
from pytest_benchflow.sandboxes._docker.services import Services, remove_all
from pytest_benchflow.sandboxes._egress import Egress, egress_env
from pytest_benchflow.sandboxes._relay import Relay, relay_command
from pytest_benchflow.sandboxes._running import run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.contracts import Endpoint, ExecResult, Network, PhaseName, SandboxSpec
    from pytest_benchflow.sandboxes._docker.compose import Compose
    from pytest_benchflow.sandboxes._docker.engine import Engine

PROXY_PORT = 8000
EGRESS_PORT = 8001
_KILL_SEC = 5.0
_LOOK_SEC = 0.3
_REMOVAL_SEC = 30.0
_WITH_EGRESS = ("public", "allowlist")
# The engine's own words for a missing directory or program differ from one version to the next.
_RUN = r"""
if cd "$1"; then shift; "$@"; code=$?; else code=126; fi
printf 'END' >&2
exit $code
""".replace("END", END_OF_OUTPUT.replace("\0", r"\000"))


class Inside(Protocol):
    """One start of a container, from beside it or through its engine; methods block."""

    @property
    def lives(self) -> bool:
        """Tell whether process 1 lives."""

    def close(self) -> None:
        """Let go of it; nothing else may be called afterwards."""

    def wait_dead(self) -> None:
        """See that every process in there has ended. Raises: SandboxError."""

    def copy_in(self, source: Path, target: str) -> None:
        """Copy a file or directory of this machine to `target`. Raises: SandboxError."""

    def copy_out(self, source: str, target: Path) -> None:
        """Copy a file or directory out; links are not followed. Raises: FileNotFoundError, SandboxError."""

    def remove(self, path: str) -> None:
        """Remove a file or directory; nothing happens when it is not there. Raises: SandboxError."""

    def check_user(self, user: str | int) -> None:
        """See that the container has a user. Raises: SandboxError."""

    def is_file(self, path: str) -> bool:
        """Tell whether a file is at `path`."""

    def has_room(self) -> bool:
        """Tell whether a small file can still be written, True where nobody knows. Raises: SandboxError."""

    def lay_out(self, workdir: str) -> None:
        """Make the directories that every task may rely on."""

    def kill_run(self, run: str) -> bool:
        """Kill every process of one run; True: none is left."""


class _EgressDoor:
    """An egress on a port of this machine, for a relay that leads to it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))

    async def port(self) -> int:
        return int(self.listener.getsockname()[1])


class DockerSandbox:
    """One container that is started anew for each phase: its files stay, its processes and its network do not."""

    backend = "docker"
    transport = "docker-stdio"

    def __init__(
        self, engine: Engine, spec: SandboxSpec, image: Mapping[str, Any], compose: Compose | None = None
    ) -> None:
        self.id = spec.id
        self._engine = engine
        self._spec = spec
        self._image = str(image["Id"])
        facts = image.get("Config") or {}
        self._image_variables = {str(line).partition("=")[0] for line in facts.get("Env") or ()}
        self._compose = compose
        asked = compose.main.config.get("WorkingDir") if compose else None
        self.workdir = asked or workdir_of(spec.task, str(facts.get("WorkingDir") or ""))
        self._name = f"benchflow-{re.sub(r'[^A-Za-z0-9_.-]', '-', spec.id)}-{secrets.token_hex(3)}"
        self._applied: dict[str, Any] = {}
        self.limits: Mapping[str, Any] = self._applied
        self._network: Network = "none"
        self._allowed: tuple[str, ...] | None = None
        self._setup = False
        self._inside: Inside | None = None
        self._relays: list[Relay] = []
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
        self._beside = await asyncio.to_thread(lambda: self._engine.beside)
        config = container_config(self._spec, self._image, self._name, info, self._applied, beside=self._beside)
        if self._compose is None:
            await self._ask("create_container_from_config", config, self._name)
        else:
            await self._prepare_services(self._compose, config)
        await self._in_thread(lambda inside: inside.lay_out(self.workdir))
        if not self._beside:
            for mount in self._spec.mounts:
                if mount.writable and not mount.there:
                    raise SandboxError(f"{mount.source} cannot be written by a container on another machine")
                if not mount.there:
                    await self.upload(mount.source, mount.target)

    async def _prepare_services(self, compose: Compose, config: dict[str, Any]) -> None:
        """Start all services but main, then make and start that. Raises: SandboxError."""
        services = Services(self._engine, self._spec.task, compose, self._name, config["Labels"])
        await services.start()
        await self._ask("create_container_from_config", services.for_main(config), self._name)
        await services.join(compose.main, self._name)
        await self._running()
        if compose.main.config.get("Healthcheck"):
            await services.wait_until(self._name, "the service main", "service_healthy")
        names = [each.name for each in compose.side]
        self._applied["services"] = {"asked": names, "applied": "containers on a network of this rollout's own"}

    async def enter(self, phase: PhaseName, network: Network, hosts: Sequence[str] = ()) -> None:
        """Kill every process of the phase before, prove them dead, then switch to `network`; files stay."""
        self._check_alive()
        if self._touched:
            await self._end_phase()
        self._network, self._allowed = network, tuple(hosts) if network == "allowlist" else None
        self._setup = phase == "setup"

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
            await self._end_relays()

    async def _end_relays(self) -> None:
        """Let go of the relays, whose processes are dead."""
        relays, self._relays = self._relays, []
        for relay in relays:
            await relay.close()

    async def _let_go(self) -> Inside | None:
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

    async def _kill_container(self, inside: Inside) -> None:
        with contextlib.suppress(FileNotFoundError):
            try:
                await self._engine.call("kill", self._name)
            except SandboxError:
                # It may have ended by itself; whether it has is seen below.
                if await asyncio.to_thread(lambda: inside.lives):
                    raise
            if self._beside:
                await asyncio.to_thread(inside.wait_dead)
            await self._engine.call("wait", self._name)
            if not self._beside:
                await asyncio.to_thread(inside.wait_dead)

    async def _running(self) -> Inside:
        """Return the started container."""
        self._check_alive()
        async with self._starting:
            self._check_alive()
            if self._inside is None:
                await self._ask("start", self._name)
                self._inside = await self._find_inside()
            inside, open_way = self._inside, self._network in _WITH_EGRESS and self._egress is None
            if open_way:
                self._touched = True
                self._way_out = await asyncio.to_thread(self._find_way_out, inside)
                await self._open_way(inside)
            return inside

    async def _find_inside(self) -> Inside:
        if not self._beside:
            return await asyncio.to_thread(Afar, self._engine, self._name)
        state = (await self._ask("inspect_container", self._name))["State"]
        return await asyncio.to_thread(Inhabited, int(state["Pid"]), self._name)

    async def _open_way(self, inside: Inside) -> None:
        """Open the way out of this phase. Raises: SandboxError."""
        if isinstance(inside, Inhabited):
            listener = await asyncio.to_thread(inside.listen, EGRESS_PORT)
            self._egress = Egress(listener, hosts=self._allowed, setup=self._setup)
            return
        door = _EgressDoor()
        self._egress = Egress(door.listener, hosts=self._allowed, setup=self._setup)
        await self._relay(inside, EGRESS_PORT, cast("Endpoint", door))

    async def _relay(self, inside: Inside, port: int, endpoint: Endpoint) -> None:
        """Lead a port in the container to an endpoint here. Raises: SandboxError when nothing in there can listen."""
        process = await self._launch(inside, relay_command(port), {}, cwd="/", user="root", with_stdin=True)
        self._relays.append(await Relay.start(process, endpoint))

    async def _ask(self, name: str, *args: Any, **options: Any) -> Any:
        try:
            return await self._engine.call(name, *args, **options)
        except FileNotFoundError as error:
            raise SandboxError(f"the container of sandbox {self.id} is gone; somebody removed it ({error})") from error

    def _find_way_out(self, inside: Inside) -> dict[str, str]:
        """Return the variables that lead to the egress, without a list of authorities that the image has not."""
        wanted = egress_env(EGRESS_PORT)
        there = {value: inside.is_file(value) for value in set(wanted.values()) if value.startswith("/")}
        return {
            name: value
            for name, value in wanted.items()
            if name not in self._image_variables and there.get(value, True)
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
            result = await run_to_end(process, stdin, timeout)
            if not result.timed_out:
                try:
                    process.check_whole()
                except SandboxError as error:
                    error.said = (result.stdout, result.stderr)
                    raise
            return result
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
        full = {**(self._way_out if self._network in _WITH_EGRESS else {}), **self._spec.env, **(env or {})}
        if user is not None:
            await self._in_thread(lambda inside: inside.check_user(user))
        where = cwd or self.workdir
        return await self._launch(inside, argv, full, cwd=where, user=user, with_stdin=with_stdin)

    async def _launch(
        self,
        inside: Inside,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: str,
        user: str | int | None,
        with_stdin: bool,
    ) -> DockerProcess:
        run = f"{self._name}-{next(self._runs)}"
        full = {**env, RUN_VARIABLE: run}
        command = ["/bin/sh", "-c", _RUN, "sh", cwd, *argv]
        for text in (*command, *full, *full.values()):
            if "\0" in text:
                raise SandboxError(f"{text!r} holds a NUL byte, which no command line or variable can")
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
        if process.ended:
            return
        process.doom()
        inside = self._inside
        until = asyncio.get_running_loop().time() + _KILL_SEC
        while inside is not None and await self._kill_run(inside, process.run):
            # It may not have carried its mark yet when it was looked for.
            if await process.ends_within(_LOOK_SEC) and await self._kill_run(inside, process.run):
                return
            if asyncio.get_running_loop().time() > until:
                break
        await self._end_phase()
        process.died()

    async def _kill_run(self, inside: Inside, run: str) -> bool:
        # What kills in there is the image's own, and may have been made to take for ever.
        with contextlib.suppress(TimeoutError, SandboxError):
            return await asyncio.wait_for(asyncio.to_thread(inside.kill_run, run), 2 * _KILL_SEC)
        return False

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory to the absolute path `target`, making parents; links out of it are refused."""
        await self._in_thread(lambda inside: inside.copy_in(source, target))

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory out; links are not followed.

        Raises: FileNotFoundError when it is not there, SandboxError when the engine's disk is full.
        """

        def copy(inside: Inside) -> None:
            inside.copy_out(source, target)
            if not inside.has_room():  # what was copied may be the half of what was to be written
                raise SandboxError("the Docker engine's disk is full; `docker system prune` makes room")

        await self._in_thread(copy)

    async def remove(self, path: str) -> None:
        """Remove a file or directory; nothing happens when it is not there.

        Nothing of the sandbox's is run beside its engine; elsewhere an `rm` removes what the engine has emptied.
        """
        await self._in_thread(lambda inside: inside.remove(path))

    async def _in_thread(self, work: Callable[[Inside], object]) -> None:
        """Do something with the container in a thread; a cancelled one goes on, and the phase's end waits."""
        inside = await self._running()
        job = asyncio.get_running_loop().run_in_executor(None, work, inside)
        self._copies.add(job)
        job.add_done_callback(self._copies.discard)
        await asyncio.shield(job)

    async def reach(self, endpoint: Endpoint) -> str:
        """Make `endpoint` reachable in this phase and return its URL as seen from inside (no path, no slash)."""
        if self._network == "none":
            raise SandboxError('this phase has network "none"; enter it with "proxy" to reach an endpoint')
        inside = await self._running()
        self._touched = True
        if isinstance(inside, Inhabited):
            await endpoint.adopt(await asyncio.to_thread(inside.listen, PROXY_PORT))
        else:
            await self._relay(inside, PROXY_PORT, endpoint)
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
                await self._end_relays()
                for process in processes:
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
        if self._compose is not None:
            work = functools.partial(remove_all, self._engine, self._spec.scratch)
            await self._engine.work(work)
