"""Tasks of several services: they are up before the agent, reached by name and by nothing else, and gone with it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._labels import SCRATCH
from pytest_benchflow.sandboxes.docker import backend
from pytest_benchflow.tasks.task import NetworkPolicy
from tests.contracts.sandboxrig import EchoEndpoint, Rig, make_task
from tests.dockerhost import IMAGE, client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.tasks.task import Task

SERVER = 'cd /srv && date +%s%N >started && exec python3 -u -m http.server "$$PORT"'
COMPOSE = f"""\
services:
  main:
    build: {{context: ., args: {{COLOUR: "${{COLOUR:-blue}}"}}}}
    command: ["sh", "-c", "sleep infinity"]
    environment: [SHOP=http://shop:9000]
    depends_on:
      store: {{condition: service_healthy}}
      seed: {{condition: service_completed_successfully}}
    volumes: ["shared:/shared:ro", "./data.txt:/data/data.txt"]
  store:
    image: {IMAGE}
    command: ["sh", "-c", 'mkdir -p /srv; {SERVER}']
    environment: {{PORT: 9000}}
    networks: {{default: {{aliases: [shop]}}}}
    healthcheck:
      test: ["CMD", "python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 9000))"]
      interval: 500ms
      retries: 20
    volumes: ["./data.txt:/srv/data.txt:ro"]
    ports: ["9000:9000"]
    restart: always
  seed:
    image: {IMAGE}
    command: sh -c "echo seeded >/shared/seed"
    depends_on: [store]
    volumes: ["shared:/shared"]
volumes:
  shared:
"""
DOCKERFILE = f"FROM {IMAGE}\nARG COLOUR=red\nRUN echo $COLOUR >/colour\nWORKDIR /work\n"
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode().strip())"
# Tells which of this container's ways out leads to the engine's machine, and so on from there.
REACHED = """
import socket, struct
for line in open("/proc/net/route").readlines()[1:]:
    interface, network, gateway = line.split()[:3]
    if int(gateway, 16) == 0:
        continue
    try:
        socket.create_connection((socket.inet_ntoa(struct.pack("<I", int(gateway, 16))), 9), 1).close()
    except ConnectionRefusedError:
        print("a way out")
    except OSError:
        pass
"""


@pytest.fixture(params=["docker_engine", "remote_engine"], ids=["here", "elsewhere"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue(request.param))
    with Rig(backend, tmp_path) as made:
        yield made


@pytest.fixture
def api(docker_engine: str) -> Iterator[Any]:
    with contextlib.closing(client(docker_engine)) as made:
        yield made


def compose_task(path: Path, text: str, **environment: Any) -> Task:
    task = make_task(path, dockerfile=DOCKERFILE, **environment)
    assert task.environment_dir is not None
    (task.environment_dir / "docker-compose.yaml").write_text(text)
    (task.environment_dir / "data.txt").write_text("goods")
    return replace(task, compose_file=task.environment_dir / "docker-compose.yaml")


def left(api: Any, scratch: Path) -> list[str]:
    wanted = {"label": [f"{SCRATCH}={scratch}"]}
    found = [*api.containers(all=True, filters=wanted), *api.networks(filters=wanted)]
    return [each["Id"] for each in (*found, *({"Id": one["Name"]} for one in api.volumes(filters=wanted)["Volumes"]))]


def test_services_are_up_and_reached_by_name_and_gone_with_the_sandbox(rig: Rig, api: Any, tmp_path: Path) -> None:
    spec = rig.spec(compose_task(tmp_path / "task", COMPOSE, build_timeout_sec=60))
    sandbox = rig.run(backend.create(spec))
    try:
        rig.run(sandbox.enter("agent", "proxy"))
        seen = rig.sh(sandbox, "pwd; cat /colour /shared/seed /data/data.txt; echo; echo $SHOP; touch /shared/x")
        assert seen.stdout == "/work\nblue\nseeded\ngoods\nhttp://shop:9000\n"
        assert "Read-only" in seen.stderr
        started = rig.run(sandbox.exec(["python3", "-c", FETCH, "http://store:9000/started"])).stdout
        assert rig.run(sandbox.exec(["python3", "-c", FETCH, "http://shop:9000/data.txt"])).stdout == "goods\n"
        assert rig.run(sandbox.exec(["python3", "-c", REACHED])).stdout == ""
        assert rig.run(_asked(sandbox)) == "echo"
        rig.sh(sandbox, "echo kept >/work/file; sleep 7777 &")
        rig.run(sandbox.enter("verifier", "none"))
        assert rig.sh(sandbox, "cat /work/file; ps -e -o args | grep -c '[s]leep 7777'").stdout == "kept\n0\n"
        assert rig.run(sandbox.exec(["python3", "-c", FETCH, "http://store:9000/started"])).stdout == started
        assert len(left(api, spec.scratch)) == 5
    finally:
        rig.run(sandbox.stop())
    assert left(api, spec.scratch) == []


async def _asked(sandbox: Any) -> str:
    endpoint = EchoEndpoint()
    url = await sandbox.reach(endpoint)
    program = f"import socket; c = socket.create_connection(('127.0.0.1', {url.rpartition(':')[2]}), 5); "
    said = await sandbox.exec(["python3", "-c", program + "c.sendall(b'x\\n'); print(c.makefile().readline().strip())"])
    await endpoint.close()
    return str(said.stdout.strip())


BROKEN = {
    "ends": ("command: sh -c 'echo no such table; exit 3'", "ended with exit code 3.*no such table"),
    "unhealthy": (
        "command: sleep 99\n    healthcheck: {test: 'echo not yet; false', interval: 100ms, retries: 1}",
        "is unhealthy; its healthcheck says: not yet",
    ),
    "never-ready": (
        "command: sleep 99\n    healthcheck: {test: 'false', interval: 60s}",
        "is not ready after 2 s, which build_timeout_sec allows",
    ),
    "no-program": ("command: [no-such-program]", "cannot be started: .*no-such-program"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_service_that_does_not_come_up_is_told_with_its_log(
    docker_engine: str, api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_engine)
    how, said = BROKEN[kind]
    # Whether one that ends at once is seen running before that is a matter of luck, unless its end is waited for.
    waits = "depends_on: {store: {condition: service_completed_successfully}}" if kind == "ends" else "tty: false"
    text = f"services:\n  main:\n    image: {IMAGE}\n    {waits}\n  store:\n    image: {IMAGE}\n    {how}\n"
    limit = 2 if kind == "never-ready" else 60
    with Rig(backend, tmp_path) as rig:
        spec = rig.spec(compose_task(tmp_path / "task", text, build_timeout_sec=limit))
        with pytest.raises(SandboxError, match=f"(?s)the service store {said}"):
            rig.run(backend.create(spec))
        assert left(api, spec.scratch) == []


def test_a_healthcheck_of_main_is_waited_for(
    docker_engine: str, api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_engine)
    check = "echo not yet; sleep 0.3; touch /ready; exit {}"
    text = (
        f"services:\n  main:\n    image: {IMAGE}\n    healthcheck: {{interval: 100ms, retries: 1, test: '{check}'}}\n"
    )
    with Rig(backend, tmp_path) as rig:
        task = compose_task(tmp_path / "good", text.replace("exit {}", "exit 0"), build_timeout_sec=60)
        assert rig.sh(rig.create(task), "ls /ready").exit_code == 0
        spec = rig.spec(compose_task(tmp_path / "bad", text.replace("exit {}", "exit 1"), build_timeout_sec=60))
        with pytest.raises(SandboxError, match="the service main is unhealthy; its healthcheck says: not yet"):
            rig.run(backend.create(spec))
        assert left(api, spec.scratch) == []


def test_a_task_that_says_public_gives_its_services_a_way_out_and_its_agent_none(
    rig: Rig, api: Any, tmp_path: Path
) -> None:
    text = (
        f"services:\n  web: {{image: {IMAGE}, command: sleep 99}}\n  shut:\n    image: {IMAGE}\n    command: sleep 99\n"
    )
    text += "    networks: [shut]\nnetworks: {shut: {internal: true}}\n"
    spec = rig.spec(compose_task(tmp_path / "task", text, network=NetworkPolicy("public"), build_timeout_sec=60))
    sandbox = rig.run(backend.create(spec))
    try:
        reached = {}
        for each in api.containers(filters={"label": [f"{SCRATCH}={spec.scratch}"]}):
            made = api.exec_create(each["Id"], ["python3", "-c", REACHED])
            reached[each["Labels"].get("benchflow.service", "main")] = api.exec_start(made["Id"]).decode()
        assert reached == {"main": "", "web": "a way out\n", "shut": ""}
    finally:
        rig.run(sandbox.stop())


def test_a_sandbox_that_a_kill_left_is_reaped_with_its_services(rig: Rig, api: Any, tmp_path: Path) -> None:
    spec = rig.spec(compose_task(tmp_path / "task", COMPOSE, build_timeout_sec=60))
    sandbox = rig.run(backend.create(spec))
    assert len(left(api, spec.scratch)) == 5
    assert backend.reap(spec.scratch, backend.place)
    assert left(api, spec.scratch) == []
    rig.run(sandbox.stop())
