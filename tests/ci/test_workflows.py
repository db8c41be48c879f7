"""Workflows call what a person can call: steps of .ci/run and targets of the Makefile, nothing of their own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPT = ROOT / ".ci" / "run"
# Ahead of our own command: run it as root, with the Python that the job chose.
_AS_ROOT = 'sudo --preserve-env env "PATH=$PATH" '


def workflow(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def jobs() -> list[Any]:
    return [
        pytest.param(job, id=f"{path.stem}-{name}")
        for path in WORKFLOWS
        for name, job in workflow(path)["jobs"].items()
    ]


def steps_of_ci() -> set[str]:
    return set(re.findall(r"^step_(\w+)\(\)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE))


def targets_of_make() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_the_three_workflows_are_there() -> None:
    assert [path.stem for path in WORKFLOWS] == ["audit", "rollout-smoke", "test"]


@pytest.mark.parametrize("job", jobs())
def test_each_command_is_a_step_or_a_target(job: dict[str, Any]) -> None:
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        program, *names = command.removeprefix(_AS_ROOT).split()
        known = {".ci/run": steps_of_ci(), "make": targets_of_make()}.get(program)
        assert known, f"{command!r} runs {program}, which is neither .ci/run nor make"
        assert names
        assert set(names) <= known, f"{command!r} names {sorted(set(names) - known)}"


@pytest.mark.parametrize("job", jobs())
def test_jobs_have_a_limit_and_pinned_actions(job: dict[str, Any]) -> None:
    assert 0 < job["timeout-minutes"] <= 60
    for step in job["steps"]:
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v1"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read(path: Path) -> None:
    assert workflow(path)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("job", jobs())
def test_scoped_steps_follow_a_scope_that_exists(job: dict[str, Any]) -> None:
    scopes = re.findall(r"^(\w+) = \[", (ROOT / ".ci" / "scopes.toml").read_text(encoding="utf-8"), re.MULTILINE)
    guarded = [step for step in job["steps"] if "steps.scope" in step.get("if", "")]
    named = [step["env"]["BENCHFLOW_SCOPE"] for step in job["steps"] if step.get("id") == "scope"]
    assert bool(guarded) == bool(named)
    assert set(named) <= set(scopes)


def test_everything_that_ci_runs_is_in_a_workflow() -> None:
    called = {
        name
        for path in WORKFLOWS
        for job in workflow(path)["jobs"].values()
        for step in job["steps"]
        for name in step.get("run", "").removeprefix(_AS_ROOT).split()[1:]
    }
    listed = subprocess.run(["bash", str(SCRIPT), "--list"], capture_output=True, text=True, check=True).stdout.split()
    # The job matrix of tests covers the second Python.
    assert set(listed) - called == {"python312"}
