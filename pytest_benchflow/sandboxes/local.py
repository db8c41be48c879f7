"""Run a rollout on this machine, isolated by bubblewrap: no daemon, no image, no root needed."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import platform
import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Capabilities, Mount
from pytest_benchflow.errors import SandboxError, UnsupportedError
from pytest_benchflow.sandboxes._copies import Copies
from pytest_benchflow.sandboxes._egress import WITH_EGRESS, Egress, egress_env
from pytest_benchflow.sandboxes._files import InsideRoot, copy_in, copy_out
from pytest_benchflow.sandboxes._install import install_here
from pytest_benchflow.sandboxes._local.accounts import find_account, find_owner
from pytest_benchflow.sandboxes._local.buildsteps import STAGES
from pytest_benchflow.sandboxes._local.bwrap import Layout, is_root, search_path, why_unavailable
from pytest_benchflow.sandboxes._local.etc import StartupFiles, name_host, shown_directories, write_etc
from pytest_benchflow.sandboxes._local.image import Image, build_image, plan_image
from pytest_benchflow.sandboxes._local.kept import copy_kept
from pytest_benchflow.sandboxes._local.layers import Stack, have_layers, layers_dir
from pytest_benchflow.sandboxes._local.limits import Limits, remove_stale_groups
from pytest_benchflow.sandboxes._local.overlay import Overlay
from pytest_benchflow.sandboxes._local.phase import LocalProcess, Phase
from pytest_benchflow.sandboxes._local.sessions import discard_here, remains_here
from pytest_benchflow.sandboxes._local.support import why_unsupported
from pytest_benchflow.sandboxes._private import check_private_hosts
from pytest_benchflow.sandboxes._running import run_to_end
from pytest_benchflow.tasks.task import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.contracts import (
        Endpoint,
        ExecResult,
        Installation,
        Network,
        PhaseName,
        Remain,
        SandboxSpec,
    )
    from pytest_benchflow.tasks.task import Task

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST_BYTES = 8192
PROXY_PORT = 8000
EGRESS_PORT = 8001
_DIRECTORIES = ("app", "home", "mnt", "opt", "root", "run", "srv", "var/log")
_SHARED_DIRECTORIES = ("logs/agent", "logs/verifier", "logs/artifacts")
_STICKY_DIRECTORIES = ("tmp", "var/tmp", "run/lock")


class LocalBackend:
    """Makes bubblewrap sandboxes."""

    name = "local"
    dies_with_process = True
    place = ""

    def check(self) -> None:
        """Refuse private hosts that are none. Raises: UsageError."""
        check_private_hosts()

    def available(self) -> str | None:
        """Return None when this machine can run it, else one sentence that says what is missing and what to do."""
        return why_unavailable()

    def unsupported(self, task: Task) -> str | None:
        """Return None when the task can run here, else the reason to skip. Raises: TaskError on a broken Dockerfile."""
        return why_unsupported(task)

    def fingerprint(self, task: Task) -> str:  # noqa: ARG002 - one answer for all tasks
        """Name the host's interpreter and machine: what is installed for one task serves all."""
        version = ".".join(map(str, sys.version_info[:3]))
        user = "root" if is_root() else "user"
        return f"local-{platform.machine()}-py{version}-{user}"

    @property
    def capabilities(self) -> Capabilities:
        """Return what its sandboxes can do here."""
        limits = frozenset({"memory", "cpus", "processes"} if is_root() else {"memory", "cpus"})
        return Capabilities(networks=frozenset({"proxy", "public", "allowlist", "none"}), limits=limits, root=is_root())

    async def install(self, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
        """Return the mounts of an installation, made first where the cache has none. Raises: AgentError."""
        # One installation serves all tasks, so it is made where nothing of any task's is.
        bare = replace(task, environment=Environment(), environment_dir=None, dockerfile=None)
        return await install_here(self, installation, bare, log)

    async def close(self) -> None:
        """Let go of nothing: nothing is held between sandboxes."""

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        """Make a sandbox holding the task's environment; nothing of its tests or solution."""
        if reason := self.available() or self.unsupported(spec.task):
            raise UnsupportedError(reason)
        remove_stale_groups()
        image = plan_image(spec.task)
        if image.runs:
            stack = await have_layers(image, spec.task, _open_bench)
            return await _opened(LocalSandbox(spec, image, Layered(stack, spec.scratch)))
        return await _opened(LocalSandbox(spec, image))

    async def reopen(self, spec: SandboxSpec, kept: Path) -> LocalSandbox:
        """Make a sandbox of a copy of the files that an earlier one left in `kept`, with none of its processes.

        Raises: UnsupportedError, SandboxError when they cannot be copied.
        """
        if reason := self.available() or self.unsupported(spec.task):
            raise UnsupportedError(reason)
        image = plan_image(spec.task)
        stack = await have_layers(image, spec.task, _open_bench) if image.runs else None
        await asyncio.to_thread(copy_kept, kept, spec.scratch)
        sandbox = LocalSandbox(spec, image, Layered(stack, spec.scratch) if stack else None)
        return await _opened(sandbox, again=True)

    def reap(self, scratch: Path, place: str) -> bool:  # noqa: ARG002 - its processes ended with the one that made them
        """Remove nothing: a scratch directory is all that can be left, and its session's to remove."""
        return True

    async def remains(self) -> list[Remain]:
        """Return the scratch directories that dead sessions of this user left."""
        return await asyncio.to_thread(remains_here, self.name)

    async def discard(self, name: str) -> None:
        """Remove such a directory. Raises: SandboxError when its session lives, or when it is none."""
        await asyncio.to_thread(discard_here, name)


async def _open_bench(spec: SandboxSpec, below: Stack, changes: Path, stages: Sequence[Stack]) -> LocalSandbox:
    """Return a sandbox in which a layer is made: what is changed goes to `changes`."""
    mounts = tuple(Mount(spec.scratch / f"stage-{number}", f"{STAGES}/{number}") for number in range(len(stages)))
    spec = replace(spec, mounts=mounts)
    return await _opened(LocalSandbox(spec, Image(None, "/"), Layered(below, changes, tuple(stages))))


async def _opened(sandbox: LocalSandbox, *, again: bool = False) -> LocalSandbox:
    try:
        await sandbox.prepare(again=again)
    except BaseException:
        await asyncio.shield(sandbox.stop())
        raise
    return sandbox


@dataclass(frozen=True, slots=True)
class Layered:
    """What an overlaid root is made of: layers, where its changes go, and other stages to be seen beside it."""

    stack: Stack
    changes: Path
    stages: tuple[Stack, ...] = ()


class LocalSandbox:
    """One bubblewrap sandbox: a root directory that stays, and for each phase the processes that run in it."""

    backend = "local"
    transport = "local-stdio"

    def __init__(self, spec: SandboxSpec, image: Image, layered: Layered | None = None) -> None:
        self.id = spec.id
        self.workdir = image.workdir or spec.task.environment.workdir or "/app"
        self._spec = spec
        self._image = image
        self._layered = layered
        self._overlay: Overlay | None = None
        self._root = spec.scratch / ("merged" if layered else "root")
        self.inside = InsideRoot(self._root)
        hostname = re.sub(r"[^A-Za-z0-9]+", "-", spec.id)[:63].strip("-") or "sandbox"
        shown = () if layered else shown_directories()
        empty = spec.scratch / "empty"
        self._layout = Layout(self.inside, self._root, empty, hostname, shown, spec.mounts, whole=layered is not None)
        self._startup = StartupFiles(self.inside, shown)
        self._limits = Limits(spec.task.environment, hostname)
        self.limits: Mapping[str, Any] = self._limits.report
        self._network: Network = "none"
        self._allowed: tuple[str, ...] | None = None
        self._phase_name: PhaseName = "setup"
        self._phase: Phase | None = None
        self._egress: Egress | None = None
        self._starting = asyncio.Lock()
        self._processes: list[LocalProcess] = []
        self._copies = Copies()
        self._phases = 0
        self._stopped = False

    async def prepare(self, *, again: bool = False) -> None:
        """Lay out the root: system directories, /etc, the task's environment; `again`: its own files are there."""
        try:
            await self._copying(self._build_layered if self._layered else self._rebuild if again else self._build)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise self._no_room() from error

    def _no_room(self) -> SandboxError:
        place = self._layered.changes if self._layered else self._spec.scratch
        return SandboxError(f"the sandbox's files do not fit below {place}; make room there, or set TMPDIR")

    def _build(self) -> None:
        self._root.mkdir(mode=0o755)
        self._root.chmod(0o755)
        self._layout.empty.touch(mode=0o444)
        for names, mode in ((_DIRECTORIES, 0o755), (_SHARED_DIRECTORIES, 0o777), (_STICKY_DIRECTORIES, 0o1777)):
            for name in names:
                (self._root / name).mkdir(parents=True, exist_ok=True)
                (self._root / name).chmod(mode)
        write_etc(self._root, self._layout.hostname)
        self._make_directory(self.workdir)
        owner = functools.partial(find_owner, self.inside) if is_root() else None
        build_image(self._image, self._spec.task, self.inside, owner)
        self._hold("this machine's own programs")

    def _rebuild(self) -> None:
        self._layout.empty.touch(mode=0o444)
        self._make_directory(self.workdir)
        self._hold("this machine's own programs")

    def _build_layered(self) -> None:
        self._layout.empty.touch(mode=0o444)
        self._root.mkdir(mode=0o755)
        self._lay()
        name_host(self.inside, self._layout.hostname)
        self._make_directory(self.workdir)
        self._hold("this machine's own programs, and what the Dockerfile made of them")

    def _lay(self) -> None:
        """Mount the root, and the other stages, in a namespace of their own."""
        assert self._layered is not None
        trees = self._layered.stack.trees(self._root, self._layered.changes)
        for number, stage in enumerate(self._layered.stages):
            place = self._spec.scratch / f"stage-{number}"
            place.mkdir(exist_ok=True)
            trees += stage.trees(place, None)
        self._overlay = Overlay(trees, layers_dir())
        self.inside.root = self._overlay.root
        self._layout.prefix = self._overlay.prefix

    def _take_up(self) -> None:
        """Let go of what `_lay` mounted."""
        # Another's descriptor may soon have the number by which the root was known.
        self.inside.root = self._root
        if self._overlay is not None:
            self._overlay.close()

    def _hold(self, base: str) -> None:
        self._startup.take()
        self._limits.prepare()
        if self._image.base is not None:
            self._limits.report["image"] = {"asked": self._image.base, "applied": base}

    async def enter(self, phase: PhaseName, network: Network, hosts: Sequence[str] = ()) -> None:
        """Kill every process of the phase before, prove them dead, then switch to `network`; files stay."""
        self._check_alive()
        await self._end_phase()
        self._network, self._allowed = network, tuple(hosts) if network == "allowlist" else None
        self._phase_name = phase

    async def _end_phase(self) -> None:
        async with self._starting:
            if self._egress is not None:
                await self._egress.close()
                self._egress = None
            if self._phase is not None:
                await self._phase.end()
                self._phase = None

    async def _running(self) -> Phase:
        """Return the phase's processes, started when first needed."""
        self._check_alive()
        async with self._starting:
            if self._phase is None:
                self._phases += 1
                log = self._spec.scratch / f"{self._phases}-{self._phase_name}.log"
                self._phase = await self._start_phase(log)
            return self._phase

    async def _start_phase(self, log: Path) -> Phase:
        if self._layered:
            await self._copies.ended()  # a cancelled one must not lose its root
        ready = asyncio.ensure_future(self._copying(self._make_ready))
        try:
            await asyncio.shield(ready)
        except asyncio.CancelledError:
            # Two that make the same files ready would be in each other's way.
            await asyncio.wait([ready])
            raise
        phase = await Phase.start(self._layout.command, log, self._limits.hold)
        if self._network in WITH_EGRESS:
            try:
                setup = self._phase_name == "setup"
                self._egress = Egress(await phase.listen(EGRESS_PORT), hosts=self._allowed, setup=setup)
            except BaseException:
                await asyncio.shield(phase.end())
                raise
        return phase

    def _make_ready(self) -> None:
        """Put in place what a phase's own start depends on, whatever the phase before left there."""
        try:
            if self._layered is not None and self._phases > 1:
                self._take_up()
                self._layered.stack.restore(self._layered.changes)
                self._lay()
            self._layout.prepare()
            if self._phases > 1:
                self._startup.restore()
        except OSError as error:
            if error.errno in _FULL:
                raise self._no_room() from error
            raise SandboxError(f"sandbox {self.id} cannot be made ready for its next phase: {error}") from error

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
        return await run_to_end(process, stdin, timeout)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> LocalProcess:
        """Start a command and return it alive."""
        process = await self._start(argv, env=env, cwd=cwd, user=user, with_stdin=True)
        self._processes.append(process)
        return process

    async def _start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: str | None,
        user: str | int | None,
        with_stdin: bool,
    ) -> LocalProcess:
        phase = await self._running()
        who = find_account(self.inside, self._image.user if user is None else user)
        full = {
            "PATH": search_path(),
            "HOME": who.home,
            "USER": who.name,
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            **(egress_env(EGRESS_PORT) if self._network in WITH_EGRESS else {}),
            **self._image.env,
            **self._spec.env,
            **(env or {}),
        }
        return await phase.spawn(argv, env=full, cwd=cwd or self.workdir, ids=who.ids, with_stdin=with_stdin)

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory to the absolute path `target`, making parents; links out of it are refused."""
        await self._copying(copy_in, source, self.inside, target)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory out; links are not followed.

        Raises: FileNotFoundError when it is not there, SandboxError when the disk of the sandbox is full.
        """
        await self._copying(copy_out, self.inside, source, target)
        found = os.statvfs(self._spec.scratch)
        if found.f_bavail * found.f_frsize < _LEAST_BYTES:
            raise self._no_room()  # what was copied may be the half of what was to be written

    async def make_directory(self, path: str) -> None:
        """Make a directory with those above it, links resolved inside."""
        await self._copying(self._make_directory, path)

    def _make_directory(self, path: str) -> None:
        with self.inside.directory(path, make=True):
            pass

    async def remove(self, path: str) -> None:
        """Remove a file or directory, running nothing of the sandbox's; nothing happens when it is not there."""
        await self._copying(self.inside.remove, path)

    async def _copying(self, copy: Callable[..., None], *args: Any) -> None:
        self._check_alive()
        await self._copies.run(copy, *args)

    async def reach(self, endpoint: Endpoint) -> str:
        """Make `endpoint` reachable in this phase and return its URL as seen from inside (no path, no slash)."""
        if self._network == "none":
            raise SandboxError('this phase has network "none"; enter it with "proxy" to reach an endpoint')
        phase = await self._running()
        await endpoint.adopt(await phase.listen(PROXY_PORT))
        return f"http://127.0.0.1:{PROXY_PORT}"

    async def stop(self) -> None:
        """Kill everything and free everything; safe to call twice and after a failed start.

        The files stay in the spec's scratch directory, which is the caller's to remove or to keep.
        """
        self._stopped = True
        await self._end_phase()
        for process in self._processes:
            process.close()
        self._processes.clear()
        await self._copies.ended()
        self._limits.remove()
        self._take_up()


backend = LocalBackend()
