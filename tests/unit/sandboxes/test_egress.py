"""The way out of a public phase, with local servers as the outside."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.sandboxes import _egress
from pytest_benchflow.sandboxes._addresses import is_own, why_refused
from pytest_benchflow.sandboxes._allowlist import why_not_listed
from pytest_benchflow.sandboxes._egress import Egress
from pytest_benchflow.sandboxes._hostproxy import find_host_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from pytest_benchflow.sandboxes._addresses import Address

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

V4, V6 = ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")
REFUSED = ipaddress.ip_address("127.0.0.9")


@pytest.fixture(autouse=True)
def without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextlib.asynccontextmanager
async def egress(*addresses: Address) -> AsyncIterator[int]:
    """Yield the port of one for which every name has `addresses` and only `REFUSED` is refused."""

    def resolve(host: str) -> Sequence[Address]:
        return addresses or [V4]

    listener = socket.create_server(("127.0.0.1", 0))
    made = Egress(listener, resolve=resolve, refuse=lambda address: "it is closed" if address == REFUSED else None)
    try:
        yield listener.getsockname()[1]
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def remote(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Yield the port of a server that stands for the outside."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def shout_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.read()).upper())
    await writer.drain()


class Recorder:
    """An origin server: keeps the request and answers with a text."""

    def __init__(
        self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwell"
    ) -> None:
        self.head = b""
        self.body = b""
        self.more = b""
        self.answer = answer

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = await reader.readuntil(b"\r\n\r\n")
        if b"hunked" in self.head:
            self.body = await reader.readuntil(b"\r\n0\r\n\r\n")
        elif b"Content-Length" in self.head:
            self.body = await reader.readexactly(int(self.head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
        # What comes after a request is sent right after it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                self.more = await reader.read(4096)
        writer.write(self.answer)
        await writer.drain()


async def ask(port: int, request: bytes) -> bytes:
    """Send a request and return all that comes until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize("address", [V4, V6], ids=["ipv4", "ipv6"])
def test_a_tunnel_carries_both_ways_and_ends_each_by_itself(address: Address) -> None:
    async def tunnel() -> bytes:
        async with remote(shout_at_the_end, str(address)) as there, egress(address) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"CONNECT remote.test:%d HTTP/1.1\r\nHost: remote.test\r\n\r\n" % there)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
            writer.write(b"hello " * 100_000)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

    assert asyncio.run(tunnel()) == b"HELLO " * 100_000


def test_an_ipv6_number_is_taken_in_brackets() -> None:
    origin = Recorder()

    async def get() -> bytes:
        async with remote(origin, "::1") as there, egress(V6) as port:
            return await ask(port, b"GET http://[2001:db8::7]:%d/ HTTP/1.1\r\n\r\n" % there)

    assert asyncio.run(get()) == origin.answer
    assert b"\r\nHost: [2001:db8::7]:" in origin.head


def test_a_plain_request_goes_on_as_the_origin_expects_it() -> None:
    origin = Recorder()
    request = (
        b"GET http://user:pw@remote.test:%d/path?q=1#part HTTP/1.1\r\nHost: other.test\r\nAccept: */*\r\n"
        b"Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n"
    )

    async def get() -> tuple[bytes, int]:
        async with remote(origin) as there, egress() as port:
            return await ask(port, request % there), there

    answer, there = asyncio.run(get())
    assert answer == origin.answer
    lines = ["GET /path?q=1 HTTP/1.1", f"Host: remote.test:{there}", "Connection: close", "Accept: */*", "", ""]
    assert origin.head.decode().split("\r\n") == lines


