"""A bundled task in a container, with its agents, leaves what it leaves in the local sandbox, and nothing else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.dockerhost import STAND_IN, client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

ROOT = Path(__file__).parents[2]
# What differs by what a sandbox is: its limits and its image are told in its own words.
OF_THE_BACKEND = ("limits",)


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
    task = make_task(agent_timeout=120)
    (task / "environment" / "Dockerfile").write_text(f"FROM {STAND_IN}\nWORKDIR /app\n")
    (task / "solution" / "solve.sh").write_text("#!/bin/sh\necho 42 > /app/answer\nsleep 60\n")
    root = task.parents[1]
    (root / "pytest.ini").write_text("[pytest]\n")
    asked = ("tasks", "--benchflow-sandbox=docker", "-k", "rollout", "-q")
    killed = machine.pytest(*asked, "--benchflow-agent=oracle", "--benchflow-job-name=killed", cwd=root)
    until = time.monotonic() + 60
    while not (left := _answering(api)) and time.monotonic() < until:
        time.sleep(0.1)
    killed.kill()
    killed.communicate(timeout=60)
    assert [each["State"] for each in left] == ["running"]
    following = machine.pytest(*asked, "--benchflow-agent=nop", cwd=root)
    output, _ = following.communicate(timeout=120)
    assert following.returncode == 0, output
    ledger = [json.loads(line) for line in (root / "jobs/killed/sandboxes.jsonl").read_text().splitlines()]
    assert [line["event"] for line in ledger] == ["create", "created", "deleted"]
    assert machine.leftovers() == []


def _answering(api: Any) -> list[dict[str, Any]]:
    """Return the containers in which a solution sleeps."""
    found = api.containers(filters={"label": ["benchflow.scratch"]})
    return [each for each in found if any("sleep 60" in line[-1] for line in api.top(each["Id"])["Processes"])]
