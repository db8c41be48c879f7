"""A bundled task in a container, with its agents, leaves what it leaves in the local sandbox, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout
from tests.dockerhost import STAND_IN, Dockerd, Door, client, import_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

ROOT = Path(__file__).parents[2]
# What differs by what a sandbox is: its limits and its image are told in its own words.
OF_THE_BACKEND = ("limits",)
SERVICES = f"""\
services:
  main: {{depends_on: {{web: {{condition: service_healthy}}}}}}
  web:
    image: {STAND_IN}
    command: sh -c "cd /srv && exec python3 -m http.server 9000"
    volumes: ["./page:/srv/page"]
    healthcheck:
      interval: 500ms
      test: "python3 -c \\"import socket; socket.create_connection(('127.0.0.1', 9000))\\""
"""
FETCH = "import urllib.request; print(urllib.request.urlopen('http://web:9000/page').read().decode().strip())"
ASKED = ("tasks", "--benchflow-sandbox=docker", "-k", "rollout", "-q")


@pytest.fixture
def api(docker_engine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("DOCKER_HOST", docker_engine)
    made = client(docker_engine)
    yield made
    assert made.containers(all=True, filters={"label": ["benchflow.scratch"]}) == []
    made.close()


def shape(value: Any) -> Any:
    """Return a JSON value with every number and text replaced by its kind."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key not in OF_THE_BACKEND}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__ if isinstance(value, int | float | str) else value


def run(machine: Machine, jobs: Path, sandbox: str, agent: str) -> Path:
    asked = [f"--benchflow-sandbox={sandbox}", f"--benchflow-agent={agent}", f"--benchflow-jobs-dir={jobs / sandbox}"]
    session = machine.pytest("tasks/csv-report", *asked, "-q", cwd=ROOT)
    output, _ = session.communicate(timeout=300)
    assert session.returncode == 0, output
    (rollout,) = (path.parent for path in (jobs / sandbox).glob(f"*/*{agent}*/result.json"))
    return rollout


def test_agents_leave_the_same_artifacts_as_in_the_local_sandbox(api: Any, machine: Machine, tmp_path: Path) -> None:
    for agent in ("oracle", "baseline"):
        docker, local = (run(machine, tmp_path, sandbox, agent) for sandbox in ("docker", "local"))
        files = [{path.relative_to(place).as_posix() for path in place.rglob("*")} for place in (docker, local)]
        assert files[0] == files[1]
        read = [[json.loads((place / "result.json").read_text()) for place in (docker, local)]]
        read += [[json.loads((place / "config.json").read_text()) for place in (docker, local)]]
        for theirs, ours in read:
            assert shape(theirs) == shape(ours)
        assert read[0][0]["verdict"] == "pass"
        assert (read[1][0]["environment"], read[1][1]["environment"]) == ("docker", "local")


def test_the_next_run_removes_the_container_that_a_kill_left(api: Any, machine: Machine, make_task: MakeTask) -> None:
    root = lay_out(make_task)
    killed = machine.pytest(*ASKED, "--benchflow-agent=oracle", "--benchflow-job-name=killed", cwd=root)
    left = wait_for_solution(api)
    killed.kill()
    killed.communicate(timeout=60)
    assert [each["State"] for each in left] == ["running"]
    following = machine.pytest(*ASKED, "--benchflow-agent=nop", cwd=root)
    output, _ = following.communicate(timeout=120)
    assert following.returncode == 0, output
    assert events(root / "jobs/killed") == ["create", "created", "deleted"]
    assert machine.leftovers() == []


