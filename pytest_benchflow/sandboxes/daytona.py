"""Run a rollout in a sandbox at Daytona, made from the task's own image."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_benchflow.contracts import Capabilities, Remain
from pytest_benchflow.errors import SandboxError, UnsupportedError, UsageError
from pytest_benchflow.sandboxes._daytona.api import Api, GoneError, api_url, why_unavailable
from pytest_benchflow.sandboxes._daytona.box import Box
from pytest_benchflow.sandboxes._daytona.commands import Command, Commands
from pytest_benchflow.sandboxes._daytona.create import create, delete, listed, remove_made_for
from pytest_benchflow.sandboxes._daytona.files import check_path, download, put_tree, upload
from pytest_benchflow.sandboxes._daytona.image import Plan, lay_out_copies, plan, why_unsupported
from pytest_benchflow.sandboxes._daytona.install import install
from pytest_benchflow.sandboxes._daytona.model import ModelWay
from pytest_benchflow.sandboxes._daytona.users import READ, ROOT, Account, find, is_root
from pytest_benchflow.sandboxes._labels import MANAGED, OWNER, owner_of
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pytest_benchflow.contracts import (
        Endpoint,
        ExecResult,
        Installation,
        Mount,
        Network,
        PhaseName,
        SandboxSpec,
    )
    from pytest_benchflow.sandboxes._daytona.process import DaytonaProcess
    from pytest_benchflow.tasks.task import Task

T = TypeVar("T")

TRANSPORT = "BENCHFLOW_DAYTONA_ACP_TRANSPORT"
_TRANSPORTS = ("pty", "ssh")
# Its own terminal handling takes the messages of a terminal apart.
_ALWAYS_SSH = ("gemini",)
_LAY_OUT = """\
umask 022
mkdir -p /logs/agent /logs/verifier /logs/artifacts /tmp /var/tmp "$1"
chmod 777 /logs/agent /logs/verifier /logs/artifacts
chmod 1777 /tmp /var/tmp
"""


def choose_transport(agent: str) -> str:
    """Return how an agent's messages travel: pty or ssh. Raises: UsageError."""
    asked = host_variable(TRANSPORT) or _TRANSPORTS[0]
    if asked not in _TRANSPORTS:
        raise UsageError(f"{TRANSPORT} is {asked!r}; it takes {' or '.join(_TRANSPORTS)}")
    return "ssh" if agent.partition("@")[0] in _ALWAYS_SSH else asked


