"""The ledger of sandboxes tells of the end of each, also where the process that should have written it was killed."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import registry
from pytest_benchflow.rollout.host import Host
from pytest_benchflow.sandboxes.local import LocalBackend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Makes a sandbox's directory and the lines of its ledger, as far as it comes before it is killed.
PROGRAM = """
import asyncio, json, os, signal, sys
from pathlib import Path
from pytest_benchflow.rollout.host import Host

async def main(job, events, facts):
    async with Host("killed") as host:
        facts["scratch"] = str(host.scratch.new("bf-1"))
        for event in events:
            host.ledger.add(Path(job), event, **facts)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(sys.argv[1], sys.argv[2].split(), json.loads(sys.argv[3])))
"""
FACTS = {"sandbox": "bf-1", "backend": "local", "place": "there", "rollout": "answer__oracle__none__default__1"}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "jobs" / "job").mkdir(parents=True)
    return tmp_path / "jobs" / "job"


def kill_after(job: Path, events: str, *, backend: str = "local", dies_with_process: bool = True) -> Path:
    """Run the program and return the scratch directory that it left."""
    facts = json.dumps({**FACTS, "backend": backend, "dies_with_process": dies_with_process})
    assert subprocess.run([sys.executable, "-c", PROGRAM, str(job), events, facts], check=False).returncode == -9
    (left,) = job.parents[1].glob("pytest-benchflow-*/*/bf-1")
    return left


def next_start() -> None:
    async def enter() -> None:
        async with Host("next"):
            pass

    asyncio.run(enter())


def lines(job: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job / "sandboxes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("events", ["create", "create created"])
def test_the_next_start_writes_the_last_line_of_what_a_kill_left(job: Path, events: str) -> None:
    left = kill_after(job, events)
    for _ in range(2):
        next_start()
        assert [line["event"] for line in lines(job)] == [*events.split(), "deleted"]
    last = lines(job)[-1]
    assert last.items() >= FACTS.items()
    assert (last["session"], last["scratch"], last["after"]) == ("next", str(left), "its process was killed")
    assert not left.parent.exists()


@pytest.mark.parametrize("last", ["deleted", "kept"])
def test_a_last_line_that_is_there_is_not_written_again(job: Path, last: str) -> None:
    kill_after(job, f"create created {last}")
    next_start()
    assert [line["event"] for line in lines(job)] == ["create", "created", last]


def test_a_last_line_of_which_only_the_job_tells_is_not_written_again(job: Path) -> None:
    left = kill_after(job, "create created deleted")
    own = left.parent / "sandboxes.jsonl"
    own.write_text("".join(own.read_text().splitlines(keepends=True)[:-1]))
    next_start()
    assert [line["event"] for line in lines(job)] == ["create", "created", "deleted"]


class Remembering(LocalBackend):
    """A backend whose sandboxes outlive their process; it says of each whether nothing is left."""

    def __init__(self, *, succeeds: bool) -> None:
        self.succeeds = succeeds
        self.asked: list[Path] = []
        self.places: set[str] = set()

    def reap(self, scratch: Path, place: str) -> bool:
        self.asked.append(scratch)
        self.places.add(place)
        return self.succeeds


@pytest.fixture
def lasting() -> Iterator[Remembering]:
    backend = Remembering(succeeds=False)
    registry.register("sandboxes", "lasting", backend)
    yield backend
    registry.forget_registered()


def test_a_sandbox_that_lives_on_is_reaped_before_its_end_is_told(job: Path, lasting: Remembering) -> None:
    left = kill_after(job, "create created", backend="lasting", dies_with_process=False)
    for _ in range(2):
        next_start()
        assert [line["event"] for line in lines(job)] == ["create", "created"]
    lasting.succeeds = True
    next_start()
    next_start()
    assert [line["event"] for line in lines(job)] == ["create", "created", "deleted"]
    assert lasting.asked == [left] * 3
    assert lasting.places == {"there"}


def test_a_sandbox_that_its_own_session_could_not_remove_is_reaped_later(job: Path, lasting: Remembering) -> None:
    async def lose() -> str:
        async with Host("lost") as host:
            scratch = host.scratch.new("bf-1")
            (scratch / "file").touch()
            facts = {**FACTS, "backend": "lasting", "dies_with_process": False, "scratch": str(scratch)}
            for event in ("create", "created"):
                host.ledger.add(job, event, **facts)
            return str(scratch)

    scratch = asyncio.run(lose())
    assert [path.name for path in job.parents[1].glob("pytest-benchflow-*/*/*")] == ["sandboxes.jsonl"]
    lasting.succeeds = True
    next_start()
    assert [str(path) for path in lasting.asked] == [scratch]
    assert lines(job)[-1].items() >= {"event": "deleted", "after": "its own session did not remove it"}.items()
    assert not list(job.parents[1].glob("pytest-benchflow-*/*"))


def test_a_sandbox_of_a_backend_that_is_not_there_is_kept_in_mind(job: Path) -> None:
    kill_after(job, "create created", backend="lasting", dies_with_process=False)
    next_start()
    assert [line["event"] for line in lines(job)] == ["create", "created"]
    assert list(job.parents[1].glob("pytest-benchflow-*/*/sandboxes.jsonl"))


def test_a_job_that_was_removed_stays_so(job: Path) -> None:
    left = kill_after(job, "create created")
    shutil.rmtree(job)
    next_start()
    assert not job.exists()
    assert not left.parent.exists()


def test_a_torn_line_hides_no_other(job: Path) -> None:
    left = kill_after(job, "create created")
    for ledger in (job / "sandboxes.jsonl", left.parent / "sandboxes.jsonl"):
        with ledger.open("a") as file:
            file.write('{"event": "del\n')
    next_start()
    assert (job / "sandboxes.jsonl").read_text().splitlines()[-1].startswith("{")
    assert json.loads((job / "sandboxes.jsonl").read_text().splitlines()[-1])["event"] == "deleted"
