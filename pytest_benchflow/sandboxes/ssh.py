"""Run rollouts on other machines over SSH, each isolated there as the local sandbox is here."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_benchflow.contracts import Capabilities, Mount
from pytest_benchflow.errors import AgentError, BenchflowError, SandboxError, UnsupportedError
from pytest_benchflow.sandboxes._ssh.aside import Aside
from pytest_benchflow.sandboxes._ssh.connect import connect
from pytest_benchflow.sandboxes._ssh.far import Far, reap
from pytest_benchflow.sandboxes._ssh.far_sandbox import FarSandbox, key_of
from pytest_benchflow.sandboxes._ssh.far_ship import is_taken_back, ship, take_back
from pytest_benchflow.sandboxes._ssh.hosts import FORM, Slot, SshHost, read_hosts, take_slot
from pytest_benchflow.sandboxes._ssh.machine import MachineSandbox, Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_benchflow.contracts import Installation, Network, Remain, Sandbox, SandboxSpec
    from pytest_benchflow.tasks.task import Task

NO_HOST = f"no host was named; pass --benchflow-ssh-host={FORM}, once for each (pytest-benchflow: --ssh-host)"
_AGAIN_SEC = 30.0
_INSTALLED = "installation"  # what an installation's mount has as its source until a host is chosen
_LOCAL = Capabilities(networks=frozenset({"proxy", "public", "allowlist", "none"}), limits=frozenset(), root=True)


class IsolationWarning(UserWarning):
    """Rollouts run on a machine that isolates nothing."""


class SshBackend:
    """Makes sandboxes on the hosts it was given; connections are made once for each process and kept."""

    name = "ssh"
    dies_with_process = False

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        self._hosts: tuple[SshHost, ...] = ()
        self._aside = Aside()
        self._fars: dict[SshHost, asyncio.Task[Far | Plain]] = {}
        self._tried: dict[SshHost, float] = {}
        self._asked: dict[str, tuple[Installation, Task, Path]] = {}
        self._known: dict[SshHost, Capabilities] = {}  # of each host that could once be used
        self._made: dict[tuple[SshHost, str], asyncio.Task[tuple[Mount, ...]]] = {}
        self.use(hosts)

    def use(self, hosts: Sequence[str]) -> None:
        """Make sandboxes on these hosts, each as `[user@]host[:port][*slots]`. Raises: UsageError."""
        self._hosts = read_hosts(hosts)

    @property
    def place(self) -> str:
        """Return the hosts that a sandbox may be made on."""
        return ",".join(map(str, self._hosts))

    @property
    def at_once(self) -> int | None:
        """Return how many sandboxes the hosts take that answer; None while none has."""
        known = [self._fars.get(host) for host in self._hosts]
        fars = [
            each.result() for each in known if each and each.done() and not each.cancelled() and not each.exception()
        ]
        return sum(far.slots for far in fars if far.lost is None) or None

    def check(self) -> None:
        """Refuse nothing: hosts are refused where they are named."""

    def available(self) -> str | None:
        """Return None when every host can be used, else one sentence that says what is missing and what to do.

        A host that was lost since is no reason: rollouts go to others, and where there are none they fail.
        """
        if importlib.util.find_spec("paramiko") is None:
            return "paramiko is not installed; pip install 'pytest-benchflow[ssh]'"
        if not self._hosts:
            return NO_HOST
        for host, each in self._aside.wait(self._connected()).items():
            if not isinstance(each, BenchflowError):
                self._known[host] = each.capabilities
                if isinstance(each, Plain) and not each.told:
                    each.told = True
                    warnings.warn(each.warning, IsolationWarning, stacklevel=2)
            elif host not in self._known:
                return str(each)
        return None

    async def _connected(self) -> dict[SshHost, Far | Plain | BenchflowError]:
        """Return each host's far side, or why there is none. On the connections' loop, as all with an underscore."""
        found = await asyncio.gather(*(self._far(host) for host in self._hosts), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, BenchflowError):
                raise each
        return dict(zip(self._hosts, found, strict=True))  # type: ignore[arg-type]

    async def _far(self, host: SshHost) -> Far | Plain:
        """Return a host's far side, connecting when that has not been tried lately. Raises: SandboxError."""
        known = self._fars.get(host)
        now = asyncio.get_running_loop().time()
        failed = known is not None and known.done() and (known.exception() is not None or known.result().lost)
        if known is None or (failed and now - self._tried[host] > _AGAIN_SEC):
            self._tried[host] = now
            known = self._fars[host] = asyncio.ensure_future(_start(host))
        far = await asyncio.shield(known)
        if far.lost is not None:
            raise SandboxError(far.lost)
        return far

    @property
    def capabilities(self) -> Capabilities:
        """Return what its sandboxes can do on every host."""
        if self.available() is not None:
            return _LOCAL
        each = [self._known[host] for host in self._hosts]
        networks: frozenset[Network] = frozenset.intersection(*(one.networks for one in each))
        limits = frozenset.intersection(*(one.limits for one in each))
        return Capabilities(networks=networks, limits=limits, root=all(one.root for one in each))

    def unsupported(self, task: Task) -> str | None:
        """Return None when the task can run on some host, else the reason to skip. Raises: TaskError."""
        return self._aside.wait(self._unsupported(task))

    async def _unsupported(self, task: Task) -> str | None:
        reasons = [await self._why_not(host, task) for host in self._hosts]
        # What one that was lost would say nobody knows.
        known = all(isinstance(reason, str) for reason in reasons)
        return str(reasons[0]) if reasons and known else None

    async def _why_not(self, host: SshHost, task: Task) -> str | SandboxError | None:
        """Return why a task cannot run on a host, None when it can, an error when that cannot be told."""
        try:
            far = await self._far(host)
            if isinstance(far, Plain):
                return await asyncio.to_thread(far.unsupported, task)
            answer = await far.call("unsupported", task=task, digest=await far.context(task))
        except SandboxError as error:
            return error
        return str(answer["reason"]) if answer["reason"] else None

    def fingerprint(self, task: Task) -> str:  # noqa: ARG002 - what is installed where, the far side knows
        """Name the hosts."""
        return f"ssh-{key_of(Path(self.place))}"

    async def install(self, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
        """Install on every host that can be used, where it is not yet; a sandbox gets the mounts of its own host.

        Raises: AgentError with the end of the log.
        """
        name = key_of(Path(repr((installation.name, installation.version, installation.script))))
        self._asked[name] = (installation, task, log)
        await self._aside.run(self._install_everywhere(name))
        return (Mount(Path(_INSTALLED, name), "/", there=True),)

    async def _install_everywhere(self, name: str) -> None:
        found = await self._connected()
        usable = [host for host, far in found.items() if not isinstance(far, BenchflowError)]
        if not usable:
            raise next(far for far in found.values() if isinstance(far, BenchflowError))
        await asyncio.gather(*(self._installed(host, name) for host in usable))

    async def _installed(self, host: SshHost, name: str) -> tuple[Mount, ...]:
        known = self._made.get((host, name))
        if known is None or (known.done() and known.exception() is not None):
            known = self._made[host, name] = asyncio.ensure_future(self._install(host, name))
        return await asyncio.shield(known)

    async def _install(self, host: SshHost, name: str) -> tuple[Mount, ...]:
        installation, task, log = self._asked[name]
        far = await self._far(host)
        if isinstance(far, Plain):  # where the sandbox is the machine, it is done when that is made
            return ()
        digest = await far.context(task)
        try:
            made = await far.call("install", installation=installation, task=task, digest=digest, key=name)
        except AgentError as error:
            answer: dict[str, Any] = error.__dict__.get("answer", {})
            _keep_log(log, answer)
            raise AgentError(f"{host}: {str(error).replace(str(answer.get('log_path')), str(log))}") from error
        _keep_log(log, made)
        return tuple(Mount(Path(source), target, writable, there=True) for source, target, writable in made["mounts"])

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox on the host with the most room; wait for a slot where all are taken."""
        if not self._hosts:
            raise UnsupportedError(NO_HOST)
        made = await self._aside.run(self._create(spec), _undo)
        return await self._on_machine(spec, made) if isinstance(made, _Chosen) else made

    async def _create(self, spec: SandboxSpec) -> FarSandbox | _Chosen:
        reasons = {host: await self._why_not(host, spec.task) for host in self._hosts}
        fit = {host: await self._far(host) for host, reason in reasons.items() if reason is None}
        if not fit:
            raise SandboxError("; ".join(dict.fromkeys(str(reason) for reason in reasons.values())))
        host, slot = await take_slot(lambda: [(each, far.slots) for each, far in fit.items() if far.lost is None])
        far = fit[host]
        if isinstance(far, Plain):
            return _Chosen(far, slot)
        again = functools.partial(reap, host, key_of(spec.scratch))
        sandbox = FarSandbox(spec, far, self._aside, slot, again)
        try:
            mounts: list[Mount] = []
            for each in spec.mounts:
                mounts += await self._installed(host, each.source.name) if _is_asked(each) else [each]
            await sandbox.prepare(tuple(mounts))
        except BaseException:
            await asyncio.shield(sandbox.stop())
            raise
        return sandbox

    async def _on_machine(self, spec: SandboxSpec, chosen: _Chosen) -> MachineSandbox:
        """Make a sandbox of a machine itself; on the caller's loop, as there is nothing to share."""
        key, host = key_of(spec.scratch), chosen.plain.host
        sandbox = MachineSandbox(spec, chosen.plain, key, chosen.slot, functools.partial(reap, host, key))
        asked = [self._asked[each.source.name] for each in spec.mounts if _is_asked(each)]
        try:
            await sandbox.prepare(
                [each for each in spec.mounts if not _is_asked(each)], [(what, log) for what, _, log in asked]
            )
        except BaseException:
            await asyncio.shield(sandbox.stop())
            raise
        return sandbox

    def reap(self, scratch: Path, place: str) -> bool:
        """End what a killed process left on the hosts of `place`; False: a host does not tell."""
        if importlib.util.find_spec("paramiko") is None:
            return False
        try:
            return min([reap(host, key_of(scratch)) for host in read_hosts(place.split(","))])
        except BenchflowError:
            return False

    async def remains(self) -> list[Remain]:
        """Return nothing: a far side ends by itself, with all it made, when its host stays away."""
        return []

    async def discard(self, name: str) -> None:
        """Remove nothing. Raises: SandboxError."""
        raise SandboxError(f"{name} is not of an SSH host; those keep nothing")

    async def close(self) -> None:
        """End the far sides and let go of the connections; safe to call twice, and to go on after."""
        await self._aside.run(self._close())

    async def _close(self) -> None:
        fars, self._fars = self._fars, {}
        self._made.clear()
        for starting in fars.values():
            try:
                far = await starting
            except BenchflowError:
                continue
            await far.close()


async def _start(host: SshHost) -> Far | Plain:
    """Connect to a host, and start our program there where it can isolate a rollout; elsewhere it goes again."""
    try:
        return await _begin(host)
    except SandboxError as error:
        if not is_taken_back(error):
            raise
    return await _begin(host)


async def _begin(host: SshHost) -> Far | Plain:
    client = await asyncio.to_thread(connect, host)
    try:
        machine = await asyncio.to_thread(ship, client)
        if machine.python is None:
            return Plain(host, client, machine, "it has no Python 3.11 or newer")
        far = await Far.start(host, client, machine)
    except BaseException:
        client.close()
        raise
    if far.unavailable is None:
        return far
    await far.close()
    client = await asyncio.to_thread(connect, host)
    try:
        await asyncio.to_thread(take_back, client, machine)
    except BaseException:
        client.close()
        raise
    return Plain(host, client, machine, far.unavailable)


class _Chosen(NamedTuple):
    """A plain machine, and the right to use it."""

    plain: Plain
    slot: Slot


async def _undo(made: FarSandbox | _Chosen) -> None:
    """Give back what nobody waits for any more."""
    if isinstance(made, _Chosen):
        made.slot.free()
    else:
        await made.stop()


def _is_asked(mount: Mount) -> bool:
    """Tell whether a mount stands for an installation until a host is chosen."""
    return mount.there and mount.source.parent == Path(_INSTALLED)


def _keep_log(log: Path, answer: dict[str, Any]) -> None:
    if answer.get("log") is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(str(answer["log"]), "utf-8", errors="replace")


backend = SshBackend()
