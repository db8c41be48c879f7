from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import UsageError
from pytest_benchflow.tasks.dockerfile import parse_dockerfile
from pytest_benchflow.tasks.instructions import Copy, From, Workdir
from pytest_benchflow.tasks.load import load_task
from pytest_benchflow.tasks.scaffold import new_task

if TYPE_CHECKING:
    from pathlib import Path


def test_a_new_task_loads_without_a_warning(tmp_path: Path) -> None:
    files = new_task(tmp_path / "deep/tea-timer")
    task = load_task(tmp_path / "deep/tea-timer")
    assert (task.name, task.warnings) == ("tea-timer", ())
    assert sorted(files) == sorted(path for path in task.path.rglob("*") if path.is_file())
    assert task.steps[0].solution is not None
    assert all(os.access(path, os.X_OK) for path in files if path.suffix == ".sh")


def test_a_new_task_needs_only_what_every_sandbox_has(tmp_path: Path) -> None:
    new_task(tmp_path / "x")
    instructions = parse_dockerfile((tmp_path / "x/environment/Dockerfile").read_text())
    assert [type(instruction) for instruction in instructions] == [From, Workdir, Copy]
    for copy in instructions:
        if isinstance(copy, Copy):
            assert all((tmp_path / "x/environment" / source).is_file() for source in copy.sources)


@pytest.mark.parametrize(("solved", "reward"), [(True, 1), (False, 0)], ids=["oracle", "nop"])
def test_its_scripts_score_the_solution_and_nothing_else(tmp_path: Path, solved: bool, reward: int) -> None:
    new_task(tmp_path / "x")
    for part in ("app", "logs"):
        (tmp_path / part).mkdir()
    # The scripts name places in a sandbox; here they are moved below the test's own directory.
    for path in (tmp_path / "x").rglob("*"):
        if path.is_file():
            text = path.read_text()
            for place in ("/app", "/logs", "/tests"):
                text = text.replace(place, f"{tmp_path}/x/tests" if place == "/tests" else f"{tmp_path}{place}")
            path.write_text(text)
    (tmp_path / "app/numbers.txt").write_text((tmp_path / "x/environment/numbers.txt").read_text())
    if solved:
        subprocess.run(["bash", tmp_path / "x/solution/solve.sh"], check=True)
    subprocess.run(["bash", tmp_path / "x/tests/test.sh"], check=True, capture_output=True)
    assert json.loads((tmp_path / "logs/verifier/reward.json").read_text()) == {"reward": reward}


def test_it_takes_another_name(tmp_path: Path) -> None:
    new_task(tmp_path / "x", "teahouse/tea-timer")
    assert load_task(tmp_path / "x").name == "teahouse/tea-timer"


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_nothing_that_exists_is_touched(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "x"
    place.mkdir() if kind == "directory" else place.touch()
    with pytest.raises(UsageError, match="exists already; name a directory that is still to be made"):
        new_task(place)
    assert place.is_file() or not list(place.iterdir())


@pytest.mark.parametrize("name", ["../x", "a b", ".x", 'x"y', "x\n"], ids=["up", "blank", "dot", "quote", "newline"])
def test_names_that_no_file_takes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be named"):
        new_task(tmp_path / "x", name)
    assert not (tmp_path / "x").exists()


def test_a_place_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made: Not a directory; name a place you may write to"):
        new_task(tmp_path / "file/x")
