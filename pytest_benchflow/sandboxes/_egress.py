"""Be the way out of a sandbox to the internet, or to some hosts of it: an HTTP proxy, on the host, for one phase.

Names are resolved here and the address that was looked at is the one connected to, so that no name leads back to this
machine. Where the host has a proxy of its own, that one resolves what the host cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from pytest_benchflow.sandboxes._addresses import why_refused
from pytest_benchflow.sandboxes._allowlist import why_not_listed
from pytest_benchflow.sandboxes._hostproxy import find_host_proxy
from pytest_benchflow.sandboxes._private import why_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_benchflow.sandboxes._addresses import Address
    from pytest_benchflow.sandboxes._hostproxy import HostProxy

# Each takes two of this process's descriptors, of which it may have no more than 1024 for all its rollouts.
_MAX_CONNECTIONS = 64
_MAX_HEAD = 64 << 10
_CHUNK = 64 << 10
_HEAD_SEC = 60.0
_LOOKUP_SEC = 20.0
_LOOKUP_BESIDE_A_PROXY_SEC = 2.0
_CONNECT_SEC = 15.0
_RETRY_SEC = 0.1
_LINGER_SEC = 1.0
_HOST = re.compile(r"[a-z0-9._:-]{1,255}")
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Where a line ends is not for whoever reads it next to decide: many take a bare LF for an end, and we do not.
_HEADER = re.compile(rf"{_WORD}:[^\r\n\0]*")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
# Between two neighbours only (RFC 9110, 7.6.1), and what is written anew.
_DROPPED = frozenset(
    ("connection", "proxy-connection", "proxy-authorization", "keep-alive", "te", "trailer", "upgrade", "host")
)

# A network that looks into TLS is trusted by the host's own list only, which pip, uv and node do not read unasked.
_TRUST_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_TRUST_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")

WITH_EGRESS = ("public", "allowlist")  # the networks that lead through one

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _RefusalError(Exception):
    """An answer other than what was asked for; the text says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    host: str
    port: int
    path: str = ""
    version: str = "HTTP/1.1"
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = 0  # of the body; None: it comes in chunks

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 and not self.is_tunnel else f"{host}:{self.port}"

    def head(self, proxy: HostProxy | None) -> bytes:
        target = self.path if proxy is None else f"http://{self.authority}{self.path}"
        own = [("Host", self.authority), ("Connection", "close")]
        if proxy is not None and proxy.authorization:
            own.append(("Proxy-Authorization", proxy.authorization))
        lines = [
            f"{self.method} {target} {self.version}",
            *(f"{name}: {value}" for name, value in (*own, *self.headers)),
        ]
        return "\r\n".join((*lines, "", "")).encode("latin-1")


def egress_env(port: int) -> dict[str, str]:
    """Return the variables that lead programs to an egress on a port of the sandbox's, and to the host's trust."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    trust = next(filter(os.path.exists, _TRUST_FILES), None)
    return {
        **dict.fromkeys(names, f"http://127.0.0.1:{port}"),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
        **(dict.fromkeys(_TRUST_VARIABLES, trust) if trust else {}),
    }


def look_up(host: str) -> list[Address]:
    """Return the addresses of a name or number as the host sees them. Raises: OSError, UnicodeError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found))


