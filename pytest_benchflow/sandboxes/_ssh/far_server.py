"""What runs on a far machine: the local sandbox of that machine, at the orders of whoever started it over SSH.

Standard library only. Orders come as pickles of our own making; answers are JSON, as the host believes none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import pickle
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pytest_benchflow.contracts import EndpointReport, Mount
from pytest_benchflow.errors import BenchflowError, SandboxError
from pytest_benchflow.sandboxes._frames import Frames, Stream, pump
from pytest_benchflow.sandboxes._remove import DIRECTORY, remove_entry
from pytest_benchflow.sandboxes._tar import pack, unpack_trusted

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from pytest_benchflow.contracts import Backend, Installation, Process, Sandbox, SandboxSpec
    from pytest_benchflow.tasks.task import Task


@dataclass(slots=True)
class Held:
    """A sandbox with its directory, and the door to the model in its present phase."""

    place: Path
    sandbox: Sandbox | None = None
    door: Door | None = None


class Door:
    """The host's endpoint as this side sees it: each connection goes there as a stream of its own."""

    token = ""
    mismatch: str | None = None
    rejected: str | None = None
    open_requests: tuple[str, ...] = ()
    received = 0

    def __init__(self, frames: Frames, number: int) -> None:
        self._frames = frames
        self._purpose = json.dumps({"reach": number}).encode()
        self._server: asyncio.Server | None = None
        self._jobs: set[asyncio.Task[None]] = set()

    async def port(self) -> int:
        """Tell that there is none here. Raises: SandboxError."""
        raise SandboxError("the endpoint is on another machine; it takes a socket")

    async def adopt(self, listener: socket.socket) -> None:
        """Serve a listening socket of the sandbox."""
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._serve, sock=listener, start_serving=False)
        # Started when it is known: who is cancelled here leaves no server behind.
        await self._server.start_serving()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        job = asyncio.current_task()
        assert job is not None
        self._jobs.add(job)
        try:
            await pump(self._frames.open(self._purpose), reader, writer)
        finally:
            self._jobs.discard(job)

    async def close(self) -> EndpointReport:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        return EndpointReport(received=0, recorded=0)


