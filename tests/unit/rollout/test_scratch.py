"""Scratch directories of dead sessions go, those of living ones stay."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.rollout.scratch import ScratchBase, remove_tree


def test_new_directories_are_private_and_gone_afterwards(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with ScratchBase(base) as scratch:
        made = scratch.new("one")
        assert [stat.S_IMODE(path.stat().st_mode) for path in (made, made.parent, base)] == [0o700] * 3
        (made / "file").touch()
        scratch.discard(made)
        assert not made.exists()
        scratch.discard(made)
        scratch.new("one")
    assert list(base.iterdir()) == []
    scratch.close()


def test_a_sweep_takes_dead_sessions_only(tmp_path: Path) -> None:
    dead = tmp_path / "123-dead"
    (dead / "root" / "app").mkdir(parents=True)
    with ScratchBase(tmp_path) as living, ScratchBase(tmp_path) as other:
        kept = living.new("kept")
        assert other.sweep() == ["123-dead"]
        assert kept.is_dir()
        assert not dead.exists()


def test_a_sweep_ends_what_waits_in_vain_for_a_killed_bubblewrap(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\nread line\n")
    program.chmod(0o755)
    (tmp_path / "base" / "123-dead").mkdir(parents=True)

    def start(session: str) -> subprocess.Popen[bytes]:
        files = tmp_path / "base" / session / "bf-1" / "root"
        return subprocess.Popen([program, "--bind", files, "/"], stdin=subprocess.PIPE)

    with ScratchBase(tmp_path / "base") as living:
        name = living.new("x").parent.name
        with start("123-dead") as left, start(name) as used:
            try:
                for process in (left, used):
                    while Path(f"/proc/{process.pid}/comm").read_text() != "bwrap\n":
                        time.sleep(0.01)
                assert living.sweep() == ["123-dead"]
                assert left.wait(30) == -signal.SIGKILL
                assert used.poll() is None
            finally:
                left.kill()
                used.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    os.chown(base, 1234, 1234)
    with pytest.raises(SandboxError, match="nobody else's"):
        ScratchBase(base).open()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_link_or_file_in_its_place_is_refused(tmp_path: Path, kind: str) -> None:
    base = tmp_path / "base"
    (tmp_path / "target").mkdir()
    if kind == "link":
        base.symlink_to(tmp_path / "target")
    else:
        base.touch()
    with pytest.raises(SandboxError, match="must be a directory"):
        ScratchBase(base).open()
    assert list((tmp_path / "target").iterdir()) == []


def test_a_readable_base_is_closed_again(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir(mode=0o755)
    with ScratchBase(base):
        assert stat.S_IMODE(base.stat().st_mode) == 0o700


def test_a_tree_goes_whatever_it_holds(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "f").touch()
    (top / "a" / "link").symlink_to(kept)
    (top / "link").symlink_to(kept / "file")
    os.mkfifo(top / "pipe")
    (top / os.fsdecode(b"bad\xff")).touch()
    (top / "a" / "b").chmod(0)
    (top / "a").chmod(0)
    remove_tree(top)
    assert not top.exists()
    assert (kept / "file").read_text() == "kept"
    remove_tree(top)


def test_a_very_deep_tree_goes(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    here = os.open(tmp_path / "top", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()