BODIES = {
    "counted": (b"Content-Length: 300000\r\n\r\n", b"x" * 300_000),
    "chunked": (b"Transfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
    "empty": (b"Content-Length: 0\r\n\r\n", b""),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_body_goes_on_unchanged_and_nothing_after_it(body: str) -> None:
    origin = Recorder()
    headers, content = BODIES[body]
    more = b"GET http://remote.test/second HTTP/1.1\r\n\r\n"

    async def post() -> bytes:
        async with remote(origin) as there, egress() as port:
            return await ask(port, b"POST http://remote.test:%d/ HTTP/1.1\r\n%b%b" % (there, headers, content + more))

    assert asyncio.run(post()) == origin.answer
    assert (origin.body, origin.more) == (content, b"")


CHUNKS = {
    "what-is-said-of-one": (b'3;a="b"\r\nabc\r\n0\r\nTrailer: x\r\n\r\n', b"3\r\nabc\r\n0\r\n\r\n"),
    "a-length-with-a-sign": (b"+3\r\nabc\r\n0\r\n\r\n", b""),
    "a-length-of-another-kind": (b"0x3\r\nabc\r\n0\r\n\r\n", b""),
    "a-line-within-a-line": (b"0;\nGET http://other.test/ HTTP/1.1\r\n\r\n", b""),
    "more-than-was-said": (b"3\r\nabcdef\r\n0\r\n\r\n", b"3\r\nabc"),
    "nothing-more": (b"3\r\nab", b"3\r\nab"),
    "a-long-trailer": (b"3\r\nabc\r\n0\r\n" + b"x: y\r\n" * 10_000 + b"\r\n", b"3\r\nabc\r\n0\r\n\r\n"),
    "a-trailer-without-end": (b"3\r\nabc\r\n0\r\n" + b"x: y\r\n" * 12_000 + b"\r\n", b"3\r\nabc\r\n"),
}


@pytest.mark.parametrize("chunks", CHUNKS)
def test_chunks_go_on_as_all_read_them_or_not_to_their_end(chunks: str) -> None:
    sent, expected = CHUNKS[chunks]
    got = asyncio.run(send_chunks(sent))
    assert got in (expected, b"") if not expected.endswith(b"\r\n\r\n") else got == expected


async def send_chunks(sent: bytes) -> bytes:
    """Send a body through an egress and return what came out, up to where it was cut."""
    arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def origin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got = b""
        with contextlib.suppress(ConnectionError):
            while not got.endswith(b"0\r\n\r\n") and (data := await reader.read(4096)):
                got += data
        arrived.set_result(got)

    async with remote(origin) as there, egress() as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST http://remote.test:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head % there + sent)
        writer.write_eof()
        got = await asyncio.wait_for(arrived, 20)
        writer.close()
        return got


BAD = {
    "origin-form": b"GET / HTTP/1.1",
    "another-scheme": b"GET ftp://remote.test/ HTTP/1.1",
    "no-scheme": b"GET //remote.test/ HTTP/1.1",
    "no-port": b"CONNECT remote.test HTTP/1.1",
    "port-zero": b"CONNECT remote.test:0 HTTP/1.1",
    "port-too-large": b"CONNECT remote.test:99999 HTTP/1.1",
    "a-zone": b"CONNECT [fe80::1%25lo]:80 HTTP/1.1",
    "a-space-in-a-name": b"CONNECT re mote.test:80 HTTP/1.1",
    "no-name": b"GET http:/// HTTP/1.1",
    "another-protocol": b"PRI * HTTP/2.0",
    "not-http": b"\x05\x01\x00",
    "two-lengths": b"GET http://remote.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
    "length-and-chunks": b"GET http://remote.test/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
    "a-negative-length": b"GET http://remote.test/ HTTP/1.1\r\nContent-Length: -1",
    "no-header": b"GET http://remote.test/ HTTP/1.1\r\nnothing",
    "a-line-within-a-line": b"GET http://remote.test/ HTTP/1.1\r\nA: b\nHost: other.test",
    "a-line-within-a-method": b"GET\nA: http://remote.test/ HTTP/1.1",
    "chunks-within-another-coding": b"GET http://remote.test/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked",
    "chunks-of-no-kind": b"GET http://remote.test/ HTTP/1.1\r\nTransfer-Encoding: xchunked",
    "a-body-that-ends-by-itself": b"GET http://remote.test/ HTTP/1.1\r\nTransfer-Encoding: identity",
    "codings-that-differ": b"GET http://remote.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x",
    "chunks-of-an-old-kind": b"GET http://remote.test/ HTTP/1.0\r\nTransfer-Encoding: chunked",
    "a-space-before-a-colon": b"GET http://remote.test/ HTTP/1.1\r\nContent-Length : 1",
}


@pytest.mark.parametrize("request_", BAD.values(), ids=BAD)
def test_what_is_no_request_for_a_proxy_is_answered_with_a_reason(request_: bytes) -> None:
    async def send() -> bytes:
        async with egress() as port:
            return await ask(port, request_ + b"\r\n\r\n")

    assert asyncio.run(send()).startswith((b"HTTP/1.1 400 th", b"HTTP/1.1 400 a request"))


def test_a_head_without_an_end_is_refused() -> None:
    async def send() -> bytes:
        async with egress() as port:
            return await ask(port, b"GET http://remote.test/ HTTP/1.1\r\nX: " + b"x" * 200_000)

    assert asyncio.run(send()).startswith(b"HTTP/1.1 431 ")


def test_only_refused_addresses_are_an_answer_that_says_so_and_reach_nothing() -> None:
    async def send() -> bytes:
        async with egress(REFUSED) as port:
            return await ask(port, b"CONNECT remote.test:80 HTTP/1.1\r\n\r\n")

    head, _, body = asyncio.run(send()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 remote.test cannot be reached from a sandbox: it is closed\r\n")
    assert body == b"remote.test cannot be reached from a sandbox: it is closed\n"


def test_a_name_with_several_addresses_is_reached_at_an_open_one_that_answers() -> None:
    silent = ipaddress.ip_address("127.0.0.8")
    origin = Recorder()

    async def get() -> bytes:
        async with remote(origin) as there, egress(REFUSED, silent, V4) as port:
            return await ask(port, b"GET http://remote.test:%d/ HTTP/1.1\r\n\r\n" % there)

    assert asyncio.run(get()) == origin.answer


def test_a_name_is_resolved_once_and_the_address_looked_at_is_the_one_connected_to() -> None:
    answers = [[V4], [REFUSED]]
    looked: list[Address] = []
    origin = Recorder()

    async def get() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        made = Egress(listener, resolve=lambda _host: answers.pop(0), refuse=looked.append)
        async with remote(origin) as there:
            port = listener.getsockname()[1]
            answer = await ask(port, b"GET http://rebinding.test:%d/ HTTP/1.1\r\n\r\n" % there)
        await made.close()
        return answer

    assert asyncio.run(get()) == origin.answer
    assert (looked, answers) == ([V4], [[REFUSED]])


@pytest.mark.parametrize(
    "host", ["no-such-name.invalid", "a" * 70 + ".invalid", "a..invalid"], ids=["unknown", "too-long", "an-empty-label"]
)
def test_a_name_that_does_not_resolve_is_named(host: str) -> None:
    async def send() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        made = Egress(listener)
        answer = await ask(listener.getsockname()[1], f"CONNECT {host}:80 HTTP/1.1\r\n\r\n".encode())
        await made.close()
        return answer

    assert asyncio.run(send()).startswith(f"HTTP/1.1 502 this host cannot resolve {host}: ".encode())


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.8.8.8", "2130706433", "0x7f.1", "localhost", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "224.0.0.1",
        "[ff02::1]", "255.255.255.255", socket.gethostname(),
    ],
)  # fmt: skip
def test_no_spelling_of_this_machine_or_its_link_is_reached(host: str) -> None:
    async def send() -> tuple[bytes, bytes]:
        listener = socket.create_server(("127.0.0.1", 0))
        made = Egress(listener)
        port = listener.getsockname()[1]
        tunnel = await ask(port, f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
        plain = await ask(port, f"GET http://{host}:{port}/ HTTP/1.1\r\n\r\n".encode())
        await made.close()
        return tunnel, plain

    for answer in asyncio.run(send()):
        assert answer.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 502 this host cannot resolve")), answer


@pytest.mark.parametrize("address", ["203.0.113.80", "10.1.2.3", "8.8.8.8", "2001:db8::1", "2606:4700::1111"])
def test_addresses_of_others_are_not_refused(address: str) -> None:
    assert why_refused(ipaddress.ip_address(address)) is None


def test_every_address_of_this_hosts_interfaces_is_its_own() -> None:
    lines = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    found = [ipaddress.ip_address(int(line[0], 16).to_bytes(16, "big")) for line in lines]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("198.51.100.1", 9))
        found.append(ipaddress.ip_address(probe.getsockname()[0]))
    found.append(V4)
    assert all(is_own(address) for address in found)


class Corporate:
    """A proxy of the host's: keeps what it is asked and tunnels to one port, or refuses."""

    def __init__(self, status: bytes = b"200 OK") -> None:
        self.heads: list[bytes] = []
        self.status = status

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 %b\r\nProxy-Authenticate: Basic realm=inner\r\n\r\n" % self.status)
        if self.status.startswith(b"200"):
            writer.write(await reader.readline())
        await writer.drain()


async def ask_through(corporate: Corporate, monkeypatch: pytest.MonkeyPatch, request: bytes, *found: Address) -> bytes:
    async with remote(corporate) as there, egress(*found) as port:
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", f"http://me:pass%20word@127.0.0.1:{there}")
        return await ask(port, request)


def test_the_hosts_own_proxy_is_gone_through_with_its_credentials_kept_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    corporate = Corporate()
    request = b"CONNECT remote.test:443 HTTP/1.1\r\nProxy-Authorization: Basic aW5zaWRl\r\n\r\nhello\n"
    answer = asyncio.run(ask_through(corporate, monkeypatch, request))
    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\nhello\n"
    assert corporate.heads == [
        b"CONNECT remote.test:443 HTTP/1.1\r\nHost: remote.test:443\r\n"
        b"Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk\r\n\r\n"
    ]


def test_a_plain_request_through_the_hosts_proxy_keeps_its_whole_address(monkeypatch: pytest.MonkeyPatch) -> None:
    corporate = Corporate()
    request = b"POST http://remote.test/p HTTP/1.1\r\nContent-Length: 2\r\nProxy-Authorization: mine\r\n\r\nx\n"
    asyncio.run(ask_through(corporate, monkeypatch, request))
    lines = corporate.heads[0].decode().split("\r\n")
    assert lines[:2] == ["POST http://remote.test/p HTTP/1.1", "Host: remote.test"]
    assert [line for line in lines if "uthorization" in line] == ["Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk"]


def test_what_the_hosts_proxy_refuses_is_told_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    corporate = Corporate(b"407 Proxy Authentication Required")
    answer = asyncio.run(ask_through(corporate, monkeypatch, b"CONNECT remote.test:443 HTTP/1.1\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 502 this host's own proxy answered 407 for remote.test:443\r\n")
    assert b"realm" not in answer


def test_a_refused_address_is_not_asked_of_the_hosts_proxy_either(monkeypatch: pytest.MonkeyPatch) -> None:
    corporate = Corporate()
    answer = asyncio.run(ask_through(corporate, monkeypatch, b"CONNECT remote.test:443 HTTP/1.1\r\n\r\n", REFUSED))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert corporate.heads == []


def test_a_proxy_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:secret@127.0.0.1:1")

    async def send() -> bytes:
        async with egress() as port:
            return await ask(port, b"CONNECT remote.test:443 HTTP/1.1\r\n\r\n")

    answer = asyncio.run(send())
    assert answer.startswith(b"HTTP/1.1 502 this host's own proxy does not answer")
    assert b"secret" not in answer


def test_a_proxy_of_another_kind_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://me:secret@192.0.2.9:1080")
    with pytest.raises(ValueError, match=r"\Athis host's all_proxy is no http:// or https:// proxy\Z"):
        find_host_proxy("https", "remote.test")


EXEMPT = {
    "the-name": ("remote.test", "remote.test", True),
    "a-suffix": (".test", "remote.test", True),
    "a-starred-suffix": ("other.example, *.test", "remote.test", True),
    "all": ("*", "remote.test", True),
    "a-network": ("10.0.0.0/8", "10.1.2.3", True),
    "part-of-a-name": ("mote.test", "remote.test", False),
    "another-network": ("10.0.0.0/8", "192.0.2.7", False),
    "nothing": (",", "remote.test", False),
}


@pytest.mark.parametrize(("listed", "host", "exempt"), EXEMPT.values(), ids=EXEMPT)
def test_no_proxy_of_the_host_is_heeded(monkeypatch: pytest.MonkeyPatch, listed: str, host: str, exempt: bool) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.test:3128")
    monkeypatch.setenv("no_proxy", listed)
    found = find_host_proxy("https", host)
    assert (found is None) is exempt
    if found is not None:
        assert (found.host, found.port, found.tls, found.authorization) == ("proxy.test", 3128, False, None)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_closing_cuts_every_connection_and_leaves_no_descriptor() -> None:
    async def cut() -> tuple[int, int, list[bytes]]:
        async with remote(shout_at_the_end) as there:
            before = open_descriptors()
            async with egress() as port:
                ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
                for reader, writer in ends[:3]:
                    writer.write(b"CONNECT remote.test:%d HTTP/1.1\r\n\r\n" % there)
                    await reader.readuntil(b"\r\n\r\n")
            left = [await reader.read() for reader, _ in ends]
            for _, writer in ends:
                writer.close()
            await asyncio.sleep(0.05)
            return before, open_descriptors(), left

    before, after, left = asyncio.run(cut())
    assert (after, left) == (before, [b""] * 5)


def test_more_connections_than_its_share_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_egress, "_MAX_CONNECTIONS", 2)
    running = most = 0

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        running -= 1

    async def crowd() -> list[bytes]:
        async with remote(slow) as there, egress() as port:
            request = b"GET http://remote.test:%d/ HTTP/1.1\r\n\r\n" % there
            return await asyncio.gather(*(ask(port, request) for _ in range(12)))

    assert asyncio.run(crowd()) == [b"HTTP/1.1 204 No Content\r\n\r\n"] * 12
    assert most <= 2


LISTED = ("pypi.test", "*.files.test", "10.1.2.3")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        pytest.param("pypi.test", True, id="a-name"),
        pytest.param("PyPI.Test.", True, id="a-name-spelled-otherwise"),
        pytest.param("a.files.test", True, id="below-a-name"),
        pytest.param("b.a.files.test", True, id="far-below-a-name"),
        pytest.param("files.test", False, id="the-name-that-others-are-below"),
        pytest.param("evilfiles.test", False, id="a-name-that-ends-alike"),
        pytest.param("a.files.test.evil.test", False, id="a-name-that-begins-alike"),
        pytest.param("www.pypi.test", False, id="below-a-name-that-stands-alone"),
        pytest.param("other.test", False, id="another-name"),
        pytest.param("10.1.2.3", True, id="an-address-that-is-named"),
        pytest.param("10.1.2.4", False, id="another-address"),
        pytest.param("167838211", False, id="an-address-as-one-number"),
        pytest.param("0x0a.1.2.3", False, id="an-address-spelled-otherwise"),
        pytest.param("::ffff:10.1.2.3", False, id="an-address-in-another"),
    ],
)
def test_only_hosts_that_are_named_are_allowed(host: str, allowed: bool) -> None:
    reason = why_not_listed(host, LISTED)
    assert (reason is None) is allowed
    if reason:
        assert reason.startswith(f"{host} is ")
        assert reason.endswith("pypi.test, *.files.test, 10.1.2.3")


