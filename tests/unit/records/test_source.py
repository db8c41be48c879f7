"""The commit that a directory's files are of, and whether they really are."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.records.source import source_of

if TYPE_CHECKING:
    from pathlib import Path


def git(path: Path, *arguments: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    return subprocess.run(
        ["git", "-C", str(path), *own, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with one committed directory, and one that git ignores."""
    for name in ("kept", "ignored"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")
    (tmp_path / ".gitignore").write_text("ignored/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    return tmp_path


def test_a_directory_in_no_checkout_has_no_source(tmp_path: Path) -> None:
    assert source_of(tmp_path) is None


def test_a_committed_directory_is_of_its_commit(checkout: Path) -> None:
    git(checkout, "remote", "add", "origin", "https://someone:pass-phrase@host.invalid/repo")
    (checkout / "other").write_text("elsewhere")
    commit = git(checkout, "rev-parse", "HEAD")
    assert source_of(checkout / "kept") == {"repo": "https://host.invalid/repo", "commit": commit, "dirty": False}


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_a_changed_directory_is_dirty(checkout: Path, change: str) -> None:
    file = checkout / "kept" / ("new" if change == "added" else "file")
    if change == "removed":
        file.unlink()
    else:
        file.write_text("other")
    assert (source_of(checkout / "kept") or {})["dirty"] is True


def test_what_git_ignores_is_of_no_commit(checkout: Path) -> None:
    assert (source_of(checkout / "ignored") or {})["dirty"] is True


def test_nothing_that_a_checkout_configures_is_run(checkout: Path) -> None:
    program = checkout / "program"
    program.write_text(f"#!/bin/sh\ntouch {checkout}/ran\n")
    program.chmod(0o755)
    git(checkout, "config", "core.fsmonitor", str(program))
    assert source_of(checkout / "kept") is not None
    assert not (checkout / "ran").exists()
