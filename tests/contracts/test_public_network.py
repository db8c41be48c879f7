"""A phase with a public network reaches others through its proxy, and nothing of this machine's in any way."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import socket
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.sandboxes import _addresses, _egress
from pytest_benchflow.sandboxes.local import backend
from tests.contracts.sandboxrig import EchoEndpoint, Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Sandbox
    from pytest_benchflow.sandboxes._addresses import Address

pytestmark = pytest.mark.skipif(backend.available() is not None, reason=str(backend.available()))

PROXY = "http://127.0.0.1:8001"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with Rig(backend, tmp_path) as made:
        yield made


@pytest.fixture
def sandbox(rig: Rig) -> Sandbox:
    made = rig.create()
    rig.run(made.enter("verifier", "public"))
    return made


def own_addresses() -> list[Address]:
    """Return this host's addresses other than loopback, of both kinds."""
    found = []
    for family, outside in ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))
            found.append(ipaddress.ip_address(probe.getsockname()[0]))
    return found


class Outside:
    """A server on this host that stands for a remote one, in a thread of its own: it says which word it was sent."""

    def __init__(self, address: str) -> None:
        self._listener = socket.create_server(
            (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET
        )
        self.port = self._listener.getsockname()[1]
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Outside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                client.settimeout(10)
                self.asked.append(client.recv(4096))
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nfound")


@pytest.mark.parametrize("address", own_addresses(), ids=lambda address: f"ipv{address.version}")
def test_others_are_reached_by_name_plainly_and_through_a_tunnel(
    rig: Rig, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, address: Address
) -> None:
    monkeypatch.setattr(_egress, "look_up", lambda host: {"remote.test": [address]}[host])
    monkeypatch.setattr(_addresses, "is_own", lambda asked: asked != address)
    monkeypatch.setenv("BENCHFLOW_PRIVATE_HOSTS", "remote.test")  # this machine's own address may be such a one
    program = """
        import json, http.client, sys, urllib.request
        port = int(sys.argv[1])
        plain = urllib.request.urlopen(f"http://remote.test:{port}/plain").read().decode()
        tunnel = http.client.HTTPConnection("127.0.0.1", 8001)
        tunnel.set_tunnel("remote.test", port)
        tunnel.request("GET", "/tunnel")
        print(json.dumps([plain, tunnel.getresponse().read().decode()]))
    """
    with Outside(str(address)) as outside:
        argv = ["python3", "-c", textwrap.dedent(program), str(outside.port)]
        result = rig.run(sandbox.exec(argv))
    assert json.loads(result.stdout or "null") == ["found", "found"], result.stderr
    assert [asked.split()[1] for asked in outside.asked] == [b"/plain", b"/tunnel"]


@pytest.mark.parametrize("network", ["public", "allowlist"])
def test_no_name_of_the_internet_leads_into_a_private_network(
    rig: Rig, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    address = next((found for found in own_addresses() if found.version == 4), None)
    if address is None:
        pytest.skip("this machine has no address beside loopback that could stand for another's")
    monkeypatch.setattr(_egress, "look_up", lambda _host: [address])
    monkeypatch.setattr(_addresses, "is_own", lambda asked: asked != address)
    monkeypatch.setattr(_addresses, "_PRIVATE", (ipaddress.ip_network(f"{address}/32"),))
    hosts = ("rebound.example.com", "db.internal", str(address)) if network == "allowlist" else ()
    program = """
        import json, sys, urllib.error, urllib.request
        answers = []
        for host in sys.argv[2:]:
            try:
                answers.append(urllib.request.urlopen(f"http://{host}:{sys.argv[1]}/").read().decode())
            except urllib.error.HTTPError as error:
                answers.append(error.code)
        print(json.dumps(answers))
    """
    with Outside(str(address)) as outside:
        argv = ["python3", "-c", textwrap.dedent(program), str(outside.port)]
        argv += ["rebound.example.com", "db.internal", str(address)]
        answers = []
        for named in ("", "10.77.0.0/16", f"{address}/32"):
            monkeypatch.setenv("BENCHFLOW_PRIVATE_HOSTS", named)
            rig.run(sandbox.enter("verifier", "allowlist" if hosts else "public", hosts))
            result = rig.run(sandbox.exec(argv))
            answers.append(json.loads(result.stdout or "null"))
    shut = [403, "found", "found"] if hosts else [403, 403, 403]
    assert answers == [shut, shut, ["found"] * 3], result.stderr


SCAN = """
    import json, socket, sys
    addresses, ports, abstract = json.loads(sys.argv[1])
    reached = []
    for port in range(1, 65536):
        with socket.socket() as s:
            # Trying all ports, a socket once gets the very one it asks for, and meets itself.
            if s.connect_ex(("127.0.0.1", port)) == 0 and s.getsockname() != s.getpeername():
                reached.append(port)
    for address in addresses:
        for port in ports:
            try:
                socket.create_connection((address, port), 2).close()
                reached.append([address, port])
            except OSError:
                pass
    with socket.socket(socket.AF_UNIX) as s:
        if s.connect_ex("\\0" + abstract) == 0:
            reached.append("abstract")
    answers = []
    for address in [*addresses, "127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "::ffff:127.0.0.1", "127.1"]:
        for port in ports:
            host = f"[{address}]" if ":" in address else address
            for request in (f"CONNECT {host}:{port}", f"GET http://{host}:{port}/"):
                with socket.create_connection(("127.0.0.1", 8001), 20) as s:
                    s.sendall(f"{request} HTTP/1.1\\r\\n\\r\\n".encode())
                    answers.append(s.makefile().readline().split()[1])
    print(json.dumps([reached, sorted(set(answers)), [name for _, name in socket.if_nameindex()]]))
"""


def test_nothing_of_this_machine_is_reached_directly_or_through_the_proxy(rig: Rig, sandbox: Sandbox) -> None:
    name = f"canary-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((host, 0))) for host in ("127.0.0.1", "0.0.0.0")]
        if socket.has_dualstack_ipv6():
            listeners.append(
                stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
            )
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{name}")
        abstract.listen()
        asked = [
            [str(address) for address in own_addresses()],
            [listener.getsockname()[1] for listener in listeners],
            name,
        ]
        reached, answers, interfaces = json.loads(
            rig.run(sandbox.exec(["python3", "-c", textwrap.dedent(SCAN), json.dumps(asked)])).stdout
        )
        for listener in (*listeners, abstract):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
    assert (reached, answers, interfaces) == ([8001], ["403"], ["lo"])


def test_programs_find_the_proxy_in_their_environment_and_what_is_given_wins(rig: Rig, sandbox: Sandbox) -> None:
    names = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy"]
    script = "for name in " + " ".join(names) + "; do eval echo \\$$name; done"
    assert rig.sh(sandbox, script).stdout.split() == [PROXY] * 4 + ["localhost,127.0.0.1,::1"]
    assert rig.sh(sandbox, script, env={"http_proxy": "mine"}).stdout.split()[:2] == ["mine", PROXY]
    rig.run(sandbox.enter("agent", "proxy"))
    assert rig.sh(sandbox, script).stdout.split() == []


def test_an_endpoint_is_reached_beside_the_proxy(rig: Rig, sandbox: Sandbox) -> None:
    async def call() -> Any:
        endpoint = EchoEndpoint()
        url = await sandbox.reach(endpoint)
        program = f"""
            import socket
            for port in (8000, 8001):
                with socket.create_connection(("127.0.0.1", port), 5) as connection:
                    connection.sendall(b"hello\\n\\r\\n\\r\\n")
                    print(connection.makefile().readline().strip())
            assert {url!r} == "http://127.0.0.1:8000"
        """
        result = await sandbox.exec(["python3", "-c", textwrap.dedent(program)])
        await endpoint.close()
        return result

    result = rig.run(call())
    assert result.stdout.splitlines() == ["echo", "HTTP/1.1 400 this is no HTTP/1 request"], result.stderr


def test_the_credentials_of_the_hosts_proxy_stay_outside(
    rig: Rig, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []

    async def corporate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfound")
        writer.close()

    async def fetch() -> Any:
        server = await asyncio.start_server(corporate, "127.0.0.1", 0)
        monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}")
        program = "import urllib.request as r; print(r.urlopen('http://remote.invalid/').read(), r.os.environ)"
        result = await sandbox.exec(["python3", "-c", program])
        server.close()
        await server.wait_closed()
        return result

    result = rig.run(fetch())
    assert "b'found'" in result.stdout, result.stderr
    assert "secret" not in result.stdout
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in heads[0]


def test_connections_end_with_the_phase_and_descriptors_do_not_add_up(rig: Rig) -> None:
    async def live() -> None:
        sandbox = await backend.create(rig.spec())
        await sandbox.enter("verifier", "public")
        connect = "import socket, time; s = socket.create_connection(('127.0.0.1', 8001)); print('up', flush=True)"
        process = await sandbox.spawn(["python3", "-c", f"{connect}; time.sleep(99)"])
        assert await process.read() == b"up\n"
        await sandbox.enter("verifier", "public")
        await sandbox.exec(["true"])
        await sandbox.stop()

    def opened() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    rig.run(live())
    before = opened()
    for _ in range(3):
        rig.run(live())
    assert opened() == before


def test_no_name_server_of_the_hosts_is_asked_from_inside(rig: Rig, sandbox: Sandbox) -> None:
    result = rig.sh(sandbox, "python3 -c \"import socket; socket.getaddrinfo('remote.test', 80)\"", timeout=20)
    assert "gaierror" in result.stderr
    assert not result.timed_out
