"""Files of a run are plain files of its own, or they are not opened; what is written is written whole."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import UsageError
from pytest_benchflow.records.files import strange_files, write_whole
from pytest_benchflow.records.journal import Journal
from pytest_benchflow.records.pending import Pending
from pytest_benchflow.records.recover import recover_pending
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.rollout.job import finish_job
from pytest_benchflow.rollout.place import set_aside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "rollout").create()
    made.result.write_text("{}", "utf-8")
    (tmp_path / "outside.json").write_text("{}", "utf-8")
    return made


STRANGE: dict[str, Callable[[RunDir], object]] = {
    "config.json is a link that leads out of the rollout": lambda r: r.config.symlink_to("../outside.json"),
    "row.json is a pipe": lambda r: os.mkfifo(r.path / "row.json"),
    "config.json is a link to no file": lambda r: r.config.symlink_to("config.json"),
    "prompts.json is a link to no file": lambda r: r.prompts.symlink_to("nothing"),
    "trajectory/llm_trajectory.jsonl is a link that leads out of the rollout": lambda r: r.llm.symlink_to(
        r.path.parent / "outside.json"
    ),
    "verifier/ctrf.json is a link that leads out of the rollout": lambda r: (r.verifier / "ctrf.json").symlink_to("/"),
    "audit.json is a link that leads out of the rollout": lambda r: r.audit.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("said", STRANGE)
def test_what_must_not_be_read_is_named(rundir: RunDir, said: str) -> None:
    STRANGE[said](rundir)
    assert strange_files(rundir) == [said]


def test_a_whole_directory_that_leads_out_is_named_once(rundir: RunDir, tmp_path: Path) -> None:
    rundir.llm.parent.rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "llm_trajectory.jsonl").symlink_to("/etc/hostname")
    rundir.llm.parent.symlink_to("../elsewhere")
    assert strange_files(rundir) == ["trajectory is a link that leads out of the rollout"]


def test_plain_files_and_links_among_them_are_fine(rundir: RunDir) -> None:
    rundir.config.symlink_to("result.json")
    (rundir.artifacts / "venv").symlink_to("/usr")  # never opened
    assert strange_files(rundir) == []


def test_a_file_is_written_whole_and_through_no_link(rundir: RunDir, tmp_path: Path) -> None:
    rundir.row.symlink_to("../outside.json")
    write_whole(rundir.row, [b"row\n"])
    assert not rundir.row.is_symlink()
    assert (rundir.row.read_bytes(), (tmp_path / "outside.json").read_text("utf-8")) == (b"row\n", "{}")
    assert {path.name for path in rundir.path.iterdir() if path.is_file()} == {"results.jsonl", "result.json"}


def test_nothing_is_left_of_a_write_that_fails(rundir: RunDir) -> None:
    rundir.row.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(rundir.row, [b"row\n"])
    assert {path.name for path in rundir.path.iterdir() if path.is_file()} == {"result.json"}


WRITES: dict[str, Callable[[Path], object]] = {
    "journal": lambda path: Journal(path).append({"a": 1}),
    "pending": lambda path: Pending(path).append_line(b'{"a": 1}'),
}


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "directory"])
@pytest.mark.parametrize("how", WRITES)
def test_nothing_is_appended_through_a_link_or_to_a_pipe(tmp_path: Path, how: str, kind: str) -> None:
    outside, path = tmp_path / "outside", tmp_path / "log.jsonl"
    outside.write_text("theirs")
    kinds: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(outside),
        "dangling": lambda: path.symlink_to(tmp_path / "new"),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
    }
    kinds[kind]()
    with pytest.raises(OSError, match=r"log\.jsonl is no plain file, and nothing is written to or through it"):
        WRITES[how](path)
    assert outside.read_text() == "theirs"
    assert not (tmp_path / "new").exists()


def killed(rundir: RunDir) -> None:
    """Leave what a session leaves that was killed within a request."""
    rundir.config.write_text(json.dumps({"rollout_name": rundir.path.name, "agent": "nop"}))
    rundir.result.unlink()
    rundir.llm_pending.write_text(json.dumps({"request": {"request_id": "a"}}) + "\n" + '{"torn')
    rundir.llm.write_text('{"torn')


LED_AWAY: dict[str, Callable[[RunDir], Path]] = {
    "directory": lambda rundir: rundir.llm.parent,
    "pending": lambda rundir: rundir.llm_pending,
    "log": lambda rundir: rundir.llm,
    "torn": lambda rundir: rundir.llm.with_name(f"{rundir.llm.name}.torn"),
}


@pytest.mark.parametrize("name", LED_AWAY)
def test_what_a_killed_session_left_is_completed_through_no_link(rundir: RunDir, name: str) -> None:
    killed(rundir)
    path, outside = LED_AWAY[name](rundir), rundir.path.parent / "elsewhere"
    if path.exists():
        shutil.move(path, outside)
    else:
        outside.write_text("theirs")
    path.symlink_to(outside)
    there = _texts(outside)
    (rundir.path.parent / "job.json").write_text(json.dumps({"session_id": "s", "versions": {"pytest_benchflow": "1"}}))
    assert finish_job(rundir.path.parent) == []
    if name != "torn":
        assert recover_pending(rundir) == 0
    assert _texts(outside) == there
    assert path.is_symlink()


def test_an_attempt_moves_through_no_link(rundir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    rundir.attempts.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="attempts is a link, and nothing is moved through one; remove it"):
        set_aside(rundir)
    assert rundir.result.is_file()


def _texts(path: Path) -> dict[str, str]:
    found = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(each): each.read_text() for each in found}
