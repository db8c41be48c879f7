"""What a killed session left in an engine that others use too is removed by the command, and theirs is not."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.sandboxes._labels import MANAGED, OWNER, SCRATCH
from tests.dockerhost import STAND_IN, client
from tests.e2e.test_docker import ASKED, events, lay_out, wait_for_solution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine


@pytest.fixture
def api(docker_engine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("DOCKER_HOST", docker_engine)
    with contextlib.closing(client(docker_engine)) as made:
        yield made
        for each in made.containers(all=True, filters={"label": ["test.reap"]}):
            made.remove_container(each["Id"], force=True)


def test_a_killed_sessions_container_is_reaped_and_no_other(api: Any, machine: Machine, make_task: MakeTask) -> None:
    root = lay_out(make_task)
    killed = machine.pytest(*ASKED, "--benchflow-agent=oracle", "--benchflow-job-name=killed", cwd=root)
    (ours,) = wait_for_solution(api)
    killed.kill()
    killed.communicate(timeout=60)
    owner = ours["Labels"][OWNER]
    assert ours["Labels"][MANAGED] == f"1:{owner}"
    of_the_dead_session = {**ours["Labels"], SCRATCH: ours["Labels"][SCRATCH] + "-2"}
    theirs = {
        "anothers": {**of_the_dead_session, MANAGED: "1:bob", OWNER: "bob"},
        "of-nobody": {name: value for name, value in of_the_dead_session.items() if name != OWNER},
        "mismatched": {**of_the_dead_session, MANAGED: "1:bob"},
        "young": {MANAGED: f"1:{owner}", OWNER: owner, SCRATCH: "/elsewhere/session/bf-1"},
    }
    ids = {
        name: api.create_container(STAND_IN, ["true"], labels={**labels, "test.reap": name})["Id"]
        for name, labels in theirs.items()
    }

    def reap(*arguments: str) -> list[str]:
        command = (sys.executable, "-m", "pytest_benchflow.cli", "reap", "--sandbox", "docker", *arguments)
        run = machine.start(*command, cwd=root)
        output, _ = run.communicate(timeout=60)
        assert run.returncode == 0, output
        return [line for line in output.splitlines() if any(each in line for each in (ours["Id"], *ids.values()))]

    dry = reap("--dry-run")
    there = {each["Id"] for each in api.containers(all=True)}
    assert there >= {ours["Id"], *ids.values()}
    real = reap()
    assert [line.replace("would remove", "removed").partition(" (")[0] for line in dry] == [
        line.partition(" (")[0] for line in real
    ]
    told = {name: next(line for line in [*real, ""] if one in line or not line) for name, one in ids.items()}
    assert "younger than 2 h" in told["young"]
    assert all("warning" in told[name] for name in ("of-nobody", "mismatched"))
    assert told["anothers"] == ""
    left = {each["Id"] for each in api.containers(all=True)}
    assert there - left == {ours["Id"]}
    assert events(root / "jobs/killed") == ["create", "created", "deleted"]
    assert machine.leftovers() == []