class Egress:
    """Serves one listening socket from its making until `close`; `resolve` runs in a thread.

    With `hosts` it leads to these alone, and to no address that is this machine's own either; `setup` is for what we
    install and build, which fetches packages from where this host does.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        hosts: Sequence[str] | None = None,
        setup: bool = False,
        resolve: Callable[[str], Sequence[Address]] | None = None,
        refuse: Callable[[Address], str | None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._hosts = hosts
        self._setup = setup
        self._resolve = resolve or look_up
        self._refuse = refuse or why_refused
        # Its own threads: a name that takes long to resolve must not hold up the copies of other rollouts.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="benchflow-egress")
        self._serving: dict[asyncio.Task[None], socket.socket] = {}
        self._waiting: asyncio.TimerHandle | None = None
        self._closed = False
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    async def close(self) -> None:
        """Stop listening and cut every connection; safe to call twice."""
        self._closed = True
        self._loop.remove_reader(self._listener)
        if self._waiting is not None:
            self._waiting.cancel()
        self._listener.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for task in self._serving:
            task.cancel()
        while self._serving:
            await asyncio.wait(self._serving)
            await asyncio.sleep(0)  # the transports close their sockets in the loop's next turn

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # this process has no descriptor left
            self._loop.remove_reader(self._listener)
            self._waiting = self._loop.call_later(_RETRY_SEC, self._loop.add_reader, self._listener, self._accept)
            return
        task = self._loop.create_task(self._serve(client))
        self._serving[task] = client
        task.add_done_callback(self._served)
        if len(self._serving) >= _MAX_CONNECTIONS:
            self._loop.remove_reader(self._listener)  # more wait in the listener's queue

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.pop(task).close()
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

    async def _serve(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client, limit=_MAX_HEAD)
        try:
            await self._answer(reader, writer)
            writer.close()
            await writer.wait_closed()
        except (OSError, EOFError):  # either end is gone or too slow, which the other sees by itself
            return
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            remote, proxy = await self._connect(request)
        except _RefusalError as refusal:
            await _refuse(reader, writer, refusal)
            return
        try:
            if request.is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _tunnel((reader, writer), remote)
            else:
                remote[1].write(request.head(proxy))
                await _exchange((reader, writer), remote, request.length)
        finally:
            remote[1].transport.abort()

    async def _connect(self, request: _Request) -> tuple[Stream, HostProxy | None]:
        """Return a connection to where the request goes, and the host's proxy if it leads through one."""
        # By its name and before anything is resolved: a question to a name server says something, too.
        if self._hosts is not None and (reason := why_not_listed(request.host, self._hosts)):
            raise _RefusalError(403, reason)
        try:
            proxy = find_host_proxy("https" if request.is_tunnel else "http", request.host)
        except ValueError as error:
            raise _RefusalError(502, str(error)) from None
        addresses = await self._allowed(request.host, proxy)
        if proxy is not None:
            return await _connect_through(proxy, request), proxy
        failure: Exception = OSError(f"{request.host} has no address")
        for address in addresses:
            try:
                return await _open(str(address), request.port), None
            except OSError as error:
                failure = error
        status = 504 if isinstance(failure, TimeoutError) else 502
        raise _RefusalError(status, f"no connection to {request.authority}: {_why(failure)}")

    async def _allowed(self, host: str, proxy: HostProxy | None) -> list[Address]:
        """Return the addresses of a name that may be connected to. Raises: _RefusalError when it has only others."""
        limit = _LOOKUP_SEC if proxy is None else _LOOKUP_BESIDE_A_PROXY_SEC
        try:
            async with asyncio.timeout(limit):
                found = await self._loop.run_in_executor(self._threads, self._resolve, host)
        except (OSError, UnicodeError) as error:
            if proxy is None:
                raise _RefusalError(502, f"this host cannot resolve {host}: {_why(error)}") from None
            return []
        reasons = {address: self._refuse(address) or self._why_private(host, address) for address in found}
        allowed = [address for address, reason in reasons.items() if reason is None]
        if not allowed:
            reason = next(filter(None, reasons.values()), "it has no address")
            raise _RefusalError(403, f"{host} cannot be reached from a sandbox: {reason}")
        return allowed

    def _why_private(self, host: str, address: Address) -> str | None:
        return why_private(host, address, listed=self._hosts is not None, setup=self._setup)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number).lower()
    return (getattr(error, "strerror", None) or str(error)).lower()


async def _open(host: str, port: int, *, tls: bool = False) -> Stream:
    async with asyncio.timeout(_CONNECT_SEC):
        return await asyncio.open_connection(host, port, ssl=tls or None, limit=_MAX_HEAD)


async def _connect_through(proxy: HostProxy, request: _Request) -> Stream:
    """Connect to the host's proxy and, for a tunnel, have it connect on. Raises: _RefusalError."""
    try:
        stream = await _open(proxy.host, proxy.port, tls=proxy.tls)
    except OSError as error:
        raise _RefusalError(502, f"this host's own proxy does not answer: {_why(error)}") from None
    if not request.is_tunnel:
        return stream
    reader, writer = stream
    try:
        lines = [f"CONNECT {request.authority} HTTP/1.1", f"Host: {request.authority}"]
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        writer.write("\r\n".join((*lines, "", "")).encode("latin-1"))
        async with asyncio.timeout(_HEAD_SEC):
            words = (await reader.readuntil(b"\r\n\r\n")).split(maxsplit=2)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        words = []
    except BaseException:
        writer.transport.abort()
        raise
    if len(words) < 2 or not re.fullmatch(rb"2\d\d", words[1]):
        writer.transport.abort()
        said = words[1].decode("latin-1")[:3] if len(words) > 1 else "nothing"
        raise _RefusalError(502, f"this host's own proxy answered {said} for {request.authority}")
    return stream


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    """Read and check a request's head. Raises: EOFError when there is none, _RefusalError."""
    try:
        async with asyncio.timeout(_HEAD_SEC):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _RefusalError(431, f"the request's head is larger than {_MAX_HEAD >> 10} KiB") from None
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1") or not re.fullmatch(_WORD, words[0]):
        raise _RefusalError(400, "this is no HTTP/1 request")
    method, target, version = words
    tunnel = method == "CONNECT"
    try:
        parts = urlsplit(f"//{target}" if tunnel else target)
        host, port = parts.hostname or "", parts.port or (None if tunnel else 80)
    except ValueError:
        host, port = "", None
    if not _HOST.fullmatch(host) or port is None or not (tunnel or parts.scheme == "http"):
        raise _RefusalError(400, "this proxy takes CONNECT HOST:PORT and requests for http://HOST/PATH only")
    if tunnel:
        return _Request(method, host, port)
    path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    headers, length = _check_headers(lines)
    if length is None and version == "HTTP/1.0":
        raise _RefusalError(400, "a request of HTTP/1.0 has no body in chunks")
    return _Request(method, host, port, path, version, headers, length)


