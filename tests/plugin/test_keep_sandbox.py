"""--benchflow-keep-sandbox: a sandbox's files stay for inspection, and it is said where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "removed"])
def test_files_stay_only_when_asked(bench: Bench, keep: bool) -> None:
    bench.task()
    options = ["--benchflow-keep-sandbox"] if keep else []
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", *options)
    assert done.parseoutcomes()["solved"] == 1
    (path,) = bench.rollouts()
    ledger = [json.loads(line) for line in (path.parent / "sandboxes.jsonl").read_text().splitlines()]
    assert ledger[-1]["event"] == ("kept" if keep else "deleted")
    scratch = Path(ledger[-1]["scratch"])
    assert scratch.exists() is keep
    assert (str(scratch) in done.stdout.str()) is keep
    if keep:
        assert list(scratch.rglob("out.txt"))
        shutil.rmtree(scratch)


def test_a_sandbox_without_files_here_is_refused_before_anything_is_collected(bench: Bench) -> None:
    bench.task()
    says = "the docker sandbox leaves no files on this machine"
    bench.refused("tasks", "--benchflow-sandbox=docker", "--benchflow-keep-sandbox", says=says)
