"""Our side of a far machine: its connection, which is made again when it breaks, and the orders that go over it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import pickle
import secrets
import tempfile
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any

from pytest_benchflow import errors
from pytest_benchflow.contracts import Capabilities
from pytest_benchflow.errors import BenchflowError, SandboxError
from pytest_benchflow.sandboxes._frames import Frames, Stream, pump
from pytest_benchflow.sandboxes._ssh.connect import LoginError, connect, run
from pytest_benchflow.sandboxes._ssh.far_ship import command, ship, take_back
from pytest_benchflow.sandboxes._ssh.link import Link
from pytest_benchflow.sandboxes._ssh.machine import reap_line
from pytest_benchflow.sandboxes._ssh.machine_scripts import FREE
from pytest_benchflow.sandboxes._ssh.pipe import SshPipe
from pytest_benchflow.sandboxes._tar import pack

if TYPE_CHECKING:
    from pytest_benchflow.sandboxes._ssh.far_ship import Machine
    from pytest_benchflow.sandboxes._ssh.hosts import SshHost
    from pytest_benchflow.tasks.task import Task

GREETING = b"\nbenchflow-far "
_GREET_SEC = 60.0
_TELL_SEC = 15.0
_AGAIN_SEC = (0.1, 0.5, 1, 2, 5)
# Less than what the far side waits for us before it ends all.
_GIVE_UP_SEC = 90.0


class _RefusedError(SandboxError):
    """The far side answered that it cannot go on."""


class Far:
    """One far machine with the process there that makes our sandboxes. Everything runs on one loop."""

    def __init__(self, host: SshHost, machine: Machine, client: Any) -> None:
        self.host = host
        self.machine = machine
        self.capabilities = Capabilities(networks=frozenset(), limits=frozenset(), root=False)
        self.unavailable: str | None = None  # why no sandbox can be isolated there
        self.lost: str | None = None
        self.slots = host.slots or 1
        self.ports: dict[int, int] = {}  # of endpoints here, by the number of their door there
        self.reconnected = 0
        self._client = client
        self._session = secrets.token_hex(8)
        self._link = Link(self._deliver)
        self._frames = Frames(self._link.send, self._accept)
        self._pipe: SshPipe | None = None
        self._head: bytearray | None = None
        self._greeted: asyncio.Future[dict[str, Any]] | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._contexts: dict[str, asyncio.Future[None]] = {}
        self._closing = False

    @classmethod
    async def start(cls, host: SshHost, client: Any, machine: Machine) -> Far:
        """Start our program on a machine that is connected to and has it. Raises: SandboxError."""
        far = cls(host, machine, client)
        try:
            facts = await far._begin()
        except BaseException:
            client.close()
            raise
        far.unavailable = facts["unavailable"]
        found: dict[str, Any] = facts["capabilities"]
        sets: dict[str, Any] = {key: frozenset(value) for key, value in found.items() if isinstance(value, list)}
        far.capabilities = Capabilities(**{**found, **sets})
        far.slots = host.slots or int(facts["processors"])
        far._keep(far._look_after())
        return far

    def _keep(self, work: Any) -> None:
        job = asyncio.ensure_future(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _begin(self) -> dict[str, Any]:
        """Start the command that carries our bytes, and say how far we are."""
        self._head = bytearray()
        self._greeted = asyncio.get_running_loop().create_future()
        line = command(self.machine, "connect", self._session)
        pipe: SshPipe | None = None

        def heard(data: bytes) -> None:
            if self._pipe is pipe:
                self._hear(data)

        pipe = await SshPipe.start(self._client, line, heard)
        self._pipe = pipe
        pipe.write(json.dumps({"received": self._link.received}).encode() + b"\n")
        async with asyncio.timeout(_GREET_SEC):
            return await self._greeted

    def _hear(self, data: bytes) -> None:
        if not data:
            self._broken("it was closed")
        elif self._head is None:
            self._take(data)
        else:
            self._head += data
            _, found, rest = bytes(self._head).partition(GREETING)
            if not found or b"\n" not in rest or self._greeted is None:
                return
            line, _, rest = rest.partition(b"\n")
            facts = json.loads(line)
            self._head = None
            if "failed" in facts:
                self._greeted.set_exception(_RefusedError(f"{self.host}: {facts['failed']}"))
                return
            assert self._pipe is not None
            self._link.attach(self._pipe.write, int(facts["received"]))
            self._greeted.set_result(facts)
            self._take(rest)

    def _deliver(self, data: bytes) -> None:
        self._frames.feed(data)

    def _take(self, data: bytes) -> None:
        try:
            self._link.take(data)
        except ConnectionError as error:
            self._lose(str(error))

    def _broken(self, why: str) -> None:
        """Notice that the connection is gone; when we were through, try again."""
        pipe, self._pipe = self._pipe, None
        attached = self._link.attached
        self._link.detach()
        if pipe is not None:
            pipe.close()
        if self._greeted is not None and not self._greeted.done():
            said = bytes(self._head or b"").decode(errors="replace").strip()[-300:]
            said = (pipe.complaint if pipe else "") or said or why
            self._greeted.set_exception(SandboxError(f"{self.host}: the far side ended at once: {said}"))
        elif self._closing:
            self._lose(why)
        elif attached:
            self._keep(self._connect_again(why))

    async def _connect_again(self, why: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _GIVE_UP_SEC
        turn = 0
        while not self._closing:
            try:
                self._client.close()
                self._client = await asyncio.to_thread(connect, self.host)
                received = self._link.received
                facts = await self._begin()
                if int(facts["received"]) == 0 and received:
                    self._lose("the far side ended meanwhile")
                    return
            except Exception as error:  # whatever kind a library's error is, it is tried again
                why = str(error) or type(error).__name__
                if isinstance(error, LoginError | _RefusedError) or loop.time() > until:
                    self._lose(why)
                    return
                await asyncio.sleep(_AGAIN_SEC[min(turn, len(_AGAIN_SEC) - 1)])
                turn += 1
            else:
                self.reconnected += 1
                return

    def _lose(self, why: str) -> None:
        if self.lost is None:
            why = why.removeprefix(f"{self.host}: ")
            self.lost = f"the connection to {self.host} was lost and could not be made again: {why}"
        self._frames.lose(self.lost)
        self._link.detach()

    async def _look_after(self) -> None:
        while self.lost is None:
            await asyncio.sleep(_TELL_SEC)
            self._link.tell()

    def _accept(self, stream: Stream, purpose: bytes) -> None:
        self._keep(self._connect_model(stream, purpose))

    async def _connect_model(self, stream: Stream, purpose: bytes) -> None:
        try:
            port = self.ports[int(json.loads(purpose)["reach"])]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, ValueError, KeyError, TypeError):
            stream.close()
            return
        await pump(stream, reader, writer)

    def open(self, order: str, **arguments: Any) -> Stream:
        """Give an order and return its stream. Raises: SandboxError when the connection is lost."""
        if self.lost is not None:
            raise SandboxError(self.lost)
        buffer = io.BytesIO()
        _Pickler(buffer, 4).dump((order, arguments))
        return self._frames.open(buffer.getvalue())

    async def call(self, order: str, body: IO[bytes] | None = None, **arguments: Any) -> dict[str, Any]:
        """Give an order, with what follows it, and return its answer; when this is cancelled, so is the order.

        Raises: what the order raised, SandboxError when the connection is lost.
        """
        answer, _ = await self.fetch(order, body, None, **arguments)
        return answer

    async def fetch(
        self, order: str, body: IO[bytes] | None, rest: IO[bytes] | None, **arguments: Any
    ) -> tuple[dict[str, Any], IO[bytes] | None]:
        """Give an order as `call` does, and write what follows its answer to `rest`."""
        stream = self.open(order, **arguments)
        try:
            if body is not None:
                with contextlib.suppress(BrokenPipeError):
                    while chunk := body.read(1 << 16):
                        await stream.write(chunk)
            stream.end()
            line = bytearray()
            while b"\n" not in line:
                chunk = await stream.read(1 << 18)
                if not chunk:
                    raise ConnectionResetError("it ended without an answer")
                line += chunk
            said, _, more = bytes(line).partition(b"\n")
            if rest is not None:
                rest.write(more)
                while chunk := await stream.read(1 << 18):
                    rest.write(chunk)
        except ConnectionError as error:
            raise SandboxError(self.lost or f"{self.host}: {order} failed: {error}") from error
        except asyncio.CancelledError:
            if self.lost is None:
                with contextlib.suppress(BenchflowError):
                    await asyncio.shield(self.call("cancel", number=stream.number))
            stream.close()
            raise
        answer = json.loads(said)
        if "error" in answer:
            raise _error(answer)
        return answer, rest

    async def context(self, task: Task) -> str:
        """Bring what a task's environment is built from, once, and return the name that the far side has it by."""
        top = task.environment_dir or (task.path if task.dockerfile is not None else None)
        if top is None:
            return "none"
        with tempfile.TemporaryFile() as file:
            digest = (await asyncio.to_thread(pack, {"context": top}, file))[:32]
            known = self._contexts.get(digest)
            if known is None:
                known = self._contexts[digest] = asyncio.get_running_loop().create_future()
                try:
                    await self.call("context", file, digest=digest)
                    known.set_result(None)
                except BaseException:
                    del self._contexts[digest]
                    known.cancel()
                    raise
        await asyncio.shield(known)
        return digest

    async def close(self) -> None:
        """End the far side with all it has, and let go of the connection; safe to call twice."""
        self._closing = True
        if self.lost is None and self._link.attached:
            with contextlib.suppress(BenchflowError, TimeoutError):
                async with asyncio.timeout(10):
                    # It lets go when it has ended all.
                    stream = self.open("end")
                    with contextlib.suppress(ConnectionError):
                        await stream.read_all()
        self._lose("it was closed")
        for job in list(self._jobs):
            job.cancel()
        if self._pipe is not None:
            self._pipe.close()
        await asyncio.to_thread(self._client.close)