class DaytonaBackend:
    """Makes sandboxes at Daytona."""

    name = "daytona"
    dies_with_process = False

    def check(self) -> None:
        """Refuse a way for messages that there is not, and an owner that no label holds. Raises: UsageError."""
        choose_transport("")
        owner_of(self.name)

    def available(self) -> str | None:
        """Return None when Daytona can be asked, else one sentence that says what is missing and what to do."""
        return why_unavailable()

    def unsupported(self, task: Task) -> str | None:
        """Return None when the task can run there, else the reason to skip. Raises: TaskError."""
        return why_unsupported(task)

    def fingerprint(self, task: Task) -> str:
        """Name the image: an agent is installed once for each."""
        return f"daytona-{plan(task).digest(task)}"

    @property
    def capabilities(self) -> Capabilities:
        """Return what its sandboxes can do."""
        networks: frozenset[Network] = frozenset({"proxy", "public", "allowlist", "none"})
        limits = frozenset({"memory", "cpus", "storage"})
        return Capabilities(
            networks, limits, root=True, snapshots=True, unseen=("everything: its tests use a stand-in",)
        )

    async def install(self, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
        """Return the snapshot that holds an installation, made first where there is none. Raises: AgentError."""
        return await install(self, installation, task, log)

    async def create(self, spec: SandboxSpec) -> DaytonaSandbox:
        """Make a sandbox holding the task's environment; nothing of its tests or solution."""
        return await self.make(spec)

    async def make(self, spec: SandboxSpec, *, with_files: bool = True) -> DaytonaSandbox:
        """Make a sandbox, with the files that the task's image would hold or without."""
        if reason := self.available() or self.unsupported(spec.task):
            raise UnsupportedError(reason)
        for mount in spec.mounts:
            if mount.writable and not mount.there:
                raise SandboxError(f"{mount.source} cannot be written to by a sandbox at Daytona: it gets a copy")
        api, made, limits = Api(api_url()), plan(spec.task), dict[str, Any]()
        try:
            handle = await create(api, spec, made, limits)
        except BaseException:
            await asyncio.shield(api.close())
            raise
        sandbox = DaytonaSandbox(api, handle, spec, made, limits)
        try:
            await sandbox.prepare(with_files=with_files)
        except BaseException:
            await asyncio.shield(sandbox.stop())
            raise
        return sandbox

    async def close(self) -> None:
        """Let go of nothing: every sandbox has connections of its own."""

    @property
    def place(self) -> str:
        """Return the control plane's address."""
        return api_url()

    def reap(self, scratch: Path, place: str) -> bool:
        """Remove what a killed process left at `place` of the sandbox with this scratch directory, and of no other.

        False also where what was made bears another owner's name, as BENCHFLOW_DAYTONA_OWNER may have changed since.
        """
        if self.available() is not None or place != self.place:
            return False
        done: list[bool] = []

        def work() -> None:
            with contextlib.suppress(SandboxError):
                asyncio.run(_with_api(lambda api: remove_made_for(api, str(scratch))))
                done.append(True)

        # A thread of its own: the caller may be one that runs a loop.
        thread = threading.Thread(target=work, name="daytona-reap")
        thread.start()
        thread.join()
        return bool(done)

    async def remains(self) -> list[Remain]:
        """Return the sandboxes of this organisation that bear a label of ours. Raises: SandboxError."""
        found = await _with_api(listed)
        return [
            Remain(
                str(each.id),
                self.name,
                dict(each.labels),
                each.created_at,
                each.last_activity_at,
                about=f"{each.name}, {getattr(each.state, 'value', each.state)}",
            )
            for each in found
            if {MANAGED, OWNER} & set(each.labels or ())
        ]

    async def discard(self, name: str) -> None:
        """Remove a sandbox by its id; nothing happens when it is gone. Raises: SandboxError."""

        async def remove(api: Api) -> None:
            client = await api.open()
            with contextlib.suppress(GoneError):
                await delete(api, await api.ask("looking for a sandbox", lambda: client.get(name)))

        await _with_api(remove)


async def _with_api(work: Callable[[Api], Awaitable[T]]) -> T:
    api = Api(api_url())
    try:
        return await work(api)
    finally:
        await api.close()


class DaytonaSandbox:
    """One sandbox; its phases follow each other in the same files, and each begins with no process but its own."""

    backend = "daytona"

    def __init__(self, api: Api, handle: Any, spec: SandboxSpec, made: Plan, limits: dict[str, Any]) -> None:
        self.id = spec.id
        self.workdir = made.workdir
        self.transport = choose_transport(spec.agent)
        self.limits: Mapping[str, Any] = limits
        self._api = api
        self._spec = spec
        self._made = made
        self._box = Box(api, handle, f"/var/lib/benchflow-{secrets.token_hex(6)}")
        self._commands = Commands(self._box, self.transport, spec.id)
        self._way: ModelWay | None = None
        self._network: Network = "none"
        self._applied: tuple[bool, str] = (True, "")
        self._touched = False
        self._stopped = False
        limits["image"] = {"asked": _asked_image(spec.task), "applied": made.text or "its Dockerfile"}

    async def prepare(self, *, with_files: bool) -> None:
        """Lay out what every task may rely on, and the files that are no part of the image."""
        await self._commands.prepare()
        await self._box.shell(_LAY_OUT, self.workdir)
        if self._made.copies and with_files:
            with tempfile.TemporaryDirectory(dir=self._spec.scratch) as place:
                top = Path(place)
                await asyncio.to_thread(lay_out_copies, self._spec.task, self._made.copies, top)
                for entry in sorted(top.iterdir()):
                    await put_tree(self._box, entry, f"/{entry.name}", self._spec.scratch)
        for mount in self._spec.mounts:
            if not mount.there:
                await upload(self._box, mount.source, mount.target, self._spec.scratch)

    async def enter(self, phase: PhaseName, network: Network, hosts: Sequence[str] = ()) -> None:  # noqa: ARG002 - all phases are alike here
        """Kill every process of the phase before, prove them dead, then switch to `network`; files stay."""
        self._check_alive()
        if self._touched:
            await self._end_phase()
        await self._switch(network, tuple(hosts))
        self._network = network

    async def _end_phase(self) -> None:
        if self._way is not None:
            await self._way.close()
            self._way = None
        await self._box.unlink()
        await self._commands.end_phase()
        self._touched = False

    async def _switch(self, network: Network, hosts: tuple[str, ...]) -> None:
        """Have Daytona open or close the way out. Raises: SandboxError when it does not do so."""
        wanted = (network in ("proxy", "none"), ",".join(hosts) if network == "allowlist" else "")
        if network == "allowlist" and not hosts:
            wanted = (True, "")
        if wanted == self._applied:
            return
        blocked, domains = wanted
        handle = self._box.handle
        await self._box.ask(
            f"switching the sandbox's network to {network}",
            lambda: handle.update_network_settings(
                network_block_all=blocked, network_allow_list="", domain_allow_list=domains
            ),
        )
        if bool(handle.network_block_all) != blocked or (handle.domain_allow_list or "") != domains:
            raise SandboxError(f"Daytona did not switch the sandbox's network to {network}; nothing runs in it")
        self._applied = wanted

    def _check_alive(self) -> None:
        if self._stopped:
            raise SandboxError(f"sandbox {self.id} was stopped")

    async def _command(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | None,
        user: str | int | None,
        stdin: bytes | None = None,
    ) -> Command:
        self._check_alive()
        self._touched = True
        account = await self._account(self._made.user if user is None else user)
        full = {"HOME": account.home, "USER": account.name, **self._spec.env, **(env or {})}
        for text in (*argv, *full, *full.values(), cwd or ""):
            if "\0" in text:
                raise SandboxError(f"{text!r} holds a NUL byte, which no command line or variable can")
        return Command(argv, full, cwd or self.workdir, account.ids, stdin)

    async def _account(self, user: str | int | None) -> Account:
        if user is None or is_root(user):
            return ROOT
        return find(await self._box.shell(READ), user)

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
        return await self._commands.exec(await self._command(argv, env, cwd, user, stdin), timeout)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> DaytonaProcess:
        """Start a command and return it alive."""
        return await self._commands.spawn(await self._command(argv, env, cwd, user))

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory to the absolute path `target`, making parents; links out of it are refused."""
        self._check_alive()
        await upload(self._box, source, target, self._spec.scratch)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory out; links are not followed. Raises: FileNotFoundError when it is not there."""
        self._check_alive()
        await download(self._box, source, target, self._spec.scratch)

    async def remove(self, path: str) -> None:
        """Remove a file or directory, running nothing of the sandbox's; nothing happens when it is not there."""
        self._check_alive()
        if check_path(path) == "/":
            raise SandboxError(f"{path} is the whole sandbox; only what is in it can be removed")
        await self._box.remove(path)

    async def reach(self, endpoint: Endpoint) -> str:
        """Make `endpoint` reachable in this phase and return its URL as seen from inside (no path, no slash)."""
        if self._network == "none":
            raise SandboxError('this phase has network "none"; enter it with "proxy" to reach an endpoint')
        self._check_alive()
        self._touched = True
        if self._way is not None:
            await self._way.close()
        self._way = await ModelWay.open(self._box, endpoint)
        return self._way.url

    @property
    def name(self) -> str:
        """Return Daytona's id of it."""
        return self._box.id

    async def sessions(self) -> list[str]:
        """Return the names of the toolbox's sessions. Raises: SandboxError."""
        return await self._box.sessions()

    async def keep_as(self, snapshot: str, timeout: float) -> None:
        """Keep the sandbox's files as a snapshot that others start from; its phase ends. Raises: SandboxError."""
        await self._end_phase()
        handle = self._box.handle
        await self._box.remove(self._box.place)
        await self._box.ask(
            f"keeping the sandbox as the snapshot {snapshot}",
            lambda: handle.create_snapshot(snapshot, timeout=timeout),
            again=False,
            timeout=None,
        )

    async def stop(self) -> None:
        """Kill everything and remove everything; safe to call twice and after a failed start.

        Raises: SandboxError when Daytona does not remove it.
        """
        if self._stopped:
            return
        self._stopped = True
        self._box.deleting = True
        try:
            if self._way is not None:
                await self._way.close()
            await self._commands.close()
            await self._box.unlink()
        finally:
            try:
                await delete(self._api, self._box.handle)
            finally:
                await self._api.close()


def _asked_image(task: Task) -> str | None:
    return task.environment.docker_image if task.dockerfile is None else task.dockerfile.name


backend = DaytonaBackend()
