"""An engine on another machine: reached by TLS and by SSH, cut off, and keeping what agents install."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.contracts import INSTALL_HOME, Installation
from pytest_benchflow.errors import AgentError, SandboxError
from pytest_benchflow.sandboxes._docker.engine import why_no_engine
from pytest_benchflow.sandboxes.docker import backend
from tests.contracts.sandboxrig import EchoEndpoint, Rig, make_task
from tests.dockerhost import IMAGE, Dockerd, Door, client, import_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.contracts import Sandbox
    from tests.sshhost import Sshd

INSTALL = f"""\
echo installing
mkdir -p /opt/benchflow/agents/invented
echo here >/opt/benchflow/agents/invented/program
touch {INSTALL_HOME}/kept
"""


@pytest.fixture
def api(docker_engine: str) -> Iterator[Any]:
    with contextlib.closing(client(docker_engine)) as made:
        yield made
        for each in made.volumes(filters={"name": "benchflow-agent-"})["Volumes"] or ():
            made.remove_volume(each["Name"])


@pytest.fixture
def rig(api: Any, remote_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("DOCKER_HOST", remote_engine)
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path / "cache"))
    with Rig(backend, tmp_path, IMAGE) as made:
        yield made


def test_an_agent_is_installed_once_and_kept_by_the_engine(rig: Rig, api: Any, tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", docker_image=IMAGE)
    installation = Installation(name="invented", version="1", script=INSTALL, timeout_sec=60)

    async def both() -> list[Any]:
        return list(await asyncio.gather(*(backend.install(installation, task, log) for log in logs)))

    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    first, second = rig.run(both())
    assert first == second
    assert [log.read_text() for log in logs if log.exists()] == ["installing\n"]
    sandbox = rig.create(task, mounts=first)
    seen = rig.sh(sandbox, f"cat /opt/benchflow/agents/invented/program; ls {INSTALL_HOME}; touch /opt/benchflow/x")
    assert (seen.stdout, seen.exit_code) == ("here\nkept\n", 1)
    assert len(api.volumes(filters={"name": "benchflow-agent-"})["Volumes"]) == 2
    assert rig.run(backend.remains()) != []  # of the sandbox, and nothing of what was installed
    assert {each.name.partition(":")[0] for each in rig.run(backend.remains())} == {"container"}


def test_an_installation_that_fails_leaves_nothing_and_says_why(rig: Rig, api: Any, tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", docker_image=IMAGE)
    installation = Installation(name="invented", version="2", script="echo no such package; exit 4", timeout_sec=60)
    for _ in range(2):
        with pytest.raises(AgentError, match=r"(?s)invented 2 could not be installed: .*exit code 4.*no such package"):
            rig.run(backend.install(installation, task, tmp_path / "log"))
    assert (api.volumes(filters={"name": "benchflow-agent-"})["Volumes"] or []) == []


def test_a_container_named_by_the_engine_is_removed_by_that_name(rig: Rig, api: Any) -> None:
    spec = rig.spec()
    sandbox = rig.run(backend.create(spec))
    (found,) = [
        each for each in rig.run(backend.remains()) if each.labels.get("benchflow.scratch") == str(spec.scratch)
    ]
    assert "running" in found.about
    rig.run(backend.discard(found.name))
    rig.run(backend.discard(found.name))
    assert api.containers(all=True, filters={"label": [f"benchflow.scratch={spec.scratch}"]}) == []
    rig.run(sandbox.stop())


def test_a_connection_that_is_cut_ends_in_an_error_and_leaves_nothing(
    docker_engine: str, api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(docker_engine)
    monkeypatch.setenv("DOCKER_HOST", door.address)

    async def live(sandbox: Sandbox) -> str:
        process = await sandbox.spawn(["sh", "-c", "echo up; sleep 99"])
        await process.read()
        door.slam()
        with pytest.raises(SandboxError, match="the connection to a running command was lost: the Docker engine at"):
            await process.read()
        # What was cut is not what the engine does: it is asked anew.
        await sandbox.enter("verifier", "none")
        return (await sandbox.exec(["sh", "-c", "ps -e -o args | grep -c '[s]leep 99'"])).stdout

    try:
        with Rig(backend, tmp_path, IMAGE) as rig:
            spec = rig.spec()
            sandbox = rig.run(backend.create(spec))
            assert rig.run(live(sandbox)) == "0\n"
            rig.run(sandbox.stop())
            assert api.containers(all=True, filters={"label": [f"benchflow.scratch={spec.scratch}"]}) == []
            rig.run(backend.close())
    finally:
        door.close()


def test_an_engine_that_is_gone_is_told(docker_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(docker_engine)
    monkeypatch.setenv("DOCKER_HOST", door.address)
    with Rig(backend, tmp_path, IMAGE) as rig:
        spec = rig.spec()
        sandbox = rig.run(backend.create(spec))
        door.close()
        with pytest.raises(SandboxError, match=f"the Docker engine at {door.address} does not answer any more"):
            rig.sh(sandbox, "true")
        with pytest.raises(SandboxError, match="does not answer any more"):
            rig.run(sandbox.stop())
        monkeypatch.setenv("DOCKER_HOST", docker_engine)
        assert backend.reap(spec.scratch, docker_engine)


def _openssl(*words: str, cwd: Path) -> None:
    subprocess.run(["openssl", *words], cwd=cwd, check=True, capture_output=True)


def _certificates(place: Path) -> None:
    """Make an authority and what it vouches for: one certificate that serves on both sides."""
    place.mkdir()
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests", "-keyout", "ca.key",
             "-out", "ca.pem", cwd=place)  # fmt: skip
    (place / "more").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "csr",
             cwd=place)  # fmt: skip
    _openssl("x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
             "-extfile", "more", "-out", "cert.pem", cwd=place)  # fmt: skip


@pytest.fixture(scope="module")
def guarded(docker_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the address of an engine that speaks TLS only to whom its authority vouches for, and the certificates."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl, which is not installed")
    base = tmp_path_factory.mktemp("tls")
    place = base / "certificates"
    _certificates(place)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tls = (
        f"--host=tcp://127.0.0.1:{port}",
        "--tlsverify",
        f"--tlscacert={place}/ca.pem",
        f"--tlscert={place}/cert.pem",
        f"--tlskey={place}/key.pem",
    )
    dockerd = Dockerd(base / "log", *tls)
    try:
        if not dockerd.start():
            pytest.skip("dockerd does not start with TLS: " + (base / "log").read_text(errors="replace")[-300:])
        import_image(dockerd.address, base, IMAGE)
        yield f"tcp://127.0.0.1:{port}", place
    finally:
        dockerd.remove()


def test_an_engine_is_reached_by_tls_with_its_certificates(
    guarded: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, place = guarded
    monkeypatch.setenv("DOCKER_HOST", address)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(place))
    why_no_engine.cache_clear()
    assert backend.available() is None
    with Rig(backend, tmp_path, IMAGE) as rig:
        sandbox = rig.run(backend.create(rig.spec()))
        # The end of stdin is told, and what is said after it still heard.
        result = rig.run(sandbox.exec(["sh", "-c", "wc -c; head -c 3000000 /dev/zero | wc -c"], stdin=b"x" * 3_000_000))
        assert result.stdout.split() == ["3000000", "3000000"]
        rig.run(sandbox.enter("agent", "proxy"))
        assert rig.run(_asked(sandbox)) == "echo"
        rig.run(sandbox.stop())
        rig.run(backend.close())


async def _asked(sandbox: Any) -> str:
    endpoint = EchoEndpoint()
    port = (await sandbox.reach(endpoint)).rpartition(":")[2]
    program = f"import socket; c = socket.create_connection(('127.0.0.1', {port}), 5); c.sendall(b'x\\n'); "
    said = await sandbox.exec(["python3", "-c", program + "print(c.makefile().readline().strip())"])
    await endpoint.close()
    return str(said.stdout.strip() + said.stderr)


@pytest.mark.parametrize(
    ("verify", "said"),
    [
        pytest.param("", "wants TLS; set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH", id="without-tls"),
        pytest.param("1", "TLS: ", id="unknown-authority"),
    ],
)
def test_an_engine_that_wants_other_tls_says_so(
    guarded: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: str, said: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", guarded[0])
    monkeypatch.setenv("DOCKER_TLS_VERIFY", verify)
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    why_no_engine.cache_clear()
    assert said in str(backend.available())
    why_no_engine.cache_clear()


def test_an_engine_is_reached_by_ssh_as_the_user_does(
    docker_engine: str, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = shutil.which("ssh")
    if ssh is None:
        pytest.skip("there is no ssh on this machine")
    # ssh reads the settings of the user that the system knows, which no variable changes.
    settings = (f"-o IdentityFile={sshd.key}", f"-o UserKnownHostsFile={sshd.home}/.ssh/known_hosts")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {ssh} {" ".join(settings)} "$@"\n')
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    monkeypatch.setenv("DOCKER_HOST", f"ssh://{sshd.address}{docker_engine.removeprefix('unix://')}")
    why_no_engine.cache_clear()
    assert backend.available() is None
    with Rig(backend, tmp_path, IMAGE) as rig:
        sandbox = rig.create()
        result = rig.run(sandbox.exec(["sh", "-c", "cat; echo heard"], stdin=b"said\n"))
        assert result.stdout == "said\nheard\n"
        rig.run(sandbox.enter("agent", "proxy"))
        assert rig.run(_asked(sandbox)) == "echo"
        sshd.cut()
        deadline = time.monotonic() + 60
        said = ""
        while not said and time.monotonic() < deadline:
            with contextlib.suppress(SandboxError):
                said = rig.sh(sandbox, "echo again").stdout
        assert said == "again\n"
    asyncio.run(backend.close())


class Registry:
    """A registry that shows nothing: what it answers is why an image cannot be pulled."""

    def __init__(self, answer: str, code: str) -> None:
        self._body = json.dumps({"errors": [{"code": code, "message": "it says no"}]}).encode()
        self._answer = answer.encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.name = f"127.0.0.1:{self._listener.getsockname()[1]}/private/image:1"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                head = b"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                connection.sendall(b"HTTP/1.1 " + self._answer + head % len(self._body) + self._body)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param('401 Unauthorized\r\nWWW-Authenticate: Basic realm="here"\r\n', "UNAUTHORIZED", id="no-login"),
        pytest.param("403 Forbidden\r\n", "DENIED", id="forbidden"),
        pytest.param("404 Not Found\r\n", "MANIFEST_UNKNOWN", id="not-there"),
    ],
)
def test_an_image_that_is_not_given_out_says_what_to_do(
    guarded: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", guarded[0])
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(guarded[1]))
    registry = Registry(answer, code)
    try:
        why_no_engine.cache_clear()
        task = make_task(tmp_path / "task", docker_image=registry.name)
        with Rig(backend, tmp_path) as rig, pytest.raises(SandboxError) as told:
            rig.create(task)
        assert f"image {registry.name} cannot be pulled: it does not exist, or needs `docker login`" in str(told.value)
    finally:
        registry.close()
        asyncio.run(backend.close())
        why_no_engine.cache_clear()