def reap(host: SshHost, key: str) -> bool:
    """Remove what a dead host's session left on a machine, if it made the sandbox `key`. Raises: SandboxError."""
    client = connect(host)
    try:
        machine = ship(client)
        _, plain, err = run(client, reap_line(key))
        if FREE not in plain.decode(errors="replace"):
            raise SandboxError(f"{host}: {err.decode(errors='replace').strip()[-300:]}")
        if machine.python is None:
            return True
        _, out, err = run(client, command(machine, "reap", key))
        _, found, rest = out.partition(GREETING)
        if not found:
            raise SandboxError(f"{host}: {err.decode(errors='replace').strip()[-300:]}")
        facts = json.loads(rest.partition(b"\n")[0])
        if facts.get("unavailable"):
            take_back(client, machine)
        return bool(facts.get("gone"))
    finally:
        client.close()


def _error(answer: dict[str, Any]) -> Exception:
    kind = str(answer["error"])
    if kind == "FileNotFoundError":
        return FileNotFoundError(str(answer["text"]))
    known = getattr(errors, kind, SandboxError)
    made: Exception = (known if issubclass(known, BenchflowError) else SandboxError)(str(answer["text"]))
    made.__dict__["answer"] = answer
    return made


class _Pickler(pickle.Pickler):
    """Writes paths as any version of Python can read them."""

    def reducer_override(self, thing: Any) -> Any:
        return (Path, (str(thing),)) if isinstance(thing, PurePath) else NotImplemented