def test_an_engine_that_stops_in_the_middle_is_told_of_and_reaped_when_it_is_back(
    docker_engine: str, machine: Machine, make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dockerd = Dockerd(tmp_path / "dockerd.log")
    try:
        assert dockerd.start()
        import_image(dockerd.address, tmp_path, STAND_IN)
        monkeypatch.setenv("DOCKER_HOST", dockerd.address)
        root = lay_out(make_task)
        lost = machine.pytest(*ASKED, "--benchflow-agent=oracle", "--benchflow-job-name=lost", cwd=root)
        with contextlib.closing(client(dockerd.address)) as api:
            assert wait_for_solution(api)
        dockerd.stop()
        output, _ = lost.communicate(timeout=120)
        assert lost.returncode == 1, output
        (result,) = (json.loads(path.read_text()) for path in root.glob("jobs/lost/*/result.json"))
        assert (result["verdict"], result["error_category"]) == ("unhealthy", "sandbox")
        assert "does not answer any more" in result["error"]
        (said,) = root.glob("jobs/lost/*/agent/stdout.txt")
        assert said.read_text() == "begun\n"
        assert events(root / "jobs/lost") == ["create", "created"]
        assert dockerd.start()
        following = machine.pytest(*ASKED, "--benchflow-agent=nop", cwd=root)
        output, _ = following.communicate(timeout=120)
        assert following.returncode == 0, output
        assert events(root / "jobs/lost") == ["create", "created", "deleted"]
        with contextlib.closing(client(dockerd.address)) as api:
            assert api.containers(all=True) == []
    finally:
        dockerd.remove()


def test_a_container_that_somebody_removes_is_told_of_and_nothing_is_left(
    api: Any, machine: Machine, make_task: MakeTask
) -> None:
    root = lay_out(make_task)
    session = machine.pytest(*ASKED, "--benchflow-agent=oracle", "--benchflow-job-name=robbed", cwd=root)
    (found,) = wait_for_solution(api)
    api.remove_container(found["Id"], force=True)
    output, _ = session.communicate(timeout=120)
    assert session.returncode == 1, output
    (result,) = (json.loads(path.read_text()) for path in root.glob("jobs/robbed/*/result.json"))
    assert (result["verdict"], result["error_category"]) == ("unhealthy", "sandbox")
    assert "somebody" in result["error"]
    assert events(root / "jobs/robbed") == ["create", "created", "deleted"]


def test_a_connection_that_is_cut_under_an_agent_keeps_what_was_captured(
    docker_engine: str, api: Any, make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(docker_engine)
    monkeypatch.setenv("DOCKER_HOST", door.address)
    task = make_task(agent_timeout=120)
    (task / "environment" / "Dockerfile").write_text(f"FROM {STAND_IN}\nWORKDIR /app\n")

    async def main() -> Any:
        turns = (ScriptTurn(calls=(Call("shell", {"command": "sleep 60"}),)), ScriptTurn(text="Done."))
        async with serving(ScriptedUpstream(turns)) as url:
            model = f"invented/scripted@{url}"
            config = RolloutConfig(
                task=task, agent="baseline", model=model, sandbox="docker", jobs_dir=tmp_path / "jobs"
            )
            running = asyncio.create_task(run_rollout(config))
            assert await asyncio.to_thread(wait_for_solution, api)
            door.slam()
            return await running

    try:
        rollout = asyncio.run(main())
        assert (rollout.verdict, rollout.result["error_category"]) == ("unhealthy", "sandbox"), rollout.result
        assert "the connection to a running command was lost" in rollout.result["error"]
        assert len(rollout.exchanges) == 1
        assert rollout.result["training_ready"] is False
    finally:
        door.close()


def test_a_task_of_several_services_is_solved(api: Any, machine: Machine, make_task: MakeTask) -> None:
    root = lay_out(make_task, seconds=0)
    (place,) = root.glob("*/*/environment")
    (place / "page").write_text("42\n")
    (place / "docker-compose.yaml").write_text(SERVICES)
    (place.parent / "solution" / "solve.sh").write_text(f'#!/bin/sh\npython3 -c "{FETCH}" > /app/answer\n')
    options = (*ASKED, "--benchflow-agent=oracle", "--benchflow-job-name=services", "-rs")
    session = machine.pytest(*options, cwd=root)
    output, _ = session.communicate(timeout=120)
    assert session.returncode == 0, output
    (result,) = (json.loads(path.read_text()) for path in root.glob("jobs/services/*/result.json"))
    assert result["verdict"] == "pass"
    assert events(root / "jobs/services") == ["create", "created", "deleted"]
    wanted = {"label": ["benchflow.scratch"]}
    assert (api.networks(filters=wanted), api.volumes(filters=wanted)["Volumes"] or []) == ([], [])


def test_an_engine_without_space_is_told_by_what_it_could_not_do(
    docker_engine: str, machine: Machine, make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dockerd = Dockerd(tmp_path / "dockerd.log", megabytes=160)
    door = Door(dockerd.address)
    try:
        assert dockerd.start()
        import_image(dockerd.address, tmp_path, STAND_IN)
        monkeypatch.setenv("DOCKER_HOST", dockerd.address)
        root = lay_out(make_task, seconds=0)
        (solution,) = root.glob("*/*/solution/solve.sh")
        solution.write_text("#!/bin/sh\necho 42 >/app/answer\nhead -c 1000000000 /dev/zero >/app/filler\ntrue\n")
        for job, address in (("beside", dockerd.address), ("elsewhere", door.address)):
            monkeypatch.setenv("DOCKER_HOST", address)
            session = machine.pytest(*ASKED, "--benchflow-agent=oracle", f"--benchflow-job-name={job}", cwd=root)
            output, _ = session.communicate(timeout=120)
            assert session.returncode == 1, output
            (result,) = (json.loads(path.read_text()) for path in root.glob(f"jobs/{job}/*/result.json"))
            # Nothing can be written any more, a reward neither: what is known is kept, nothing is taken for a score.
            assert (result["verdict"], result["rewards"]) == ("unhealthy", None)
            assert (result["error_category"], result["verifier_error"]) == ("sandbox", None)
            assert result["error"].startswith("the Docker engine's disk is full; `docker system prune` makes room")
            (said,) = root.glob(f"jobs/{job}/*/agent/stderr.txt")
            assert "No space left on device" in said.read_text()
            assert events(root / "jobs" / job) == ["create", "created", "deleted"]
        monkeypatch.setenv("DOCKER_HOST", dockerd.address)
        (place,) = root.glob("*/*/environment")
        (place / "filler").write_bytes(os.urandom(1 << 20) * 170)
        (place / "Dockerfile").write_text(f"FROM {STAND_IN}\nCOPY filler /filler\n")
        session = machine.pytest(*ASKED, "--benchflow-agent=oracle", "--benchflow-job-name=large", cwd=root)
        output, _ = session.communicate(timeout=120)
        (result,) = (json.loads(path.read_text()) for path in root.glob("jobs/large/*/result.json"))
        assert "cannot be built: the Docker engine's disk is full; `docker system prune` makes room" in result["error"]
    finally:
        door.close()
        dockerd.remove()


def lay_out(make_task: MakeTask, seconds: int = 60) -> Path:
    """Return a directory with one task, whose solution takes its time."""
    task = make_task(agent_timeout=120)
    (task / "environment" / "Dockerfile").write_text(f"FROM {STAND_IN}\nWORKDIR /app\n")
    (task / "solution" / "solve.sh").write_text(f"#!/bin/sh\necho begun\necho 42 > /app/answer\nsleep {seconds}\n")
    (task.parents[1] / "pytest.ini").write_text("[pytest]\n")
    return task.parents[1]


def wait_for_solution(api: Any) -> list[dict[str, Any]]:
    """Return the containers in which a solution sleeps, as soon as there is one."""
    until = time.monotonic() + 60
    while not (left := _answering(api)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def events(job: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (job / "sandboxes.jsonl").read_text().splitlines()]


def _answering(api: Any) -> list[dict[str, Any]]:
    """Return the containers in which a solution sleeps."""
    found = api.containers(filters={"label": ["benchflow.scratch"]})
    return [each for each in found if any("sleep 60" in line[-1] for line in api.top(each["Id"])["Processes"])]
