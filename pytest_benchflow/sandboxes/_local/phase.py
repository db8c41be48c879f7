"""One phase of a local sandbox: a running bubblewrap with its own namespaces, and the way into it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._local.seccomp import program
from pytest_benchflow.sandboxes._pipes import Pipe, Pipes, close_all

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Turns three descriptors (control, info, seccomp rules) into bubblewrap's command line.
Command = Callable[[int, int, int], Sequence[str]]

_T = TypeVar("_T")
_START_SEC = 20.0
_DEATH_SEC = 20.0
_MAX_MESSAGE = 4096
_MESSAGES_A_TURN = 64


class Phase:
    """The processes of one phase. Everything in it dies with its process 1, and that with this Python process."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, info: int, log: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._control = control
        self._info = info
        self._log = log
        self.init: int | None = None  # the host's number of the sandbox's process 1
        self._init_fd: int | None = None
        self._outer_fd = os.pidfd_open(process.pid)
        self._ending: asyncio.Task[None] | None = None
        self._runs = 0
        self._exits: dict[str, asyncio.Future[int]] = {}
        self._kills: dict[str, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._listening: asyncio.Future[socket.socket] | None = None
        self._gone = False
        self._loop.add_reader(control, self._receive)

    @classmethod
    async def start(cls, command: Command, log: Path, hold: Callable[[int], None]) -> Phase:
        """Start bubblewrap and wait until commands can run; a start that fails or is cancelled leaves nothing.

        `command` gets the numbers of the descriptors it passes on; `hold`, called in a thread, puts process 1 under
        limits before anything runs. Raises: SandboxError.
        """
        phase = cls(*_open(command, log), log)
        try:
            async with asyncio.timeout(_START_SEC):
                await phase._get_ready(hold)
        except BaseException as error:
            await asyncio.shield(phase.end())
            if isinstance(error, TimeoutError):
                raise SandboxError(f"the sandbox did not start in {_START_SEC:.0f} s{phase._complaint()}") from error
            if isinstance(error, OSError):
                raise SandboxError(f"the sandbox's limits could not be applied: {error}") from error
            raise
        return phase

    async def _get_ready(self, hold: Callable[[int], None]) -> None:
        await self._readable(self._info, _START_SEC)
        self._find_init()
        if self.init is not None:
            # Joining a control group waits for the kernel's other processors: meanwhile the interpreter starts.
            held = self._loop.run_in_executor(None, hold, self.init)
            try:
                await asyncio.shield(held)
            except asyncio.CancelledError:
                await asyncio.wait([held])
                raise
        await self._ready

    def _find_init(self) -> None:
        """Take hold of the sandbox's process 1 once bubblewrap has told its number."""
        os.set_blocking(self._info, False)
        with contextlib.suppress(BlockingIOError, ValueError, ProcessLookupError):
            told = os.read(self._info, 4096).decode()
            self.init = int(told.partition('"child-pid":')[2].split(",")[0].strip(" }\n"))
            self._init_fd = os.pidfd_open(self.init)

    def _receive(self) -> None:
        # Not until there are none: a sandbox that floods us must not hold up the loop.
        for _turn in range(_MESSAGES_A_TURN):
            try:
                message, descriptors, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, 4, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                close_all(*descriptors)
                self._lost()
                return
            self._understand(message.decode(errors="replace"), descriptors)

    def _understand(self, message: str, descriptors: list[int]) -> None:
        """Take an answer; whatever is not one we wait for counts for nothing, as the sandbox may say what it likes."""
        word, _, rest = message.partition(" ")
        if word == "ready":
            _settle(self._ready, None)
        elif word in ("listening", "failed") and self._listening is not None and not self._listening.done():
            if word == "listening" and len(descriptors) == 1 and (listener := _as_listener(descriptors[0])):
                descriptors.clear()
                self._listening.set_result(listener)
            else:
                self._listening.set_exception(SandboxError(f"no port for the proxy inside the sandbox: {rest[:200]}"))
        elif word in ("exit", "killed"):
            run, _, number = rest.partition(" ")
            waiting = (self._exits if word == "exit" else self._kills).pop(run, None)
            if waiting is not None:
                _settle(waiting, int(number) if re.fullmatch(r"-?[0-9]{1,9}", number) else -signal.SIGKILL)
        close_all(*descriptors)

    def _lost(self) -> None:
        """The other end is closed: process 1 is ending, and with it everything inside."""
        self._gone = True
        self._loop.remove_reader(self._control)
        failure = SandboxError(f"the sandbox ended{self._complaint()}")
        # Nothing inside can kill process 1, so when we did not either, it is no command's own end.
        unasked = self._ending is None
        for ended in self._exits.values():
            if unasked:
                _fail(ended, SandboxError("the sandbox ended in the middle of the rollout: it was killed from outside"))
            else:
                _settle(ended, -signal.SIGKILL)
        for killed in self._kills.values():
            _settle(killed, -signal.SIGKILL)
        self._exits.clear()
        self._kills.clear()
        for pending in (self._ready, self._listening):
            if pending is not None:
                _fail(pending, failure)

    def _complaint(self) -> str:
        with contextlib.suppress(OSError):
            text = self._log.read_text(errors="backslashreplace").strip()
            return f": {text[-600:]}" if text else ""
        return ""

    async def _send(self, message: str, descriptors: Sequence[int] = ()) -> None:
        while not self._gone:
            try:
                socket.send_fds(self._control, [message.encode()], list(descriptors))
            except BlockingIOError:
                await asyncio.sleep(0.005)
            except OSError:
                break
            else:
                return
        raise SandboxError(f"the sandbox is gone{self._complaint()}")

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, ids: str, with_stdin: bool
    ) -> LocalProcess:
        """Start a command; `ids` is "uid gid", empty to stay who process 1 is."""
        self._runs += 1
        run = str(self._runs)
        with contextlib.ExitStack() as theirs:
            request = _own(theirs, os.memfd_create("request", os.MFD_CLOEXEC))
            _write_request(request, argv, env=env, cwd=cwd, ids=ids)
            pipes, passed = Pipes(), [request]
            try:
                if with_stdin:
                    inner, outer = os.pipe()
                    pipes.stdin = Pipe(outer)
                else:
                    inner = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                passed.append(_own(theirs, inner))
                for name in ("stdout", "stderr"):
                    outer, inner = os.pipe()
                    setattr(pipes, name, Pipe(outer))
                    passed.append(_own(theirs, inner))
                self._exits[run] = ended = self._loop.create_future()
                await self._send(f"run {run}", passed)
            except BaseException as error:
                self._exits.pop(run, None)
                pipes.close()
                if isinstance(error, OSError):
                    raise SandboxError(f"no pipes for {argv[0]}: {error.strerror}") from error
                raise
        return LocalProcess(self, run, ended, pipes)

    async def kill_run(self, run: str, ended: asyncio.Future[int]) -> None:
        """Kill a command with everything it started; when that cannot be had, kill the whole phase."""
        if self._gone:
            await self.end()
            return
        killed = self._kills.setdefault(run, self._loop.create_future())
        try:
            await self._send(f"kill {run}")
            async with asyncio.timeout(5):
                left = await asyncio.shield(killed)
                await asyncio.shield(ended)
        except (TimeoutError, SandboxError):
            left = 1
        if left:
            await self.end()

    async def listen(self, port: int) -> socket.socket:
        """Return a listening socket on 127.0.0.1:`port` of the sandbox's own network."""
        listening: asyncio.Future[socket.socket] = self._loop.create_future()
        self._listening = listening
        await self._send(f"listen {port}")
        try:
            return await listening
        except asyncio.CancelledError:
            # It may have come in the same turn of the loop.
            if listening.done() and not listening.cancelled() and listening.exception() is None:
                listening.result().close()
            raise

    async def end(self) -> None:
        """Kill everything and return when it is dead, also when this call is cancelled meanwhile; safe to call again.

        Raises: SandboxError when the kernel does not let it die.
        """
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, self._info)
            closing.callback(self._control.close)
            closing.callback(self._loop.remove_reader, self._control)
            closing.callback(os.close, self._outer_fd)
            if self._init_fd is None:
                # Killed before it told its child's number, bubblewrap could leave that child behind.
                with contextlib.suppress(TimeoutError):
                    await self._readable(self._info, 2)
                self._find_init()
            if self._init_fd is None:
                _kill(self._outer_fd)
            else:
                closing.callback(os.close, self._init_fd)
                _kill(self._init_fd)
                # Process 1 of a namespace has ended only when all others in it have.
                await self._wait_for(self._init_fd)
            await self._wait_for(self._outer_fd)
            self._process.wait()
            if not self._gone:
                self._lost()

    async def _wait_for(self, pidfd: int) -> None:
        try:
            await self._readable(pidfd, _DEATH_SEC)
        except TimeoutError as error:
            raise SandboxError(f"a process of the sandbox still lives {_DEATH_SEC:.0f} s after SIGKILL") from error

    async def _readable(self, descriptor: int, limit: float) -> None:
        done = self._loop.create_future()
        self._loop.add_reader(descriptor, lambda: _settle(done, None))
        try:
            async with asyncio.timeout(limit):
                await done
        finally:
            self._loop.remove_reader(descriptor)


