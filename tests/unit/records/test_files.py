"""Files of a run are plain files of its own, or they are not opened; what is written is written whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.records.files import strange_files, write_whole
from pytest_benchflow.records.rundir import RunDir

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
