"""A sandbox on a far machine: the local one of that machine, over the connection."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import tempfile
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pytest_benchflow.contracts import ExecResult
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._tar import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.contracts import Endpoint, Mount, Network, PhaseName, SandboxSpec
    from pytest_benchflow.sandboxes._frames import Stream
    from pytest_benchflow.sandboxes._ssh.aside import Aside
    from pytest_benchflow.sandboxes._ssh.far import Far
    from pytest_benchflow.sandboxes._ssh.hosts import Slot

T = TypeVar("T")
_doors = itertools.count(1)


def key_of(scratch: Path) -> str:
    """Return the name that a sandbox has on its far machine: nobody else's scratch directory is named so."""
    return hashlib.sha256(str(scratch).encode()).hexdigest()[:24]


class FarSandbox:
    """Each call is an order to the far side, given on the connections' own loop."""

    backend = "ssh"
    transport = "ssh"

    def __init__(self, spec: SandboxSpec, far: Far, aside: Aside, slot: Slot, again: Callable[[], bool]) -> None:
        self.id = spec.id
        self.workdir = "/app"
        self.limits: Mapping[str, Any] = {}
        self._spec = spec
        self._far = far
        self._aside = aside
        self._slot = slot
        self._again = again  # removes what is left over a new connection
        self._key = key_of(spec.scratch)
        self._network: Network = "none"
        self._runs = itertools.count(1)
        self._doors: list[int] = []
        self._stopped = False

    async def prepare(self, mounts: tuple[Mount, ...]) -> None:
        """Make it, with what its installations are on that machine."""
        await self._on(self._create(mounts))

    async def _create(self, mounts: tuple[Mount, ...]) -> None:
        sources = {str(number): each.source for number, each in enumerate(mounts) if not each.there}
        if writable := [each.source for each in mounts if each.writable and not each.there]:
            raise SandboxError(f"{writable[0]} cannot be written to over SSH; only what is read can be mounted")
        digest = await self._far.context(self._spec.task)
        spec = dataclasses.replace(self._spec, mounts=mounts)
        with tempfile.TemporaryFile() as file:
            await asyncio.to_thread(pack, sources, file)
            made = await self._far.call("create", file, key=self._key, spec=spec, digest=digest)
        self.workdir = str(made["workdir"])
        host = {"asked": None, "applied": str(self._far.host)}
        self.limits = {**made["limits"], "host": host}

    async def _on(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._aside.run(work)

    async def _call(self, order: str, body: IO[bytes] | None = None, **arguments: Any) -> dict[str, Any]:
        if self._stopped:
            raise SandboxError(f"sandbox {self.id} was stopped")
        return await self._on(self._far.call(order, body, key=self._key, **arguments))

    async def enter(self, phase: PhaseName, network: Network, hosts: Sequence[str] = ()) -> None:
        """Kill every process of the phase before, prove them dead, then switch to `network`; files stay."""
        self._forget_doors()
        await self._call("enter", phase=phase, network=network, hosts=tuple(hosts))
        self._network = network

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
        full = dict(env or {})
        ended = await self._call("exec", argv=list(argv), stdin=stdin, env=full, cwd=cwd, user=user, timeout=timeout)
        return ExecResult(**ended)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> FarProcess:
        """Start a command and return it alive."""
        run = f"{self._key}-{next(self._runs)}"
        await self._call("spawn", run=run, argv=list(argv), env=dict(env or {}), cwd=cwd, user=user)
        process = FarProcess(self._far, self._aside, run)
        await self._on(process.open())
        return process

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory to the absolute path `target`, making parents; links out of it are refused."""
        with tempfile.TemporaryFile() as file:
            try:
                await asyncio.to_thread(pack, {source.name: source}, file)
            except OSError as error:
                raise SandboxError(f"{source} cannot be copied to {target}: {error.strerror or error}") from error
            await self._call("upload", file, target=target, name=source.name)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory out; links are not followed. Raises: FileNotFoundError when it is not there."""
        if self._stopped:
            raise SandboxError(f"sandbox {self.id} was stopped")
        with tempfile.TemporaryFile() as file:
            await self._on(self._far.fetch("download", None, file, key=self._key, source=source))
            file.seek(0)
            await asyncio.to_thread(unpack, file, target)

    async def remove(self, path: str) -> None:
        """Remove a file or directory, running nothing of the sandbox's; nothing happens when it is not there."""
        await self._call("remove", path=path)

    async def reach(self, endpoint: Endpoint) -> str:
        """Make `endpoint` reachable in this phase and return its URL as seen from inside (no path, no slash)."""
        if self._network == "none":
            raise SandboxError('this phase has network "none"; enter it with "proxy" to reach an endpoint')
        number = next(_doors)
        self._far.ports[number] = await endpoint.port()
        self._doors.append(number)
        return str((await self._call("reach", number=number))["url"])

    def _forget_doors(self) -> None:
        for number in self._doors:
            self._far.ports.pop(number, None)
        self._doors.clear()

    async def stop(self) -> None:
        """Kill everything and remove everything; safe to call twice and after a failed start."""
        self._stopped = True
        self._forget_doors()
        try:
            await self._on(self._far.call("stop", key=self._key))
        except SandboxError:
            # Without a connection the far side ends by itself, with all it made; until then it may be there.
            if self._far.lost is None:
                raise
            await self._stop_anew()
        finally:
            self._slot.free()

    async def _stop_anew(self) -> None:
        """Remove it over a connection of its own. Raises: SandboxError when it is not seen gone."""
        why = "its far side does not end"
        try:
            if await asyncio.to_thread(self._again):
                return
        except SandboxError as error:
            why = str(error)
        raise SandboxError(f"sandbox {self.id} could not be removed, the next start tries again: {why}")


class FarProcess:
    """A live process on a far machine, as contracts.Process says; each of its streams is one of the connection's."""

    def __init__(self, far: Far, aside: Aside, run: str) -> None:
        self._far = far
        self._aside = aside
        self._run = run
        self._streams: dict[str, Stream] = {}
        self._end: asyncio.Future[dict[str, Any]] | None = None

    async def open(self) -> None:
        """Open its streams; on the connections' loop."""
        for name in ("stdin", "stdout", "stderr"):
            self._streams[name] = self._far.open(name, run=self._run)
            if name != "stdin":
                self._streams[name].end()
        self._end = asyncio.ensure_future(self._far.call("wait", run=self._run))
        # Nobody may ever ask.
        self._end.add_done_callback(lambda end: end.cancelled() or end.exception())

    async def write(self, data: bytes) -> None:
        """Write to stdin and drain. Raises: BrokenPipeError when the process is gone."""
        await self._aside.run(self._streams["stdin"].write(data))

    async def close_stdin(self) -> None:
        """Close stdin."""

        async def end() -> None:
            self._streams["stdin"].end()

        await self._aside.run(end())

    async def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stdout as soon as there are any; b"" at its end. Raises: SandboxError."""
        return await self._aside.run(self._read("stdout", limit))

    async def read_stderr(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stderr as soon as there are any; b"" at its end."""
        return await self._aside.run(self._read("stderr", limit))

    async def _read(self, name: str, limit: int) -> bytes:
        try:
            return await self._streams[name].read(limit)
        except ConnectionError as error:
            # What a lost connection ends is not at its end; to tell so once is enough.
            if self._far.lost is not None and name == "stdout":
                raise SandboxError(self._far.lost) from error
            return b""

    async def wait(self) -> int:
        """Wait for the end and return the exit code (negative: the signal). Raises: SandboxError without connection."""
        assert self._end is not None, "it was not opened"
        return int((await self._aside.run(_shielded(self._end)))["code"])

    async def kill(self) -> None:
        """Kill the process and everything it started; return when they are dead."""
        await self._aside.run(self._far.call("kill", run=self._run))
        await self.close_stdin()


async def _shielded(end: asyncio.Future[T]) -> T:
    return await asyncio.shield(end)
