"""The script that CI runs: it goes on after a failure, says what failed and ends red."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

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


def begin(place: Path, *steps: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "BENCHFLOW_CI_DIR": str(place.parent / "work")}
    command = ["bash", str(place / ".ci" / "run"), *steps]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd="/"
    )


def run(place: Path, *steps: str) -> subprocess.CompletedProcess[str]:
    process = begin(place, *steps)
    output, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def programs(place: Path, **scripts: str) -> Path:
    """Put programs where the environment of the lock has its own, and return the directory they can use."""
    work = place.parent / "work"
    (work / "venv" / "bin").mkdir(parents=True)
    (work / "venv" / "bin" / "python").symlink_to(sys.executable)
    for name, script in scripts.items():
        program = work / "venv" / "bin" / name
        program.write_text(f"#!/bin/sh\ncd {work}\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
    return work


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


def test_steps_run_beside_the_tests_and_outputs_are_kept_apart(repository: Path) -> None:
    work = programs(
        repository,
        pytest="echo one; for i in $(seq 600); do [ -e linted ] && break; sleep 0.1; done; echo two; ls linted; exit 3",
        ruff="touch linted; echo looked",
    )
    done = run(repository, "tests", "lint", "whitespace")
    assert (work / "linted").exists()
    assert "== lint\nlooked\n== lint: ok" in done.stdout
    assert "== tests\none\ntwo\nlinted\n== tests: FAILED (3)" in done.stdout
    assert "failed: whitespace tests" in done.stdout
    assert done.returncode == 1


def test_an_interrupt_ends_what_runs_side_by_side(repository: Path) -> None:
    work = programs(repository, pytest="echo $$ >tests; exec sleep 300", ruff="echo $$ >lint; exec sleep 300")
    process = begin(repository, "tests", "lint")
    notes = [work / "tests", work / "lint"]
    until(lambda: all(note.exists() and note.read_text(encoding="utf-8") for note in notes))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    until(lambda: not any(alive(int(note.read_text(encoding="utf-8"))) for note in notes))
    process.communicate()


def until(condition: Callable[[], bool], limit_sec: float = 60) -> None:
    end = time.monotonic() + limit_sec
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


def test_scripts_hold_no_shell_mistake() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", str(ROOT / ".ci" / "run")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
