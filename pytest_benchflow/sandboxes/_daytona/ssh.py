"""Enter a Daytona sandbox by SSH: one connection with a token of its own, and commands with bytes both ways."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import ipaddress
import shlex
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.records.files import write_whole
from pytest_benchflow.settings import cache_dir

if TYPE_CHECKING:
    from pathlib import Path

# Without a number of its own a token is good for an hour, which is less than an agent may take.
ACCESS_MINUTES = 2880
ALIVE_INTERVAL_SEC = 30
ALIVE_COUNT_MAX = 12
_CONNECT_SEC = 30.0
_PART = 1 << 15


@dataclass(frozen=True, slots=True)
class Address:
    """Where a token leads; it is the user's name and all of the secret."""

    host: str
    port: int
    token: str


def parse_command(command: str, token: str) -> Address:
    """Return where the `ssh` command line of an answer leads. Raises: SandboxError."""
    words, port = shlex.split(command), 22
    if "-p" in words[:-1]:
        given = words[words.index("-p") + 1]
        port = int(given) if given.isdigit() else 0
    user, at, host = words[-1].rpartition("@") if words else ("", "", "")
    if words[:1] != ["ssh"] or not at or not host or not 0 < port < 65536 or user != token:
        raise SandboxError(f"Daytona's SSH command is not understood: {command.replace(token, '***')[:200]}")
    return Address(host, port, token)


class SshLink:
    """A connection; commands run side by side in it. It breaks as a whole, and `broken` then says why."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._alive = asyncio.create_task(self._watch())

    @classmethod
    async def connect(cls, address: Address) -> SshLink:
        """Connect. Raises: SandboxError without the token."""
        try:
            return cls(await asyncio.to_thread(_connect, address))
        except SandboxError:
            raise
        except Exception as error:
            said = str(error).replace(address.token, "***") or type(error).__name__
            raise SandboxError(f"no SSH connection to {address.host}:{address.port}: {said}") from None

    async def _watch(self) -> None:
        """Ask for a sign of life, as ServerAliveInterval and ServerAliveCountMax do; a refusal is one."""
        while self._transport.is_active():
            await asyncio.sleep(ALIVE_INTERVAL_SEC)
            asking = asyncio.ensure_future(
                asyncio.to_thread(self._transport.global_request, "keepalive@openssh.com", None, True)
            )
            try:
                await asyncio.wait([asking], timeout=ALIVE_INTERVAL_SEC * ALIVE_COUNT_MAX)
                if not asking.done():
                    self._transport.close()
            finally:
                asking.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def is_active(self) -> bool:
        """Tell whether commands can be started."""
        return bool(self._transport.is_active())

    async def spawn(self, command: str) -> SshProcess:
        """Start a shell command. Raises: SandboxError."""
        try:
            channel = await asyncio.to_thread(self._transport.open_session, timeout=_CONNECT_SEC)
            process = SshProcess(channel)
            await asyncio.to_thread(channel.exec_command, command)
        except Exception as error:
            raise SandboxError(f"a command could not be started by SSH: {error or type(error).__name__}") from error
        return process

    async def close(self) -> None:
        """End the connection and all that runs in it; safe to call twice."""
        self._alive.cancel()
        await asyncio.gather(self._alive, return_exceptions=True)
        await asyncio.to_thread(self._transport.close)


class _Wake:
    """What paramiko sets when there is something to read, from its own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        self._is_set = False
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.clear)

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self) -> None:
        if not self._is_set:
            await self._event.wait()


class SshProcess:
    """A command in a channel, as contracts.Process says; `kill` ends the channel, and what heeds that."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        loop = asyncio.get_running_loop()
        self._out, self._err, self._end = _Wake(loop), _Wake(loop), _Wake(loop)
        channel.in_buffer.set_event(self._out)
        channel.in_stderr_buffer.set_event(self._err)
        channel.status_event = _Both(channel.status_event, self._end)

    async def write(self, data: bytes) -> None:
        """Write to stdin. Raises: BrokenPipeError when the process is gone."""
        for start in range(0, len(data), _PART):
            try:
                await asyncio.to_thread(self._channel.sendall, data[start : start + _PART])
            except OSError as error:
                raise BrokenPipeError("the process is gone") from error

    async def close_stdin(self) -> None:
        """Close stdin."""
        with contextlib.suppress(OSError, EOFError):
            await asyncio.to_thread(self._channel.shutdown_write)

    async def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stdout as soon as there are any; b"" at its end."""
        await self._out.wait()
        return bytes(await asyncio.to_thread(self._channel.recv, limit))

    async def read_stderr(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stderr as soon as there are any; b"" at its end."""
        await self._err.wait()
        return bytes(await asyncio.to_thread(self._channel.recv_stderr, limit))

    async def wait(self) -> int:
        """Wait for the end and return the exit code; -1 when the connection was lost first."""
        await self._end.wait()
        return int(self._channel.exit_status)

    async def kill(self) -> None:
        """End the channel: the command's input ends, and it is hung up."""
        await asyncio.to_thread(self._channel.close)


class _Both:
    """An event of paramiko's that tells us, too."""

    def __init__(self, event: Any, wake: _Wake) -> None:
        self._event = event
        self._wake = wake
        if event.is_set():
            wake.set()

    def set(self) -> None:
        self._event.set()
        self._wake.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)


def _connect(address: Address) -> Any:
    paramiko: Any = importlib.import_module("paramiko")
    connection = socket.create_connection((address.host, address.port), timeout=_CONNECT_SEC)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport = paramiko.Transport(connection)
    except BaseException:
        connection.close()
        raise
    try:
        transport.start_client(timeout=_CONNECT_SEC)
        _check_host(paramiko, transport.get_remote_server_key(), address, cache_dir() / "daytona_hosts")
        try:
            transport.auth_none(address.token)
        except paramiko.BadAuthenticationType:
            transport.auth_password(address.token, "")
    except BaseException:
        transport.close()
        raise
    return transport


def _check_host(paramiko: Any, key: Any, address: Address, known: Path) -> None:
    """Trust a gateway's key when it is first seen, and only that one afterwards. Raises: SandboxError."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(address.host).is_loopback:
            return
    name = address.host if address.port == 22 else f"[{address.host}]:{address.port}"
    kept = _kept_keys(paramiko, known, name) or _keep_key(paramiko, key, name, known)
    # One of another kind is another key, too: who listens in between would only have to offer that.
    if key not in kept:
        raise SandboxError(
            f"the SSH gateway {name} shows another key than before; if that is right, remove its line from {known}"
        )


def _kept_keys(paramiko: Any, known: Path, name: str) -> list[Any]:
    hosts = paramiko.HostKeys()
    if known.is_file():
        hosts.load(str(known))
    return list((hosts.lookup(name) or {}).values())


def _keep_key(paramiko: Any, key: Any, name: str, known: Path) -> list[Any]:
    """Keep a key, unless another connection kept one for this gateway since we looked; return what is kept."""
    known.parent.mkdir(parents=True, exist_ok=True)
    with known.with_name(f".{known.name}.lock").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if kept := _kept_keys(paramiko, known, name):
            return kept
        before = known.read_bytes() if known.is_file() else b""
        gap = b"" if before.endswith(b"\n") or not before else b"\n"
        line = f"{name} {key.get_name()} {key.get_base64()}\n"
        # Whoever reads has no turn.
        write_whole(known, [before, gap, line.encode()])
        return [key]
