"""`pytest-benchflow reap` removes what dead sessions left, and tells the same beforehand on a dry run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import cli, registry
from pytest_benchflow.contracts import Remain
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._labels import MANAGED, OWNER
from pytest_benchflow.sandboxes.local import LocalBackend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Makes two sandboxes' directories, tells of one that outlives it, and is killed.
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from pytest_benchflow.rollout.host import Host

async def main():
    async with Host("killed") as host:
        for name, backend in (("bf-1", "local"), ("bf-2", "shed")):
            scratch = host.scratch.new(name)
            (scratch / "file").touch()
            facts = {"sandbox": name, "backend": backend, "scratch": str(scratch), "place": "there"}
            host.ledger.add(Path(sys.argv[1]), "create", **facts, dies_with_process=backend == "local")
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


class Shed(LocalBackend):
    """A backend with sandboxes of several owners, at a place of its own."""

    name = "shed"
    dies_with_process = False
    place = "there"

    def __init__(self) -> None:
        now = time.time()
        ours, bobs = {MANAGED: "1:ada", OWNER: "ada"}, {MANAGED: "1", OWNER: "bob"}
        self.found = {
            "old": Remain("old", "shed", ours, now - 3 * 86400),
            "young": Remain("young", "shed", ours, now - 5400),
            "bobs": Remain("bobs", "shed", bobs, now - 3 * 86400),
        }
        self.gone: list[str] = []
        self.locked = False

    async def remains(self) -> list[Remain]:
        if self.locked:
            raise SandboxError("the shed is locked")
        return list(self.found.values())

    async def discard(self, name: str) -> None:
        del self.found[name]

    def reap(self, scratch: Path, place: str) -> bool:
        assert place == "there"
        self.gone.append(scratch.name)
        return not self.locked


@pytest.fixture
def shed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shed]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("BENCHFLOW_SHED_OWNER", "ada")
    monkeypatch.setenv("BENCHFLOW_LOCAL_OWNER", "ada")
    made = Shed()
    registry.register("sandboxes", "shed", made)
    yield made
    registry.forget_registered()


@pytest.fixture
def job(shed: Shed, tmp_path: Path) -> Path:
    """Return a job that a killed session worked on."""
    path = tmp_path / "jobs" / "job"
    path.mkdir(parents=True)
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == -9
    return path


def reap(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """Run the command, and return its code and lines; it forgets what was registered, as each command does."""
    registered = dict(registry.registered("sandboxes"))
    code = cli.main(["reap", *arguments])
    for name, backend in registered.items():
        registry.register("sandboxes", name, backend)
    return code, capsys.readouterr().out.splitlines()


def events(job: Path) -> list[tuple[str, str]]:
    return [
        (each["sandbox"], each["event"]) for each in map(json.loads, (job / "sandboxes.jsonl").read_text().splitlines())
    ]


def test_what_a_dry_run_tells_is_what_is_done(shed: Shed, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--sandbox", "local", "--sandbox", "shed")
    code, dry = reap(capsys, "--dry-run", *asked)
    assert code == 0
    assert set(shed.found) == {"old", "young", "bobs"}
    assert not shed.gone
    assert events(job) == [("bf-1", "create"), ("bf-2", "create")]
    code, real = reap(capsys, *asked)
    assert code == 0, real
    assert [line.replace("would remove", "removed") for line in dry] == real
    assert set(shed.found) == {"young", "bobs"}
    local = [line.partition(" (")[0].rpartition("/")[2] for line in real if line.startswith("local: removed")]
    assert local == ["bf-1", "bf-2"]
    assert [line for line in real if line.startswith("shed")] == [
        "shed: owner ada, at there",
        "shed: removed old: 3 d old",
        "shed: kept young: 1.5 h old, which is younger than 2 h",
        "shed: 1 of others left alone",
    ]
    assert events(job)[2:] == [("bf-1", "deleted"), ("bf-2", "deleted")]
    assert shed.gone == ["bf-2"]
    assert not list(job.parents[1].glob("pytest-benchflow-*/*"))


def test_what_is_younger_goes_on_request(shed: Shed, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = reap(capsys, "--older-than", "90s", "--sandbox", "shed")
    assert (code, set(shed.found)) == (0, {"bobs"})


def test_what_nobody_can_tell_of_is_not_fine(shed: Shed, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shed.locked = True
    code, lines = reap(capsys, "--sandbox", "shed")
    assert code == 1
    assert "shed: warning: it is not known what is left: the shed is locked" in lines
    assert lines[-1].startswith("shed: NOT removed bf-2, made at there: it is not known whether it is gone; ")
    assert events(job)[-1] == ("bf-1", "deleted")

    (place,) = (found for found in job.parents[1].glob("pytest-benchflow-*/*") if f"removing {found} ends" in lines[-1])
    shutil.rmtree(place)
    shed.locked = False
    assert reap(capsys, "--sandbox", "shed")[0] == 0


def test_a_dry_run_names_what_was_made_elsewhere(shed: Shed, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shed.place = "elsewhere"
    _, lines = reap(capsys, "--dry-run", "--sandbox", "shed")
    assert lines[-1] == "shed: would look for bf-2 at there"
    assert len(events(job)) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["--older-than", "2"], "--older-than is '2'; it takes a number and a unit", id="no-unit"),
        pytest.param(["--older-than", "2 weeks"], "--older-than is '2 weeks'", id="another-unit"),
        pytest.param(["--older-than", "-2h"], "expected one argument", id="negative"),
        pytest.param(["--sandbox", "shack"], "nothing is named 'shack'", id="an-unknown-sandbox"),
    ],
)
def test_wrong_use_is_told(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    try:
        code = cli.main(["reap", *arguments])
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    assert says in capsys.readouterr().err
