"""What only a sandbox with an image has: builds, users, limits, and what a killed process leaves."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.rollout.reaper import Situation, decide
from pytest_benchflow.sandboxes._docker import inhabited
from pytest_benchflow.sandboxes._labels import SCRATCH, owner_of
from pytest_benchflow.sandboxes.docker import backend
from tests.contracts.sandboxrig import Rig, make_task
from tests.dockerhost import IMAGE, client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCKERFILE = f"""\
FROM {IMAGE}
ENV COLOUR=blue
RUN echo made >/made
COPY data.txt /data/
WORKDIR /work
USER worker
"""
# Prints what answers of: a name server, an address of the world, the port of the host that is asked for.
REACHED = """
import json, socket
found = []
for address in (("192.0.2.1", 80), ("127.0.0.1", {port})):
    try:
        socket.create_connection(address, 2).close()
        found.append(address[0])
    except OSError:
        pass
print(json.dumps([found, sorted(name for _, name in socket.if_nameindex())]))
"""


@pytest.fixture
def api(docker_engine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("DOCKER_HOST", docker_engine)
    made = client(docker_engine)
    yield made
    made.close()


@pytest.fixture
def rig(api: Any, tmp_path: Path) -> Iterator[Rig]:
    with Rig(backend, tmp_path, IMAGE) as made:
        yield made


def test_an_image_is_built_from_the_dockerfile_once_for_its_content(rig: Rig, api: Any, tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", dockerfile=DOCKERFILE)
    assert task.environment_dir is not None
    data = task.environment_dir / "data.txt"
    data.write_text("one")
    sandbox = rig.create(task)
    seen = rig.sh(sandbox, "id -un; pwd; echo $COLOUR; cat /made /data/data.txt").stdout
    assert seen == "worker\n/work\nblue\nmade\none"
    assert rig.sh(sandbox, "id -u", user="root").stdout == "0\n"
    images = {each["Id"] for each in api.images("pytest-benchflow")}
    rig.create(replace(task, path=tmp_path / "elsewhere"))
    assert {each["Id"] for each in api.images("pytest-benchflow")} == images
    before = backend.fingerprint(task)
    data.write_text("two")
    assert backend.fingerprint(task) != before
    assert rig.sh(rig.create(task), "cat /data/data.txt").stdout == "two"


def test_a_step_that_fails_is_named_with_what_it_said(rig: Rig, tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", dockerfile=f"FROM {IMAGE}\nRUN echo no such thing; exit 7\n")
    with pytest.raises(SandboxError, match=r"(?s)Dockerfile cannot be built: .*code: 7.*no such thing"):
        rig.create(task)


def test_a_build_that_takes_too_long_is_given_up(rig: Rig, tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", dockerfile=f"FROM {IMAGE}\nRUN sleep 2\n", build_timeout_sec=0.5)
    with pytest.raises(SandboxError, match=r"building .*Dockerfile took over 0.5 s"):
        rig.create(task)


def test_a_build_that_was_given_up_does_not_go_on(rig: Rig, docker_engine: str, tmp_path: Path) -> None:
    step = "sleep 600 # without a word"
    task = make_task(tmp_path / "task", dockerfile=f"FROM {IMAGE}\nRUN {step}\n", build_timeout_sec=3)
    with pytest.raises(SandboxError, match="took over 3 s"):
        rig.create(task)
    with contextlib.closing(client(docker_engine)) as engine:
        until = time.monotonic() + 60  # the engine stops by itself when nobody listens any more
        while left := [each for each in engine.containers() if step in each["Command"]]:
            assert time.monotonic() < until, left
            time.sleep(0.2)


def test_an_image_that_nobody_has_says_why(rig: Rig, tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", docker_image="127.0.0.1:1/nobody/has:this")
    with pytest.raises(SandboxError, match=r"image 127.0.0.1:1/nobody/has:this cannot be pulled: its registry cannot"):
        rig.create(task)


def test_a_user_that_the_image_has_not_is_named(rig: Rig) -> None:
    with pytest.raises(SandboxError, match="somebody"):
        rig.sh(rig.create(), "true", user="somebody")


def test_limits_are_the_engines_and_told(rig: Rig, tmp_path: Path) -> None:
    sandbox = rig.create(make_task(tmp_path / "task", memory_mb=256, cpus=0.5, storage_mb=100))
    held = {key: sandbox.limits[key]["applied"] for key in ("memory_mb", "cpus", "processes", "storage_mb")}
    group = "control group"
    assert held == {
        "memory_mb": group,
        "cpus": group,
        "processes": group,
        "storage_mb": "nothing: the engine's disk is shared",
    }
    result = rig.run(sandbox.exec(["python3", "-c", "x = b'x' * (400 << 20)"]))
    assert result.exit_code == 137


def test_a_container_has_no_way_out_and_no_device_of_its_own(rig: Rig, tmp_path: Path) -> None:
    import socket

    sandbox = rig.create()
    rig.run(sandbox.enter("agent", "proxy"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        result = rig.run(sandbox.exec(["python3", "-c", REACHED.format(port=port)]))
    assert json.loads(result.stdout) == [[], ["lo"]]
    assert rig.run(sandbox.exec(["python3", "-c", "import os; os.mknod('/d', 0o20600, 0x103)"])).exit_code == 1


def test_reaping_removes_one_sandbox_and_no_other(rig: Rig, api: Any) -> None:
    specs = [rig.spec() for _ in range(2)]
    sandboxes = [rig.run(backend.create(spec)) for spec in specs]
    try:
        assert not backend.reap(specs[0].scratch, "unix:///nowhere/docker.sock")
        assert backend.reap(specs[0].scratch, backend.place)
        left = [each["Labels"].get(SCRATCH) for each in api.containers(all=True)]
        assert str(specs[0].scratch) not in left
        assert str(specs[1].scratch) in left
    finally:
        for sandbox in sandboxes:
            rig.run(sandbox.stop())


def test_a_container_that_somebody_removed_is_an_error_that_says_so(rig: Rig, api: Any) -> None:
    spec = rig.spec()
    sandbox = rig.create(spec.task)
    (found,) = api.containers(filters={"label": [f"{SCRATCH}={sandbox._spec.scratch}"]})  # type: ignore[attr-defined]
    api.remove_container(found["Id"], force=True)
    with pytest.raises(SandboxError, match="is gone; somebody removed it"):
        rig.sh(sandbox, "true")


def test_what_is_fetched_from_a_full_disk_is_not_taken_for_whole(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sandbox = rig.create()
    rig.sh(sandbox, "echo half >/tmp/it")
    rig.run(sandbox.download("/tmp/it", tmp_path / "first"))
    assert (tmp_path / "first").read_text() == "half\n"
    monkeypatch.setattr(inhabited, "LEAST_BYTES", 1 << 60)
    with pytest.raises(SandboxError, match="Docker engine's disk is full"):
        rig.run(sandbox.download("/tmp/it", tmp_path / "second"))


def test_a_volume_that_a_killed_process_asked_with_is_found_and_removed(api: Any, rig: Rig) -> None:
    killed = """
import os, signal
from pytest_benchflow.sandboxes._docker.engine import Engine, engine_address
ask = Engine.ask
def die_after(self, name, *args, **options):
    answer = ask(self, name, *args, **options)
    if name == "create_volume":
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
Engine.ask = die_after
Engine.at(engine_address()).beside
"""
    done = subprocess.run([sys.executable, "-c", killed], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = [each for each in rig.run(backend.remains()) if each.name.startswith("volume:benchflow-probe-")]
    try:
        for hours, fate in ((0, "keep"), (3, "delete")):
            situation = Situation(owner_of("docker"), time.time() + hours * 3600)
            assert [decide(each, situation).fate for each in found] == [fate]
    finally:
        for each in found:
            rig.run(backend.discard(each.name))
    assert not [each for each in api.volumes()["Volumes"] or () if each["Name"].startswith("benchflow-probe-")]
