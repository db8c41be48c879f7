"""An attempt goes aside whole, wherever a kill comes; a lock tells who has it and dies with its holder."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from pytest_benchflow import cli
from pytest_benchflow.errors import UsageError
from pytest_benchflow.records.attempts import attempt_record, attempts_of
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.rollout.job import begin_job, recover_jobs
from pytest_benchflow.rollout.place import held, holding, set_aside, take_job

FILES = ("config.json", "result.json", "results.jsonl", "timing.json", "trajectory/llm_trajectory.jsonl")


class Killed(BaseException):
    pass


def attempt(rundir: RunDir, name: str, **result: object) -> None:
    """Leave what an attempt leaves, each file with its name in it."""
    rundir.create()
    rundir.lock.touch()
    for file in FILES:
        (rundir.path / file).write_text(f"{name} {file}")
    rundir.config.write_text(json.dumps({"session_id": name}))
    rundir.result.write_text(json.dumps({"verdict": "unhealthy", "verdict_category": "infra", **result}))


def files(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() for p in sorted(directory.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("moves", range(9))
def test_a_kill_at_any_move_loses_nothing_and_splits_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    rundir = RunDir(tmp_path / "rollout")
    attempt(rundir, "first")
    set_aside(rundir)
    attempt(rundir, "second")
    before = files(rundir.path)
    left, rename = moves, Path.rename

    def killed(self: Path, target: Path) -> Path:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    entries = len([path for path in rundir.path.iterdir() if path.name not in ("attempts", ".lock")])
    assert entries == 8
    with pytest.raises(Killed):
        set_aside(rundir)
    monkeypatch.undo()
    assert sorted(files(rundir.path).values()) == sorted(before.values())
    # A directory that is half moved is taken for no rollout that could be completed.
    assert rundir.config.exists() is (moves == 0)
    set_aside(rundir)
    assert files(rundir.attempts / "2") == {
        name: text for name, text in before.items() if not name.startswith(("attempts", ".lock"))
    }
    assert [each.path.name for each in attempts_of(rundir)] == ["1", "2"]
    set_aside(rundir)
    assert len(attempts_of(rundir)) == 2


def test_an_attempt_that_left_empty_directories_is_none(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "rollout")
    rundir.create()
    set_aside(rundir)
    assert not rundir.attempts.exists()
    assert attempt_record(rundir) == {"attempt": 1, "earlier": None}


def test_what_an_attempt_was_and_why_it_was_not_kept_is_told(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "rollout")
    attempt(rundir, "first", error="an invented fault", error_category="sandbox")
    set_aside(rundir)
    assert attempt_record(rundir) == {
        "attempt": 2,
        "earlier": {
            "attempt": 1,
            "session_id": "first",
            "verdict": "unhealthy",
            "category": "infra",
            "fault": "sandbox",
            "error": "an invented fault",
            "why": "it was unhealthy (infra: sandbox)",
        },
    }
    attempt(rundir, "second", verdict="pass", verdict_category=None)
    set_aside(rundir)
    assert attempt_record(rundir)["earlier"]["why"] == "it was pass, and the rollout was asked for again"
    (rundir.path / "config.json").write_text("{}")
    set_aside(rundir)
    record = attempt_record(rundir)
    assert (record["attempt"], record["earlier"]["why"]) == (4, "it left no result that can be read")


def test_who_has_a_job_is_told_without_what_may_be_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    words = ["pytest", "tasks", "--benchflow-job-name=ramp", "--benchflow-agent-env=JUDGE=word-1", "--token=word-2"]
    with take_job(tmp_path, [*words, "--token", "word-3"]):
        with pytest.raises(UsageError) as refused:
            take_job(tmp_path, words)
        said = str(refused.value)
        assert "`… tasks --benchflow-job-name=ramp --benchflow-agent-env=JUDGE --token=… --token …`" in said
        assert "word-" not in (tmp_path / ".lock").read_text()
    take_job(tmp_path, words).close()


def test_who_waits_for_a_job_is_advised_only_what_its_command_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_job(tmp_path)
    with take_job(tmp_path, ["pytest"]):
        with pytest.raises(UsageError, match=r"; wait for it, or pass another --benchflow-job-name$"):
            take_job(tmp_path, ["pytest"], or_else="pass another --benchflow-job-name")
        assert cli.main(["regrade", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert "in use by another session (process " in said
    assert said.endswith("); wait for it")


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_a_lock_that_is_no_plain_file_is_refused_and_nothing_is_written(tmp_path: Path, kind: str) -> None:
    outside, lock = tmp_path / "outside", tmp_path / "job" / ".lock"
    outside.write_text("not ours")
    lock.parent.mkdir()
    if kind == "link":
        lock.symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    (lock.parent / "job.json").write_text(json.dumps({"versions": {"pytest_benchflow": "0.1.0"}}))
    with pytest.raises(UsageError, match="is no plain file"):
        take_job(lock.parent, ["pytest"])
    with pytest.raises(UsageError, match="is no plain file"), held(RunDir(lock.parent), wait=False):
        pass
    assert recover_jobs(tmp_path) == []
    assert outside.read_text() == "not ours"


def test_a_rollout_that_a_link_leads_to_is_not_completed(tmp_path: Path) -> None:
    elsewhere, job = RunDir(tmp_path / "elsewhere"), tmp_path / "jobs" / "ramp"
    elsewhere.path.mkdir()
    elsewhere.config.write_text("{}")
    job.mkdir(parents=True)
    (job / "job.json").write_text(json.dumps({"versions": {"pytest_benchflow": "0.1.0"}}))
    (job / "linked").symlink_to(elsewhere.path)
    assert recover_jobs(job.parent) == []
    assert [path.name for path in elsewhere.path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("text", ["", "4711", "[1]", '{"pid": "\x1b[2J"}', "\udcff", '{"pid": 5'])
def test_a_holder_that_wrote_nonsense_is_unknown(tmp_path: Path, text: str) -> None:
    with take_job(tmp_path, []):
        (tmp_path / ".lock").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(UsageError, match=r"in use by another session \(process ") as refused:
            take_job(tmp_path, [])
        assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("begun", [False, True])
def test_a_rollout_that_is_interrupted_before_it_begins_leaves_no_directory(tmp_path: Path, begun: bool) -> None:
    rundir = RunDir(tmp_path / "job" / "rollout")
    held_next: list[bool] = []

    async def first() -> None:
        async with holding(rundir):
            if begun:
                rundir.config.write_text("{}")
            waiting = asyncio.ensure_future(second())
            # It has opened the lock that goes.
            while len(open_locks()) < 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            try:
                raise asyncio.CancelledError
            finally:
                waits.append(waiting)

    async def second() -> None:
        async with holding(rundir):
            held_next.append(rundir.lock.is_file())
            with pytest.raises(UsageError), held(rundir, wait=False):
                pass

    def open_locks() -> list[Path]:
        return [path for path in Path("/proc/self/fd").iterdir() if os.path.realpath(path) == str(rundir.lock)]

    waits: list[asyncio.Future[None]] = []

    async def both() -> None:
        with pytest.raises(asyncio.CancelledError):
            await first()
        assert rundir.config.is_file() == begun
        await asyncio.wait_for(waits[0], 30)

    asyncio.run(both())
    assert held_next == [True]


def test_nothing_is_left_of_a_rollout_that_did_not_begin(tmp_path: Path) -> None:
    async def work() -> None:
        async with holding(RunDir(tmp_path / "job" / "rollout")):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())
    assert list((tmp_path / "job").iterdir()) == []
