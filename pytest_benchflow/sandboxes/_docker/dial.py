"""Connect to a Docker engine where DOCKER_HOST says it is: a socket, TCP with or without TLS, or SSH."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    import ssl

USUAL = "/var/run/docker.sock"
_PROBE_SEC = 10
_TUNNEL_SEC = 30
_HEAD_LIMIT = 1 << 20
_CHUNK = 1 << 16


class ByteReader(Protocol):
    """What is read of a connection; as asyncio.StreamReader."""

    async def read(self, n: int = -1, /) -> bytes:
        """Return up to `n` bytes, b"" at the end."""

    async def readexactly(self, n: int, /) -> bytes:
        """Return `n` bytes. Raises: asyncio.IncompleteReadError."""

    async def readuntil(self, separator: bytes = b"\n", /) -> bytes:
        """Return all up to a separator, and with it. Raises: asyncio.IncompleteReadError."""


class ByteWriter(Protocol):
    """What is written to a connection; as asyncio.StreamWriter."""

    def write(self, data: bytes, /) -> None:
        """Send bytes."""

    async def drain(self) -> None:
        """Wait until there is room for more."""

    def write_eof(self) -> None:
        """Say that no more comes; what the other side has to say is read on."""

    def is_closing(self) -> bool:
        """Tell whether it is closed, or about to be."""

    async def wait_closed(self) -> None:
        """Wait until it is closed."""

    @property
    def transport(self) -> Any:
        """Return what can be aborted."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How an engine's certificate is judged, and what we show it; as the docker command reads it."""

    verify: bool
    place: Path  # holds ca.pem, cert.pem and key.pem, as far as they are there

    def file(self, name: str) -> str | None:
        """Return a file of it that is there."""
        path = self.place / name
        return str(path) if path.is_file() else None

    def context(self) -> ssl.SSLContext:
        """Return what makes TLS connections so. Raises: OSError (also for certificates that do not fit)."""
        import ssl

        made = ssl.create_default_context(cafile=self.file("ca.pem") if self.verify else None)
        if not self.verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        certificate, key = self.file("cert.pem"), self.file("key.pem")
        if certificate and key:
            made.load_cert_chain(certificate, key)
        return made


def tls_of(address: str) -> Tls | None:
    """Return how TLS is spoken with the engine at an address, None where it is not."""
    verify = bool(host_variable("DOCKER_TLS_VERIFY"))
    if not address.startswith("tcp://") or not (verify or host_variable("DOCKER_TLS")):
        return None
    return Tls(verify, Path(host_variable("DOCKER_CERT_PATH") or Path.home() / ".docker"))


def host_and_port(address: str) -> tuple[str, int]:
    """Return where a tcp:// address leads. Raises: ValueError for one that leads nowhere."""
    parts = urlsplit(address)
    if not parts.hostname:
        raise ValueError("it names no host")
    return parts.hostname, parts.port or (2376 if tls_of(address) else 2375)


def socket_of(address: str) -> str | None:
    """Return the socket of this machine through which an engine is reached, None for TCP. Raises: OSError for SSH."""
    if address.startswith("ssh://"):
        return _tunnel(address).path()
    return address.removeprefix("unix://") if address.startswith("unix://") else None


def dial(address: str) -> socket.socket:
    """Return a blocking connection to an engine. Raises: OSError, ValueError."""
    path = socket_of(address)
    if path is not None:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(_PROBE_SEC)
        try:
            made.connect(path)
        except BaseException:
            made.close()
            raise
        return made
    host, port = host_and_port(address)
    tls = tls_of(address)
    context = tls.context() if tls else None
    made = socket.create_connection((host, port), timeout=_PROBE_SEC)
    try:
        return context.wrap_socket(made, server_hostname=host) if context else made
    except BaseException:
        made.close()
        raise


async def open_stream(address: str) -> tuple[ByteReader, ByteWriter]:
    """Return a connection to an engine. Raises: OSError."""
    path = await asyncio.to_thread(socket_of, address)
    if path is not None:
        return await asyncio.open_unix_connection(path, limit=_HEAD_LIMIT)
    host, port = host_and_port(address)
    reader, writer = await asyncio.open_connection(host, port, limit=_HEAD_LIMIT)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tls = tls_of(address)
    if tls is None:
        return reader, writer
    try:
        stream = TlsStream(reader, writer, tls.context(), host)
        await stream.shake_hands()
    except BaseException:
        writer.transport.abort()
        raise
    return stream, stream