def test_no_wildcard_stands_for_addresses() -> None:
    assert why_not_listed("10.1.2.3", ["*.2.3"])
    assert why_not_listed("a.2.3", ["*.2.3"]) is None


@pytest.mark.parametrize(
    "form",
    [
        "CONNECT {host}:{port} HTTP/1.1\r\nHost: pypi.test\r\n\r\n",
        "GET http://{host}:{port}/ HTTP/1.1\r\nHost: pypi.test\r\n\r\n",
    ],
    ids=["tunnel", "request"],
)
def test_a_list_of_hosts_leads_to_these_alone(form: str) -> None:
    asked: list[str] = []

    def resolve(host: str) -> Sequence[Address]:
        asked.append(host)
        return [V4]

    async def call() -> tuple[bytes, bytes]:
        listener = socket.create_server(("127.0.0.1", 0))
        made = Egress(listener, hosts=("pypi.test",), resolve=resolve, refuse=lambda _: None)
        async with remote(Recorder()) as there:
            port = listener.getsockname()[1]
            first = form.format(host="pypi.test", port=there).encode()
            if first.startswith(b"CONNECT"):
                first += b"GET / HTTP/1.1\r\nHost: pypi.test\r\n\r\n"
            answers = await ask(port, first), await ask(port, form.format(host="other.test", port=there).encode())
            await made.close()
            return answers

    allowed, refused = asyncio.run(call())
    assert allowed.startswith(b"HTTP/1.1 200")
    assert allowed.endswith(b"well")
    assert refused.startswith(b"HTTP/1.1 403 other.test is none of the hosts that the task allows: pypi.test\r\n")
    assert asked == ["pypi.test"]


def test_a_listed_name_does_not_lead_back_to_this_machine() -> None:
    async def call() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        made = Egress(listener, hosts=("rebound.test",), resolve=lambda _host: [V4])
        answer = await ask(listener.getsockname()[1], b"CONNECT rebound.test:443 HTTP/1.1\r\n\r\n")
        await made.close()
        return answer

    assert asyncio.run(call()).startswith(b"HTTP/1.1 403 rebound.test cannot be reached from a sandbox: 127.0.0.1 is")
