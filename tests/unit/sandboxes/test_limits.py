"""Where control groups are made for a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.sandboxes._local import limits as _limits
from pytest_benchflow.tasks.task import Environment

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_where_an_own_group_takes_no_limits_one_at_the_top_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    monkeypatch.setattr(_limits, "_MOUNT", tmp_path)  # as by version 2, without this process's own group in it
    limits = _limits.Limits(Environment(memory_mb=64), "asked")
    limits.prepare()
    (group,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert {path.name: path.read_text() for path in group.iterdir()} == {"pids.max": "4096", "memory.max": "67108864"}
    assert limits.report["memory_mb"] == {"asked": 64, "applied": "control group"}
