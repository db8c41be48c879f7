"""Copying across the border of a sandbox: what the walls are made of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes import _files
from pytest_benchflow.sandboxes._files import InsideRoot, copy_in, copy_out

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def inside(tmp_path: Path) -> InsideRoot:
    (tmp_path / "root").mkdir()
    return InsideRoot(tmp_path / "root")


def test_dots_never_leave_the_root(inside: InsideRoot, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    copy_in(tmp_path / "file", inside, "/../../a/../b/./c")
    assert sorted(str(path.relative_to(inside.root)) for path in inside.root.rglob("*")) == ["a", "b", "b/c"]


def test_a_source_that_is_a_link_is_refused(inside: InsideRoot, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(SandboxError, match="is a link"):
        copy_in(tmp_path / "link", inside, "/app/x")


@pytest.mark.parametrize("there", ["file", "directory"])
def test_a_target_of_the_other_kind_is_refused(inside: InsideRoot, tmp_path: Path, there: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    copy_in(tmp_path / there, inside, "/x")
    other = {"file": "directory", "directory": "file"}[there]
    with pytest.raises(SandboxError, match="cannot be copied to /x"):
        copy_in(tmp_path / other, inside, "/x")


def test_a_missing_source_is_named(inside: InsideRoot, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="none cannot be copied"):
        copy_in(tmp_path / "none", inside, "/x")


def test_privileges_are_not_copied(inside: InsideRoot, tmp_path: Path) -> None:
    (tmp_path / "tool").touch()
    (tmp_path / "tool").chmod(0o6755)
    copy_in(tmp_path / "tool", inside, "/tool")
    assert (inside.root / "tool").stat().st_mode & 0o7777 == 0o755


def test_too_much_is_not_copied_out(inside: InsideRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "MAX_BYTES", 1000)
    (inside.root / "logs").mkdir()
    for name in "ab":
        (inside.root / "logs" / name).write_bytes(b"x" * 600)
    with pytest.raises(SandboxError, match="more than"):
        copy_out(inside, "/logs", tmp_path / "out")


def test_too_deep_is_not_copied_out(inside: InsideRoot, tmp_path: Path) -> None:
    (inside.root / "/".join("d" * 250)).mkdir(parents=True)
    with pytest.raises(SandboxError, match="deep"):
        copy_out(inside, "/d", tmp_path / "out")


def test_a_download_replaces_what_is_there(inside: InsideRoot, tmp_path: Path) -> None:
    (inside.root / "new").write_text("new")
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "out").symlink_to(tmp_path / "victim")
    copy_out(inside, "/new", tmp_path / "out")
    assert ((tmp_path / "out").read_text(), (tmp_path / "victim").read_text()) == ("new", "kept")


def test_names_that_are_no_text_are_copied_out(inside: InsideRoot, tmp_path: Path) -> None:
    (inside.root / "d").mkdir()
    (inside.root / "d" / os.fsdecode(b"\xff\n")).write_text("odd")
    copy_out(inside, "/d", tmp_path / "out")
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["odd"]