class TlsStream:
    """TLS over a plain connection, of which either direction may end before the other, as asyncio's own may not."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, host: str
    ) -> None:
        import ssl

        self._ssl = ssl
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._ready = bytearray()

    async def shake_hands(self) -> None:
        """Agree on keys. Raises: OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except self._ssl.SSLWantReadError:
                self._flush()
                await self._receive()
            else:
                self._flush()
                return

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())

    async def _receive(self) -> None:
        data = await self._reader.read(_CHUNK)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def read(self, n: int = -1, /) -> bytes:
        """Return up to `n` bytes, b"" at the end."""
        limit = n if n > 0 else _CHUNK
        while not self._ready:
            try:
                data = self._tls.read(limit)
            except self._ssl.SSLWantReadError:
                self._flush()
                await self._receive()
            except (self._ssl.SSLZeroReturnError, self._ssl.SSLEOFError):
                return b""
            else:
                return data
        data = bytes(self._ready[:limit])
        del self._ready[:limit]
        return data

    async def readexactly(self, n: int, /) -> bytes:
        """Return `n` bytes. Raises: asyncio.IncompleteReadError."""
        found = bytearray()
        while len(found) < n:
            data = await self.read(n - len(found))
            if not data:
                raise asyncio.IncompleteReadError(bytes(found), n)
            found += data
        return bytes(found)

    async def readuntil(self, separator: bytes = b"\n", /) -> bytes:
        """Return all up to a separator, and with it. Raises: asyncio.IncompleteReadError."""
        found = bytearray()
        while not found.endswith(separator):
            found += await self.readexactly(1)
        return bytes(found)

    def write(self, data: bytes, /) -> None:
        """Send bytes."""
        self._tls.write(data)
        self._flush()

    async def drain(self) -> None:
        """Wait until there is room for more."""
        await self._writer.drain()

    def write_eof(self) -> None:
        """Say that no more comes; what the other side has to say is read on."""
        # Taking leave looks for an answer at once, and stumbles over what has arrived and was not read yet.
        with contextlib.suppress(OSError):
            while data := self._tls.read(_CHUNK):
                self._ready += data
        with contextlib.suppress(OSError):
            self._tls.unwrap()
        self._flush()

    def is_closing(self) -> bool:
        """Tell whether it is closed, or about to be."""
        return self._writer.is_closing()

    async def wait_closed(self) -> None:
        """Wait until it is closed."""
        await self._writer.wait_closed()

    @property
    def transport(self) -> Any:
        """Return the plain connection's transport."""
        return self._writer.transport


@functools.cache
def _tunnel(address: str) -> _Tunnel:
    return _Tunnel(address)


class _Tunnel:
    """A socket here that ssh, with the user's own settings, leads to an engine's socket on another machine."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._turn = threading.Lock()
        self._place: Path | None = None  # stays the same when ssh is started again
        self._ssh: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def path(self) -> str:
        """Return the socket's path; ssh is started where it does not run (again). Raises: OSError."""
        with self._turn:
            if self._ssh is None or self._ssh.poll() is not None:
                self._end_ssh()
                self._start()
            return f"{self._place}/sock"

    def _start(self) -> None:
        ssh = shutil.which("ssh")
        if ssh is None:
            raise FileNotFoundError(2, "there is no ssh on this machine")
        parts = urlsplit(self._address)
        if not parts.hostname:
            raise OSError(22, "it names no host")
        place = self._place = self._place or Path(tempfile.mkdtemp(prefix="benchflow-ssh-"))
        (place / "sock").unlink(missing_ok=True)
        there = parts.path if parts.path not in ("", "/") else USUAL
        command = [ssh, "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30"]
        command += ["-o", "ControlPath=none", "-L", f"{place}/sock:{there}"]
        command += ["-p", str(parts.port)] if parts.port else []
        target = f"{parts.username}@{parts.hostname}" if parts.username else str(parts.hostname)
        said = (place / "stderr").open("wb")
        # It ends with its stdin, which is ours, however this process ends.
        self._ssh = subprocess.Popen(
            [*command, "--", target, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
        )
        said.close()
        until = time.monotonic() + _TUNNEL_SEC
        while not (place / "sock").exists():
            if self._ssh.poll() is not None or time.monotonic() > until:
                last = (place / "stderr").read_text(errors="replace").strip().splitlines()
                self._end_ssh()
                raise ConnectionError(111, f"ssh said: {last[-1][:200]}" if last else "ssh does not get there")
            time.sleep(0.05)

    def close(self) -> None:
        """End ssh and remove the socket; it is started again when it is asked for."""
        with self._turn:
            self._end_ssh()
            place, self._place = self._place, None
            if place is not None:
                shutil.rmtree(place, ignore_errors=True)

    def _end_ssh(self) -> None:
        ssh, self._ssh = self._ssh, None
        if ssh is not None:
            assert ssh.stdin is not None
            ssh.stdin.close()
            ssh.terminate()
            ssh.wait()


def hang_up(address: str) -> None:
    """Let go of what leads to an engine."""
    if address.startswith("ssh://"):
        _tunnel(address).close()
