"""The script that CI runs: it goes on after a failure, says what failed and ends red."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with the script, a stale lock and a whitespace error."""
    place = tmp_path / "repository"
    shutil.copytree(ROOT / ".ci", place / ".ci")
    shutil.copytree(ROOT / "requirements", place / "requirements")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (place / "pyproject.toml").write_text(pyproject.replace('"orjson', '"orjson2'), encoding="utf-8")
    (place / "note.txt").write_text("trailing \n", encoding="utf-8")
    for arguments in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", "-C", str(place), *arguments], check=True, capture_output=True)
    return place


def run(place: Path, *steps: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BENCHFLOW_CI_DIR": str(place.parent / "work")}
    command = ["bash", str(place / ".ci" / "run"), *steps]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/")


def test_goes_on_after_a_failure_and_ends_red(repository: Path) -> None:
    done = run(repository, "lock", "whitespace", "scope")
    assert done.returncode == 1
    assert "== lock: FAILED (1)" in done.stdout
    assert "== whitespace: FAILED (2)" in done.stdout
    assert "note.txt:1: trailing whitespace" in done.stdout
    assert "== scope: ok" in done.stdout
    assert "failed: lock whitespace" in done.stdout


def test_passes_when_every_step_does(repository: Path) -> None:
    done = run(repository, "scope")
    assert done.returncode == 0
    assert "all steps passed" in done.stdout


def test_unknown_step_names_those_there_are(repository: Path) -> None:
    done = run(repository, "nosuch")
    assert done.returncode == 2
    assert "whitespace" in done.stderr


def test_scripts_hold_no_shell_mistake() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", str(ROOT / ".ci" / "run")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
