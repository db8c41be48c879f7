"""The docker sandbox says in one sentence why it cannot run here, and skips what it cannot do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.contracts import SandboxSpec
from pytest_benchflow.errors import UsageError
from pytest_benchflow.rollout.cell import resolve
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.sandboxes._docker.config import container_config
from pytest_benchflow.sandboxes._docker.engine import engine_address
from pytest_benchflow.sandboxes.docker import DockerBackend, backend
from tests.contracts.sandboxrig import make_task

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Backend


@pytest.mark.parametrize(
    ("address", "said"),
    [
        pytest.param(
            "tcp://user:secret@127.0.0.1:1", "no Docker engine answers at tcp://user@127.0.0.1:1 (Con", id="tcp"
        ),
        pytest.param("ssh://nobody@127.0.0.1:1", "at ssh://nobody@127.0.0.1:1 (ssh said: ", id="ssh"),
        pytest.param("ssh://", "no Docker engine answers at ssh:// (it names no host)", id="ssh-to-nowhere"),
        pytest.param("npipe:////./pipe/docker", "the docker sandbox takes unix://, tcp://, ssh://; set", id="windows"),
        pytest.param("unix:///nowhere/docker.sock", "no Docker engine answers at /nowhere/docker.sock", id="no-daemon"),
    ],
)
def test_an_engine_that_cannot_be_used_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, address: str, said: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    reason = backend.available()
    assert reason is not None
    assert said in reason
    assert "\n" not in reason
    assert "secret" not in reason + backend.place


@pytest.mark.parametrize("said", ["", "unix://"], ids=["unset", "no-path"])
def test_an_engine_without_a_path_is_at_the_usual_one(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", said)
    assert engine_address() == "unix:///var/run/docker.sock"


def test_what_is_no_engine_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(8)

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.0 404 Not Found\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        try:
            assert "is no Docker engine; set DOCKER_HOST" in str(backend.available())
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_user_who_may_not_speak_to_the_engine_is_told(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("becoming another user needs root")
    program = """
import os, socket, sys
from pytest_benchflow.sandboxes.docker import backend
import docker
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
os.chmod(sys.argv[1], 0o600)
os.environ["DOCKER_HOST"] = f"unix://{sys.argv[1]}"
os.setuid(65534)
print(backend.available())
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[3])
        # A directory that the other user may pass through.
        place = Path("/tmp", f"bf-{os.getpid()}")
        place.mkdir(mode=0o755)
        try:
            done = subprocess.run(
                [sys.executable, "-c", program, str(place / "sock")], capture_output=True, text=True, check=False
            )
        finally:
            (place / "sock").unlink(missing_ok=True)
            place.rmdir()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"this user may not speak to the Docker engine at {place}/sock; run pytest as root")


@pytest.mark.parametrize(
    ("dockerfile", "environment", "reason"),
    [
        pytest.param(None, {}, "names no image", id="no-image"),
        pytest.param(None, {"docker_image": "debian:12", "gpus": 1}, "needs a GPU", id="gpu"),
        pytest.param(None, {"docker_image": "debian:12", "os": "windows"}, "needs windows", id="windows"),
        pytest.param("FROM debian\nRUN --mount=type=cache,target=/x true\n", {}, "needs BuildKit", id="cache-mount"),
        pytest.param("FROM debian\nRUN <<EOF\ntrue\nEOF\n", {}, "needs BuildKit", id="heredoc"),
        pytest.param("FROM debian\nCOPY --chmod=755 a /a\n", {}, "needs BuildKit", id="chmod"),
        pytest.param("FROM debian AS one\nRUN true\nFROM debian\nCOPY --from=one /a /a\n", {}, None, id="stages"),
        pytest.param(None, {"docker_image": "debian:12"}, None, id="image"),
    ],
)
def test_what_cannot_be_done_is_skipped_with_the_reason(
    tmp_path: Path, dockerfile: str | None, environment: dict[str, Any], reason: str | None
) -> None:
    said = backend.unsupported(make_task(tmp_path, dockerfile=dockerfile, **environment))
    assert (said is None) == (reason is None)
    assert reason is None or (said is not None and said.startswith(reason))


def test_one_content_has_one_fingerprint(tmp_path: Path) -> None:
    tasks = []
    for name, noise in (("one", "x"), ("two", "y"), ("three", "x")):
        task = make_task(tmp_path / name, dockerfile="FROM debian\nCOPY . /app\n")
        assert task.environment_dir is not None
        (task.environment_dir / "run.sh").write_text("echo" if name != "three" else "echo other")
        (task.environment_dir / "run.sh").chmod(0o755)
        (task.environment_dir / "left.log").write_text(noise)
        (task.environment_dir / ".dockerignore").write_text("*.log\n")
        tasks.append(task)
    one, two, three = map(backend.fingerprint, tasks)
    assert one == two != three
    (tasks[1].path / "environment" / "run.sh").chmod(0o644)
    assert backend.fingerprint(tasks[1]) != one


def test_a_container_cannot_be_kept(tmp_path: Path) -> None:
    class There(DockerBackend):
        def available(self) -> str | None:
            return None

    task = make_task(tmp_path, docker_image="debian:12")
    there: Backend = There()
    config = RolloutConfig(task=task, agent="nop", sandbox=there, keep_sandbox=True)
    with pytest.raises(UsageError, match="--benchflow-keep-sandbox takes the local one"):
        resolve(config)


@pytest.mark.parametrize(
    ("engine", "warned"),
    [
        ({"MemoryLimit": True, "CpuCfsQuota": True, "NCPU": 8, "PidsLimit": True}, {}),
        (
            {"MemoryLimit": False, "CpuCfsQuota": True, "NCPU": 2},
            {"memory_mb": "does not hold", "cpus": "has 2"},
        ),
        ({"MemoryLimit": True, "NCPU": 8}, {"cpus": "does not hold"}),
    ],
    ids=["all-held", "no-memory-and-few-processors", "no-share-of-processors"],
)
def test_a_limit_that_an_engine_does_not_hold_is_warned_of(
    tmp_path: Path, engine: dict[str, Any], warned: dict[str, str]
) -> None:
    task = make_task(tmp_path, docker_image="debian:12", cpus=4, memory_mb=512)
    limits: dict[str, Any] = {}
    container_config(SandboxSpec("s", task, tmp_path), "sha256:1", "name", engine, limits, beside=False)
    found = {key: limit["warning"] for key, limit in limits.items() if "warning" in limit}
    assert found.keys() == warned.keys()
    assert all(text in found[key] for key, text in warned.items())