def _open(command: Command, log: Path) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start bubblewrap; return it with our ends of its control socket and its info pipe. Raises: SandboxError."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        try:
            control, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(control.close)
            theirs.callback(inner.close)
            control.setblocking(False)
            info, info_inner = os.pipe()
            ours.callback(os.close, info)
            rules = os.memfd_create("seccomp", os.MFD_CLOEXEC)
            passed = (inner.fileno(), _own(theirs, info_inner), _own(theirs, rules))
            os.write(rules, program())
            os.lseek(rules, 0, os.SEEK_SET)
            with log.open("wb") as errors:
                process = subprocess.Popen(
                    command(*passed),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=passed,
                    env={},
                    cwd="/",
                    start_new_session=True,  # or it could type into the terminal of whoever runs pytest
                )
        except OSError as error:
            raise SandboxError(f"bubblewrap could not be started: {error}") from error
        ours.pop_all()
    return process, control, info


class LocalProcess:
    """A live process in a local sandbox, as contracts.Process says."""

    def __init__(self, phase: Phase, run: str, ended: asyncio.Future[int], pipes: Pipes) -> None:
        self._phase = phase
        self._run = run
        self._ended = ended
        self.pipes = pipes

    async def write(self, data: bytes) -> None:
        """Write to stdin and drain. Raises: BrokenPipeError when the process is gone."""
        if self.pipes.stdin is None:
            raise BrokenPipeError("the process has no stdin")
        await self.pipes.stdin.write(data)

    async def close_stdin(self) -> None:
        """Close stdin."""
        if self.pipes.stdin is not None:
            self.pipes.stdin.close()

    async def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stdout as soon as there are any; b"" at its end."""
        return await self.pipes.stdout.read(limit) if self.pipes.stdout else b""

    async def read_stderr(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stderr as soon as there are any; b"" at its end."""
        return await self.pipes.stderr.read(limit) if self.pipes.stderr else b""

    async def wait(self) -> int:
        """Wait for the end and return the exit code (negative: the signal). Raises: SandboxError."""
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        """Kill the process and everything it started; return when they are dead."""
        await asyncio.shield(self._phase.kill_run(self._run, self._ended))
        await self.close_stdin()

    def close(self) -> None:
        """Free the host's ends of its pipes; safe to call twice."""
        self.pipes.close()


def _settle(waiting: asyncio.Future[_T], value: _T) -> None:
    if not waiting.done():
        waiting.set_result(value)


def _fail(waiting: asyncio.Future[Any], failure: Exception) -> None:
    if not waiting.done():
        waiting.set_exception(failure)
        waiting.exception()  # nobody may be waiting, which is no mistake


def _own(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _as_listener(descriptor: int) -> socket.socket | None:
    """Take a descriptor over if it is a listening TCP socket, and leave it alone if not."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        return None
    kind = (found.family, found.type, found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    if kind == (socket.AF_INET, socket.SOCK_STREAM, 1):
        return found
    found.detach()
    return None


def _write_request(descriptor: int, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, ids: str) -> None:
    fields = [cwd, ids, str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
    for field in fields:
        if "\0" in field:
            raise SandboxError(f"{field!r} holds a NUL byte, which no command line or variable can")
    with open(descriptor, "wb", closefd=False) as request:
        request.write("\0".join(fields).encode(errors="surrogateescape"))
    os.lseek(descriptor, 0, os.SEEK_SET)
