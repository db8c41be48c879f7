"""Scratch directories tell which sessions are alive, and only what a dead one left there is removed."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.rollout.scratch import ScratchBase
from pytest_benchflow.sandboxes._labels import OWNER, SCRATCH
from pytest_benchflow.sandboxes._local.sessions import base_directory, discard_here, remains_here, sessions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("BENCHFLOW_LOCAL_OWNER", "ada")
    base_directory().mkdir(mode=0o700)
    return base_directory()


def left(base: Path, name: str, *sandboxes: str) -> Path:
    for sandbox in sandboxes:
        (base / name / sandbox / "root").mkdir(parents=True)
    (base / name / "sandboxes.jsonl").write_text("{}\n")
    return base / name


def test_a_session_lives_as_long_as_it_holds_its_directory(base: Path) -> None:
    dead = left(base, "11-aaaaaaaa", "bf-1")
    trash = left(base, ".trash-22-bbbbbbbb-cccccccc", "bf-2")
    scratch = ScratchBase()
    with scratch:
        assert sessions() == (
            frozenset({str(scratch.open())}),
            {str(dead): dead, str(base / "22-bbbbbbbb"): trash},
        )
    assert sessions()[0] == frozenset()


def test_without_any_session_there_is_nothing(base: Path) -> None:
    base.rmdir()
    assert sessions() == (frozenset(), {})
    assert remains_here("local") == []


def test_what_a_dead_session_left_is_named_by_where_it_was(base: Path) -> None:
    left(base, "11-aaaaaaaa", "bf-1")
    left(base, ".trash-22-bbbbbbbb-cccccccc", "bf-2")
    with ScratchBase() as live:
        live.new("bf-3")
        found = {remain.name: remain.labels for remain in remains_here("local")}
    assert {name: labels[SCRATCH] for name, labels in found.items()} == {
        "11-aaaaaaaa/bf-1": str(base / "11-aaaaaaaa" / "bf-1"),
        ".trash-22-bbbbbbbb-cccccccc/bf-2": str(base / "22-bbbbbbbb" / "bf-2"),
    }
    assert {labels[OWNER] for labels in found.values()} == {"ada"}


def test_all_of_a_session_can_be_removed_at_once_but_its_ledger(base: Path) -> None:
    names = [f"bf-{number}" for number in range(20)]
    place = left(base, "11-aaaaaaaa", *names)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(discard_here, [f"{place.name}/{name}" for name in names]))
    assert [path.name for path in place.iterdir()] == ["sandboxes.jsonl"]
    discard_here(f"{place.name}/bf-1")
    discard_here("33-dddddddd/bf-1")


def test_nothing_of_a_live_session_is_removed(base: Path) -> None:
    with ScratchBase() as live:
        path = live.new("bf-1")
        with pytest.raises(SandboxError, match="in use by a session"):
            discard_here(f"{path.parent.name}/bf-1")
        assert path.is_dir()


@pytest.mark.parametrize("name", ["", "11-aaaaaaaa", "/bf-1", "../x", "11-aaaaaaaa/..", "11-aaaaaaaa/bf-1/root"])
def test_no_other_name_leads_anywhere(base: Path, name: str) -> None:
    place = left(base, "11-aaaaaaaa", "bf-1")
    with pytest.raises(SandboxError, match="is no scratch directory"):
        discard_here(name)
    assert (place / "bf-1" / "root").is_dir()


def test_a_link_is_not_followed(base: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    place = left(base, "11-aaaaaaaa", "bf-1")
    (place / "bf-2").symlink_to(tmp_path / "precious")
    assert [remain.name for remain in remains_here("local")] == ["11-aaaaaaaa/bf-1"]
    discard_here("11-aaaaaaaa/bf-2")
    assert (tmp_path / "precious").is_dir()
    assert not (place / "bf-2").is_symlink()