@dataclass(slots=True)
class Run:
    """A spawned command; `started` holds it once it runs."""

    started: asyncio.Future[Process] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Server:
    """Carries out orders in a session's directory; each order is a stream."""

    def __init__(self, base: Path, backend: Backend, send: Callable[[bytes], None], over: Callable[[], None]) -> None:
        self._base = base
        self._backend = backend
        self._over = over
        self.frames = Frames(send, self._accept, first=2)
        self._held: dict[str, Held] = {}
        self._runs: dict[str, Run] = {}
        self._orders: dict[int, asyncio.Task[None]] = {}

    def _accept(self, stream: Stream, purpose: bytes) -> None:
        job = asyncio.ensure_future(self._obey(stream, purpose))
        self._orders[stream.number] = job
        job.add_done_callback(lambda _job: self._orders.pop(stream.number, None))

    async def _obey(self, stream: Stream, purpose: bytes) -> None:
        rest: IO[bytes] | None = None
        try:
            order, arguments = pickle.loads(purpose)  # noqa: S301 - the host's own
            work: Callable[..., Awaitable[Any]] = getattr(self, f"do_{order}")
            answer = await work(stream, **arguments)
            if isinstance(answer, tuple):
                answer, rest = answer
        except (BenchflowError, OSError) as error:
            kind = "FileNotFoundError" if isinstance(error, FileNotFoundError) else type(error).__name__
            answer = {"error": kind, "text": str(error)}
        except Exception as error:
            answer = {"error": "SandboxError", "text": f"{type(error).__name__}: {error}"}
        # What carries a process's bytes answers by itself.
        if answer is not None:
            with contextlib.suppress(BrokenPipeError):
                await stream.write(json.dumps(answer).encode() + b"\n")
                while rest is not None and (chunk := rest.read(1 << 16)):
                    await stream.write(chunk)
            stream.end()
        if rest is not None:
            rest.close()

    def _sandbox(self, key: str) -> Sandbox:
        held = self._held.get(key)
        if held is None or held.sandbox is None:
            raise SandboxError("the sandbox was stopped")
        return held.sandbox

    async def do_cancel(self, _stream: Stream, number: int) -> dict[str, Any]:
        """Cancel an order, and answer when it is over."""
        job = self._orders.get(number)
        if job is not None:
            job.cancel()
            await asyncio.wait([job])
        return {}

    async def do_end(self, _stream: Stream) -> None:
        """End the session: the host needs it no more."""
        self._over()

    async def do_context(self, stream: Stream, digest: str) -> dict[str, Any]:
        """Take the files that a task's environment is built from."""
        target = self._base / "contexts" / digest
        with tempfile.TemporaryFile(dir=self._base) as file:
            await _take(stream, file)
            if not target.exists():
                await asyncio.to_thread(unpack_trusted, file, target)
        return {}

    async def do_unsupported(self, _stream: Stream, task: Task, digest: str) -> dict[str, Any]:
        """Tell why a task cannot run here."""
        return {"reason": await asyncio.to_thread(self._backend.unsupported, self._here(task, digest))}

    async def do_install(
        self, _stream: Stream, installation: Installation, task: Task, digest: str, key: str
    ) -> dict[str, Any]:
        """Install an agent on this machine."""
        log = self._base / f"{key}.log"
        try:
            mounts = await self._backend.install(installation, self._here(task, digest), log)
        except BenchflowError as error:
            return {"error": type(error).__name__, "text": str(error), "log": _text(log), "log_path": str(log)}
        made = [[str(each.source), each.target, each.writable] for each in mounts]
        return {"mounts": made, "log": _text(log)}

    async def do_create(self, stream: Stream, key: str, spec: SandboxSpec, digest: str) -> dict[str, Any]:
        """Make a sandbox; what follows are the host's own files that it is given as mounts."""
        held = self._held[key] = Held(self._base / key)
        held.place.mkdir(mode=0o700)
        scratch, given = held.place / "scratch", held.place / "mounts"
        scratch.mkdir(mode=0o700)
        with tempfile.TemporaryFile(dir=self._base) as file:
            await _take(stream, file)
            await asyncio.to_thread(unpack_trusted, file, given)
        mounts = tuple(
            each if each.there else Mount(given / str(number), each.target) for number, each in enumerate(spec.mounts)
        )
        spec = dataclasses.replace(spec, task=self._here(spec.task, digest), scratch=scratch, mounts=mounts)
        try:
            held.sandbox = await self._backend.create(spec)
        except BaseException:
            await asyncio.shield(self._discard(key))
            raise
        return {"workdir": held.sandbox.workdir, "limits": dict(held.sandbox.limits)}

    def _here(self, task: Task, digest: str) -> Task:
        """Return the task with the places that its environment's files have on this machine."""
        context = self._base / "contexts" / digest / "context"
        file = task.dockerfile
        return dataclasses.replace(
            task,
            environment_dir=context if task.environment_dir is not None else None,
            path=context if task.environment_dir is None else context.parent,
            dockerfile=context / file.relative_to(task.environment_dir or task.path) if file is not None else None,
        )

    async def do_enter(self, _stream: Stream, key: str, **arguments: Any) -> dict[str, Any]:
        """Enter a phase."""
        sandbox = self._sandbox(key)
        await self._shut(self._held[key])
        await sandbox.enter(**arguments)
        return {}

    async def _shut(self, held: Held) -> None:
        door, held.door = held.door, None
        if door is not None:
            await door.close()

    async def do_exec(self, _stream: Stream, key: str, **arguments: Any) -> dict[str, Any]:
        """Run a command to its end."""
        return dataclasses.asdict(await self._sandbox(key).exec(**arguments))

    async def do_spawn(self, _stream: Stream, key: str, run: str, **arguments: Any) -> dict[str, Any]:
        """Start a command; its streams and its end are orders of their own."""
        entry = self._run(run)
        try:
            entry.started.set_result(await self._sandbox(key).spawn(**arguments))
        except BaseException as error:
            if isinstance(error, Exception):
                entry.started.set_exception(error)
                entry.started.exception()
            else:
                entry.started.cancel()
            raise
        return {}

    def _run(self, run: str) -> Run:
        # An order for a command's stream may come while the command is being started.
        return self._runs.setdefault(run, Run())

    async def do_stdin(self, stream: Stream, run: str) -> None:
        """Carry what follows to a command's stdin."""
        process = await self._run(run).started
        try:
            while data := await stream.read():
                await process.write(data)
            await process.close_stdin()
            stream.end()
        except OSError:
            stream.close()

    async def do_stdout(self, stream: Stream, run: str) -> None:
        """Carry a command's stdout."""
        await _carry((await self._run(run).started).read, stream)

    async def do_stderr(self, stream: Stream, run: str) -> None:
        """Carry a command's stderr."""
        await _carry((await self._run(run).started).read_stderr, stream)

    async def do_wait(self, _stream: Stream, run: str) -> dict[str, Any]:
        """Tell a command's exit code when it has one."""
        return {"code": await (await self._run(run).started).wait()}

    async def do_kill(self, _stream: Stream, run: str) -> dict[str, Any]:
        """Kill a command with all it started."""
        await (await self._run(run).started).kill()
        return {}

    async def do_upload(self, stream: Stream, key: str, target: str, name: str) -> dict[str, Any]:
        """Take a file or directory into a sandbox."""
        sandbox = self._sandbox(key)
        with tempfile.TemporaryDirectory(dir=self._base) as place, tempfile.TemporaryFile(dir=self._base) as file:
            await _take(stream, file)
            await asyncio.to_thread(unpack_trusted, file, Path(place))
            try:
                await sandbox.upload(Path(place, name), target)
            except SandboxError as error:
                # The host knows the file by another place.
                raise SandboxError(str(error).replace(f"{place}/", "")) from error
        return {}

    async def do_download(self, _stream: Stream, key: str, source: str) -> tuple[dict[str, Any], IO[bytes]]:
        """Return a file or directory of a sandbox."""
        sandbox = self._sandbox(key)
        with tempfile.TemporaryDirectory(dir=self._base) as place:
            await sandbox.download(source, Path(place, "it"))
            file = tempfile.TemporaryFile(dir=self._base)  # noqa: SIM115 - closed when it has been sent
            await asyncio.to_thread(pack, {"it": Path(place, "it")}, file)
        return {}, file

    async def do_remove(self, _stream: Stream, key: str, path: str) -> dict[str, Any]:
        """Remove a path in a sandbox."""
        await self._sandbox(key).remove(path)
        return {}

    async def do_reach(self, _stream: Stream, key: str, number: int) -> dict[str, Any]:
        """Open the door to the model."""
        sandbox, held = self._sandbox(key), self._held[key]
        await self._shut(held)
        held.door = Door(self.frames, number)
        return {"url": await sandbox.reach(held.door)}

    async def do_stop(self, _stream: Stream, key: str) -> dict[str, Any]:
        """Stop a sandbox and remove its files."""
        await asyncio.shield(self._discard(key))
        return {}

    async def _discard(self, key: str) -> None:
        held = self._held.get(key)
        if held is None:
            return
        await self._shut(held)
        if held.sandbox is not None:
            await held.sandbox.stop()
        await asyncio.to_thread(remove, held.place)
        self._held.pop(key, None)
        for run in [name for name in self._runs if name.startswith(f"{key}-")]:
            del self._runs[run]

    async def stop(self) -> None:
        """End all there is."""
        self.frames.lose("the session is over")
        orders = list(self._orders.values())
        for job in orders:
            job.cancel()
        await asyncio.gather(*orders, return_exceptions=True)
        for key in list(self._held):
            with contextlib.suppress(BenchflowError, OSError):
                await self._discard(key)


def capabilities(backend: Backend) -> dict[str, Any]:
    """Return what a backend can do as JSON takes it."""
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in dataclasses.asdict(backend.capabilities).items()
    }


def remove(place: Path) -> None:
    """Remove a directory, whatever is in it."""
    import os

    parent = os.open(place.parent, DIRECTORY)
    try:
        with contextlib.suppress(FileNotFoundError):
            remove_entry(parent, place.name)
    finally:
        os.close(parent)


async def _take(stream: Stream, file: IO[bytes]) -> None:
    while data := await stream.read(1 << 20):
        file.write(data)
    file.seek(0)


async def _carry(read: Callable[[], Awaitable[bytes]], stream: Stream) -> None:
    with contextlib.suppress(BrokenPipeError):
        while data := await read():
            await stream.write(data)
    stream.end()


def _text(path: Path) -> str | None:
    return path.read_text("utf-8", errors="replace") if path.is_file() else None
