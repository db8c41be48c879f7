"""Scope detection: a job is a no-op only where nothing it is about has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci"


def git(place: Path, *arguments: str) -> None:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    subprocess.run(["git", *who, "-C", str(place), *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository whose last commit is the base of a change."""
    (tmp_path / ".ci").mkdir()
    for name in ("scope.py", "scopes.toml"):
        shutil.copy(CI / name, tmp_path / ".ci")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "base")
    git(tmp_path, "tag", "base")
    return tmp_path


def scope(repository: Path, name: str, *, base: str | None = "base", output: Path | None = None) -> tuple[int, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
    environment = {**kept, "BENCHFLOW_CI_BASE": base or "", **({"GITHUB_OUTPUT": str(output)} if output else {})}
    command = [sys.executable, str(repository / ".ci" / "scope.py"), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def change(repository: Path, *names: str) -> None:
    for name in names:
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("changed\n", encoding="utf-8")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "change")


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        pytest.param("rollouts", ["pytest_benchflow/rollout/run.py"], "true", id="package"),
        pytest.param("rollouts", ["docs/tasks.md", "README.md"], "false", id="only-docs"),
        pytest.param("rollouts", ["docs/tasks.md", "tasks/csv-report/task.toml"], "true", id="docs-and-a-task"),
        pytest.param("code", ["docs/tasks.md"], "true", id="docs-are-tested"),
        pytest.param("code", ["CHANGELOG.md", "docs/run.svg"], "false", id="nothing-that-is-tested"),
        pytest.param("dependencies", ["requirements/ci.txt"], "true", id="lock"),
        pytest.param("dependencies", ["pytest_benchflow/cli.py"], "false", id="no-dependency"),
    ],
)
def test_only_what_concerns_a_job_is_relevant(repository: Path, name: str, files: list[str], expected: str) -> None:
    change(repository, *files)
    code, text = scope(repository, name)
    assert code == 0
    assert text.startswith(f"relevant={expected}")


@pytest.mark.parametrize("base", [pytest.param(None, id="no-base"), pytest.param("gone", id="unknown-base")])
def test_what_cannot_be_told_is_relevant(repository: Path, base: str | None) -> None:
    code, text = scope(repository, "rollouts", base=base)
    assert code == 0
    assert text.startswith("relevant=true")


def test_answer_becomes_the_output_of_a_workflow_step(repository: Path, tmp_path: Path) -> None:
    change(repository, "LICENSE")
    output = tmp_path / "output"
    scope(repository, "code", output=output)
    assert output.read_text(encoding="utf-8") == "relevant=false\n"


def test_unknown_scope_names_those_there_are(repository: Path) -> None:
    code, text = scope(repository, "nosuch")
    assert code == 2
    assert "rollouts" in text
