"""The tasks that ship with the repository, and their recordings."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.proxy.replay import ReplayUpstream, recording_path
from pytest_benchflow.proxy.script import load_script
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.tasks.dockerfile import parse_dockerfile
from pytest_benchflow.tasks.load import find_tasks, load_task, task_digest

if TYPE_CHECKING:
    from pytest_benchflow.tasks.task import Task

ROOT = Path(__file__).parents[3]
TASKS = {path.name: load_task(path) for path in find_tasks(ROOT / "tasks")}
CELLS = [(name, agent) for name in TASKS for agent in ("baseline", "openhands")]


@pytest.fixture(params=TASKS, ids=str)
def bundled(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


def test_there_are_eight_or_more_of_different_kinds() -> None:
    assert len(TASKS) >= 8
    assert {task.form for task in TASKS.values()} == {"harbor", "document"}
    assert any(len(task.steps) > 1 for task in TASKS.values())
    assert any(task.skills for task in TASKS.values())


def test_a_task_raises_no_warning_and_is_scored_and_solved(bundled: Task) -> None:
    assert bundled.warnings == ()
    assert all(step.tests and step.solution for step in bundled.steps)
    assert bundled.description
    assert bundled.keywords


def test_an_environment_is_made_by_copying_only(bundled: Task) -> None:
    assert bundled.dockerfile is not None
    instructions = parse_dockerfile(bundled.dockerfile.read_text(), {})
    assert {each.keyword for each in instructions} == {"FROM", "WORKDIR", "COPY"}


def test_an_environment_holds_nothing_of_tests_and_solution(bundled: Task) -> None:
    assert bundled.environment_dir is not None
    shown = {_digest(path) for path in _files(bundled.environment_dir)}
    # Input that tests load again is no answer.
    hidden = [path for step in bundled.steps for path in _files(step.solution, step.tests) if path.suffix != ".sql"]
    assert hidden
    assert [path for path in hidden if _digest(path) in shown] == []


def test_tasks_score_by_the_same_program() -> None:
    copies = list((ROOT / "tasks").rglob("score.py"))
    assert len(copies) > 1
    assert len({path.read_bytes() for path in copies}) == 1


@pytest.mark.parametrize(("name", "agent"), CELLS, ids=[f"{name}-{agent}" for name, agent in CELLS])
def test_a_recording_is_of_the_task_as_it_is_and_says_what_its_script_says(name: str, agent: str) -> None:
    task = TASKS[name]
    head, *exchanges = read_records(recording_path(task, agent))
    assert head["recording"]["task_digest"] == task_digest(task), f"record {agent} on {name} again"
    script = load_script(ROOT / "tests" / "recordings" / f"{name}.{agent}.toml")
    said = [(turn.text, [(call.name, call.arguments) for call in turn.calls]) for turn in script]
    assert [_said(each["response"]["body"]) for each in exchanges] == said


@pytest.mark.parametrize(("name", "agent"), CELLS, ids=[f"{name}-{agent}" for name, agent in CELLS])
def test_a_recording_can_be_served_and_holds_no_path_of_a_machine(name: str, agent: str) -> None:
    path = recording_path(TASKS[name], agent)
    assert ReplayUpstream(path).model
    assert re.findall(r"/(?:home|root|Users|work|opt|usr/lib)/\S*", path.read_text(encoding="utf-8")) == []


def _said(body: dict[str, Any]) -> tuple[str | None, list[tuple[str, Any]]]:
    message = body["choices"][0]["message"]
    calls = [each["function"] for each in message.get("tool_calls", [])]
    return message["content"], [(call["name"], json.loads(call["arguments"])) for call in calls]


def _files(*directories: Path | None) -> list[Path]:
    return [path for directory in directories if directory for path in sorted(directory.rglob("*")) if path.is_file()]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