def _check_headers(lines: list[str]) -> tuple[tuple[tuple[str, str], ...], int | None]:
    """Return the headers that go on and the body's length, None for one in chunks."""
    if not all(_HEADER.fullmatch(line) for line in lines):
        raise _RefusalError(400, "the request's head holds a line that is no header")
    pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    named = {word.strip().lower() for name, value in pairs if name.lower() == "connection" for word in value.split(",")}
    kept = tuple(pair for pair in pairs if pair[0].lower() not in _DROPPED | (named - {"content-length"}))
    lengths = {value for name, value in pairs if name.lower() == "content-length"}
    codings = [value.lower() for name, value in kept if name.lower() == "transfer-encoding"]
    lengths |= set(codings)
    if len(lengths) > 1 or not all(re.fullmatch(r"[0-9]{1,15}", value) for value in lengths - {"chunked"}):
        raise _RefusalError(400, "the request does not say how long its body is, or says it twice")
    return kept, None if codings else int(next(iter(lengths), 0))


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refusal: _RefusalError) -> None:
    # Many clients show an error's first line only, so it holds the reason too.
    text = refusal.text.encode("ascii", "replace").decode()
    head = f"HTTP/1.1 {refusal.status} {text}\r\nContent-Type: text/plain\r\nContent-Length: {len(text) + 1}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n{text}\n".encode())
    await writer.drain()
    writer.write_eof()
    # Closed with a body unread, the connection would be reset and the answer lost.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SEC):
            while await reader.read(_CHUNK):
                pass


async def _tunnel(client: Stream, remote: Stream) -> None:
    """Carry bytes both ways; each direction ends by itself, an error ends both."""
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_carry(client[0], remote[1]))
            both.create_task(_carry(remote[0], client[1]))
    except* OSError:
        pass  # the caller cuts both ends


async def _exchange(client: Stream, remote: Stream, length: int | None) -> None:
    """Carry one request's body one way and the answer, up to its end, the other way."""
    sending = asyncio.create_task(_carry_body(client[0], remote[1], length))
    try:
        await _carry(remote[0], client[1])
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


async def _carry_body(source: asyncio.StreamReader, target: asyncio.StreamWriter, length: int | None) -> None:
    """Carry a body to its end and not beyond: a host's proxy would take more for a request that nobody looked at."""
    if length is not None:
        await _carry_bytes(source, target, length)
        return
    try:
        while size := await _chunk_size(source):
            target.write(b"%x\r\n" % size)
            await _carry_bytes(source, target, size)
            await _end_of_chunk(source)
            target.write(b"\r\n")
        await _skip_trailer(source)
    except (ValueError, EOFError, TimeoutError, asyncio.LimitOverrunError):
        target.transport.abort()  # the other side must not take a part for the whole
        return
    target.write(b"0\r\n\r\n")
    await target.drain()


async def _chunk_size(source: asyncio.StreamReader) -> int:
    """Read how long the next chunk is, without what may be said of it. Raises: ValueError."""
    found = _CHUNK_SIZE.fullmatch(await source.readuntil(b"\r\n"))
    if found is None:
        raise ValueError
    return int(found[1], 16)


async def _skip_trailer(source: asyncio.StreamReader) -> None:
    """Read what follows a body, which goes on no more than "trailer" does. Raises: ValueError for more than a head."""
    left = _MAX_HEAD
    async with asyncio.timeout(_HEAD_SEC):
        while (line := await source.readuntil(b"\r\n")) != b"\r\n":
            left -= len(line)
            if left < 0:
                raise ValueError


async def _end_of_chunk(source: asyncio.StreamReader) -> None:
    if await source.readexactly(2) != b"\r\n":
        raise ValueError


async def _carry_bytes(source: asyncio.StreamReader, target: asyncio.StreamWriter, count: int) -> None:
    while count and (data := await source.read(min(count, _CHUNK))):
        target.write(data)
        await target.drain()
        count -= len(data)
