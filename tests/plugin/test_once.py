"""A rollout runs once in a session, whichever item asks first, and on whichever worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.bench import SOLVED

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

CHECK = "check_result_readable[oracle-none-default-1]"


def test_one_check_alone_runs_its_rollout(bench: Bench) -> None:
    bench.task()
    done = bench.run(f"tasks/hello/task.toml::{CHECK}", "--benchflow-agent=oracle")
    assert done.ret == 0
    done.assert_outcomes(passed=1)
    assert len(bench.rollouts()) == 1
    assert "1/1 healthy" in done.stdout.str()


@pytest.mark.parametrize("dist", ["loadgroup", "load", "worksteal"])
def test_workers_share_a_rollout_under_every_distribution(bench: Bench, dist: str) -> None:
    bench.task("one")
    bench.task("two")
    done = bench.run("tasks", "--benchflow-agent=oracle", "-n", "2", "--dist", dist)
    assert done.ret == 0, done.outlines
    assert set(done.parseoutcomes()) <= {"passed", "solved", "skipped"}
    assert done.parseoutcomes()["solved"] == 2
    paths = bench.rollouts()
    assert len(paths) == 2
    # A second run of the same cell would have set the first one aside.
    assert not any((path / "attempts").exists() for path in paths)


def test_n_keeps_a_rollout_and_its_checks_on_one_worker(bench: Bench) -> None:
    for number in range(3):
        bench.task(f"task-{number}")
    done = bench.run("tasks", "--benchflow-agent=oracle", "-n", "2", "-v")
    assert done.ret == 0
    workers: dict[str, set[str]] = {}
    for line in done.outlines:
        if line.startswith("[gw") and "::" in line:
            workers.setdefault(line.split("tasks/")[1].split("/")[0], set()).add(line[1:4])
    assert len(workers) == 3
    assert all(len(names) == 1 for names in workers.values()), workers


def test_ids_are_the_same_under_n(bench: Bench) -> None:
    bench.task("one")
    bench.task("two")
    serial = bench.ids("tasks", "--benchflow-agent=oracle", "--benchflow-agent=nop")
    done = bench.run("tasks", "--benchflow-agent=oracle", "--benchflow-agent=nop", "-n", "2", "-v")
    shown = [line.split()[-1] for line in done.outlines if line.startswith("[gw")]
    assert sorted(shown) == sorted(serial)


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_lf_runs_what_failed_and_nothing_else(bench: Bench, workers: str) -> None:
    bench.task("fine")
    bench.task("unsolvable", solve="#!/bin/sh\ntrue\n")
    first = bench.run("tasks", "--benchflow-agent=oracle", "-n", "2")
    assert first.ret == 1
    assert first.parseoutcomes()["failed"] == 1
    again = bench.run("tasks", "--benchflow-agent=oracle", "--lf", "-n", workers)
    assert again.ret == 1
    assert {name: count for name, count in again.parseoutcomes().items() if name != "deselected"} == {"failed": 1}
    assert f"FAILED tasks/unsolvable/task.toml::{SOLVED}" in again.stdout.str()


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_collect_only_writes_nothing(bench: Bench, workers: str) -> None:
    bench.task()
    assert bench.run("tasks", "--collect-only", "-n", workers, "--benchflow-agent=oracle").ret == 0
    assert not (bench.path / "jobs").exists()
