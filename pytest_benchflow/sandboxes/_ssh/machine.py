"""A far machine itself as the sandbox, where nothing can isolate one there: its own files, users and network.

One rollout at a time. What it makes is removed when it ends; a directory that is there already is never touched.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import posixpath
import shlex
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from pytest_benchflow.contracts import INSTALL_HOME, INSTALL_ROOT, Capabilities
from pytest_benchflow.errors import AgentError, SandboxError, UnsupportedError
from pytest_benchflow.sandboxes._files import InsideRoot, copy_in
from pytest_benchflow.sandboxes._local.image import build_image, plan_image
from pytest_benchflow.sandboxes._relay import Relay, relay_command
from pytest_benchflow.sandboxes._running import run_to_end
from pytest_benchflow.sandboxes._ssh.machine_scripts import CLEAR, FETCH, FREE, INSTALLED, KEEP, KILL, LAY_OUT, RUN
from pytest_benchflow.sandboxes._ssh.process import SshProcess
from pytest_benchflow.sandboxes._tar import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_benchflow.contracts import Endpoint, ExecResult, Installation, Mount, Network, PhaseName, SandboxSpec
    from pytest_benchflow.sandboxes._ssh.far_ship import Machine
    from pytest_benchflow.sandboxes._ssh.hosts import Slot, SshHost
    from pytest_benchflow.tasks.task import Task

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RUN_VARIABLE = "BENCHFLOW_RUN"
_SHARED = ("/logs/agent", "/logs/verifier", "/logs/artifacts")


class Plain:
    """A far machine without means to isolate a rollout, and why it has none."""

    slots = 1
    capabilities = Capabilities(networks=frozenset({"proxy", "public"}), limits=frozenset(), root=True)

    def __init__(self, host: SshHost, client: Any, machine: Machine, reason: str) -> None:
        self.host = host
        self.client = client
        self.machine = machine
        self.reason = reason
        self.told = False  # whether who runs pytest has been warned
        self.warning = (
            f"on {host} nothing is isolated ({reason}): the agent is that machine's own user, sees its files and "
            "processes, reaches its network, and can change what its verifier runs"
        )

    @property
    def lost(self) -> str | None:
        """Return that the connection is lost, None while it is there."""
        transport = self.client.get_transport()
        if transport is not None and transport.is_active():
            return None
        return f"the connection to {self.host} was lost"

    def unsupported(self, task: Task) -> str | None:
        """Return the reason to skip a task, None when it can run. Raises: TaskError."""
        environment = task.environment
        if environment.os.lower() != "linux" or environment.gpus or environment.tpu:
            return "needs another system, a GPU or a TPU, which the ssh sandbox does not offer"
        if task.compose_file is not None:
            return f"needs docker: {task.compose_file.name} describes several services"
        try:
            image = plan_image(task)
        except UnsupportedError as error:
            return str(error)
        if reason := image.why_not():
            return reason
        users = {image.user, *(step.agent.user for step in task.steps), *(step.verifier.user for step in task.steps)}
        if image.runs or users - {None, "", "root", 0, "0"}:
            what = image.runs or "a user of its own"
            return f"needs a sandbox on {self.host}, where none can be made ({self.reason}): {what}"
        return None

    async def close(self) -> None:
        """Let go of the connection."""
        await asyncio.to_thread(self.client.close)


class MachineSandbox:
    """One rollout on a plain machine."""

    backend = "ssh"
    transport = "ssh"

    def __init__(self, spec: SandboxSpec, plain: Plain, key: str, slot: Slot, again: Callable[[], bool]) -> None:
        self.id = spec.id
        self._again = again  # removes what is left over a new connection
        self._image = plan_image(spec.task)
        self.workdir = self._image.workdir or spec.task.environment.workdir or "/app"
        self._spec = spec
        self._plain = plain
        self._key = key
        self._slot = slot
        self._network: Network = "none"
        self._runs = itertools.count(1)
        self._processes: list[SshProcess] = []
        self._relay: Relay | None = None
        self._made = self._stopped = False
        self.limits: Mapping[str, Any] = {
            "host": {"asked": None, "applied": str(plain.host)},
            "isolation": {"asked": "bubblewrap", "applied": "nothing", "warning": plain.warning},
        }

    async def prepare(self, mounts: Sequence[Mount], installations: Sequence[tuple[Installation, Path]]) -> None:
        """Lay out its directories, bring its files, and install its agent where that has not been done."""
        task = self._spec.task
        places = [self.workdir, *_SHARED, task.tests_target, task.solution_target, INSTALL_ROOT]
        self._made = True
        laying = asyncio.ensure_future(self._script(LAY_OUT, self._key, *places))
        try:
            result = await asyncio.shield(laying)
        except asyncio.CancelledError:
            # What is half made could not be told from what is not ours.
            await asyncio.wait([laying])
            raise
        if result.exit_code != 0:
            raise SandboxError(f"{self._plain.host}: {result.stderr.strip() or result.stdout.strip()}")
        with tempfile.TemporaryDirectory(dir=self._spec.scratch) as place:
            await asyncio.to_thread(build_image, self._image, task, InsideRoot(Path(place)), None)
            await self._bring(Path(place))
        for installation, log in installations:
            await self._install(installation, log)
        for each in mounts:
            if each.writable or each.there:
                raise SandboxError(f"{each.source} cannot be written to over SSH; only what is read can be mounted")
            await self.upload(each.source, each.target)

    async def _install(self, installation: Installation, log: Path) -> None:
        name = shlex.quote(f"{installation.name}@{installation.version or 'latest'}")
        there = await self._script(INSTALLED, self._key, name, installation.script)
        if there.stdout.strip() == "there":
            return
        python = f"BENCHFLOW_PYTHON=$(command -v python{installation.python}) && export BENCHFLOW_PYTHON; "
        script = (python if installation.python else "") + f"exec 2>&1\n{installation.script}"
        env = {**installation.env, "HOME": INSTALL_HOME}
        result = await self.exec(["sh", "-c", script], env=env, cwd="/", timeout=installation.timeout_sec)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(result.stdout + result.stderr, "utf-8", errors="replace")
        if result.exit_code != 0:
            last = "\n".join(result.stdout.strip().splitlines()[-8:])
            raise AgentError(f"{installation.name} could not be installed on {self._plain.host}; log: {log}:\n{last}")
        await self._script(KEEP)

    async def enter(self, phase: PhaseName, network: Network, hosts: Sequence[str] = ()) -> None:  # noqa: ARG002
        """Kill every process of the phase before that carries its mark; `network` is not held here."""
        self._check()
        if network == "allowlist":
            raise SandboxError(f"{self._plain.host} cannot hold a phase to a list of hosts")
        await self._end_phase()
        self._network = network

    async def _end_phase(self) -> None:
        for process in self._processes:
            process.doom()
        if self._relay is not None:
            relay, self._relay = self._relay, None
            await relay.close()
        await self._kill(self._key)
        for process in self._processes:
            process.close()

    async def _kill(self, mark: str) -> None:
        result = await self._script(KILL, f"{_RUN_VARIABLE}={mark}")
        if result.exit_code != 0:
            raise SandboxError(f"on {self._plain.host} processes still live after SIGKILL: {result.stdout.strip()}")

    def _check(self) -> None:
        if self._stopped:
            raise SandboxError(f"sandbox {self.id} was stopped")
        if self._plain.lost:
            raise SandboxError(self._plain.lost)

    async def _script(self, script: str, *arguments: str, stdin: bytes | None = None) -> ExecResult:
        """Run a script of our own, outside of what a phase's end kills."""
        if self._plain.lost:
            raise SandboxError(self._plain.lost)
        line = shlex.join(["sh", "-c", script, "sh", *arguments])

        async def nothing() -> None:
            """Leave it: it ends by itself."""

        process = await SshProcess.start(self._plain.client, line, nothing, str(self._plain.host))
        if stdin is None:
            await process.close_stdin()
        return await run_to_end(process, stdin, 600)

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
        """Run a command to its end; on timeout its whole tree is killed and `timed_out` is set."""
        process = await self._start(argv, env, cwd, user)
        if stdin is None:
            await process.close_stdin()
        try:
            return await run_to_end(process, stdin, timeout)
        finally:
            self._processes.remove(process)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> SshProcess:
        """Start a command and return it alive."""
        return await self._start(argv, env, cwd, user)

    async def _start(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, user: str | int | None
    ) -> SshProcess:
        self._check()
        if user not in (None, "", "root", 0, "0"):
            raise SandboxError(f"{self._plain.host} runs all as the user who logs in, not as {user!r}")
        mark = f"{self._key}-{next(self._runs)}-"
        full = {
            "PATH": _PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            **self._image.env,
            **self._spec.env,
            **(env or {}),
            _RUN_VARIABLE: mark,
        }
        words = ["env", "-i", *(f"{name}={value}" for name, value in full.items())]
        words += ["sh", "-c", RUN, "sh", cwd or self.workdir, *argv]
        if any("\0" in word for word in words):
            raise SandboxError("a NUL byte came, which no command line or variable can hold")
        end = functools.partial(self._kill, mark)
        process = await SshProcess.start(self._plain.client, shlex.join(words), end, str(self._plain.host))
        self._processes.append(process)
        return process

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory to the absolute path `target`, making parents; links out of it are refused."""
        self._check()
        with tempfile.TemporaryDirectory(dir=self._spec.scratch) as place:
            await asyncio.to_thread(copy_in, source, InsideRoot(Path(place)), target)
            await self._bring(Path(place), target)

    async def _bring(self, root: Path, target: str = "/") -> None:
        """Unpack what is below `root` at the far machine's own root; directories above `target` stay as they are."""
        names = {target.strip("/"): root / target.strip("/")} if target.strip("/") else {}
        found = names or {path.name: path for path in root.iterdir()}
        with tempfile.TemporaryFile() as file:
            await asyncio.to_thread(pack, found, file)
            parent = posixpath.dirname(posixpath.normpath(target)) or "/"
            script = 'mkdir -p -- "$1" && cd / && exec tar -xpf - --no-overwrite-dir'
            result = await self._script(script, parent, stdin=file.read())
        if result.exit_code != 0:
            raise SandboxError(f"{target} cannot be written on {self._plain.host}: {result.stderr.strip()[-300:]}")

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory out; links are not followed. Raises: FileNotFoundError when it is not there."""
        self._check()
        line = shlex.join(["sh", "-c", FETCH, "sh", source])

        async def nothing() -> None:
            """Leave it: it ends by itself."""

        process = await SshProcess.start(self._plain.client, line, nothing, str(self._plain.host))
        with tempfile.TemporaryFile() as file:
            while data := await process.read():
                file.write(data)
            code = await process.wait()
            process.close()
            if code == 44:
                raise FileNotFoundError(f"{source} is not a file or a directory; links are not followed")
            if code not in (0, 1):  # 1: a file changed while it was read
                raise SandboxError(f"{source} cannot be copied from {self._plain.host}: tar ended with {code}")
            file.seek(0)
            await asyncio.to_thread(_unpack, file, target)

    async def remove(self, path: str) -> None:
        """Remove a file or directory; nothing happens when it is not there."""
        self._check()
        if not path.startswith("/"):
            raise SandboxError(f"{path!r} is not an absolute path; paths inside a sandbox begin with /")
        if PurePosixPath(path) == PurePosixPath("/"):
            raise SandboxError(f"{path} is the whole sandbox; only what is in it can be removed")
        if ".." in PurePosixPath(path).parts:
            raise SandboxError(f"{path} ends with ..; name what is meant itself")
        result = await self._script('rm -rf -- "$1" || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; }', path)
        if result.exit_code != 0:
            raise SandboxError(f"{path} cannot be removed: {result.stderr.strip()[-300:]}")

    async def reach(self, endpoint: Endpoint) -> str:
        """Make `endpoint` reachable in this phase and return its URL as seen from inside (no path, no slash)."""
        if self._network == "none":
            raise SandboxError('this phase has network "none"; enter it with "proxy" to reach an endpoint')
        if self._relay is not None:
            relay, self._relay = self._relay, None
            await relay.close()
        self._relay = await Relay.start(await self.spawn(relay_command(0), cwd="/"), endpoint)
        return f"http://127.0.0.1:{self._relay.port}"

    async def stop(self) -> None:
        """Kill everything and remove everything; safe to call twice and after a failed start."""
        self._stopped = True
        try:
            if self._made and self._plain.lost is None:
                await self._end_phase()
                cleared = await self._script(CLEAR, self._key)
                if cleared.exit_code != 0:
                    said = cleared.stderr.strip()[-300:]
                    raise SandboxError(f"what was made on {self._plain.host} could not be removed: {said}")
            elif self._made and not await asyncio.to_thread(self._again):
                raise SandboxError(f"what was made on {self._plain.host} could not be removed; the next start tries")
            self._made = False
        finally:
            processes, self._processes = self._processes, []
            for process in processes:
                process.close()
            self._slot.free()


def reap_line(key: str) -> str:
    """Return the line that kills and removes what a dead host's rollout left on a plain machine."""
    kill = shlex.join(["sh", "-c", KILL, "sh", f"{_RUN_VARIABLE}={key}"])
    return f"{kill} && {shlex.join(['sh', '-c', CLEAR, 'sh', key])} && echo {FREE}"


def _unpack(file: IO[bytes], target: Path) -> None:
    try:
        unpack(file, target)
    except OSError as error:
        raise SandboxError(f"{target} cannot be written: {error}") from error
