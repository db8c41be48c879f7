"""Workflows that the documentation shows parse, are careful, and call what exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_benchflow.cli import parser
from pytest_benchflow.settings import OPTIONS

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
_BLOCK = re.compile(r"^```yaml\n(name: .*?)^```$", re.MULTILINE | re.DOTALL)


def jobs() -> list[Any]:
    found = []
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
            loaded = yaml.safe_load(block)
            found += [
                pytest.param(loaded, job, id=f"{page.stem}-{loaded['name']}-{name}")
                for name, job in loaded["jobs"].items()
            ]
    return found


def commands(job: dict[str, Any], program: str) -> list[list[str]]:
    words = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
    return [each[1:] for each in words if each[0] == program]


def test_parity_has_a_workflow() -> None:
    assert "parity-parity-parity" in [each.id for each in jobs()]


@pytest.mark.parametrize(("workflow", "job"), jobs())
def test_it_may_only_read_and_ends(workflow: dict[str, Any], job: dict[str, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    assert 0 < job["timeout-minutes"] <= 60
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v1"))


@pytest.mark.parametrize(("workflow", "job"), jobs())
def test_its_options_exist(workflow: dict[str, Any], job: dict[str, Any]) -> None:
    ours = {option.flag for option in OPTIONS}
    asked = [word.partition("=")[0] for words in commands(job, "pytest") for word in words]
    assert commands(job, "pytest")
    assert {word for word in asked if word.startswith("--benchflow")} <= ours
    for words in commands(job, "pytest-benchflow"):
        parser().parse_args(words)


@pytest.mark.parametrize(("workflow", "job"), jobs())
def test_a_step_that_may_fail_is_judged_by_the_gate(workflow: dict[str, Any], job: dict[str, Any]) -> None:
    judged = {str(path) for words in commands(job, "pytest-benchflow") for path in parser().parse_args(words).junit}
    for step in job["steps"]:
        if step.get("continue-on-error"):
            (written,) = re.findall(r"--junit-xml=(\S+)", step["run"])
            assert written in judged
