"""Third parties: agents, sandboxes and checks that a conftest registers, and word of finished rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

CONFTEST = '''
from pathlib import Path

from pytest_benchflow.agents.oracle import agent as oracle
from pytest_benchflow.checks._check import check
from pytest_benchflow.sandboxes.local import LocalBackend


class Mine(LocalBackend):
    name = "mine"


def solver(name):
    made = oracle("oracle")
    made.name = name
    return made


@check(severity="error")
def check_solved(rollout):
    """the work was done"""
    assert rollout.reward == 1, f"the reward is {rollout.reward}"


def pytest_benchflow_agents():
    return {"solver": solver}


def pytest_benchflow_sandboxes():
    return {"mine": Mine()}


def pytest_benchflow_checks():
    return {"solved": check_solved}


def pytest_benchflow_rollout_finished(path):
    with Path("finished.txt").open("a") as file:
        file.write(f"{path.name} {(path / 'result.json').exists()}\\n")
'''


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_registered_names_are_used_like_shipped_ones(bench: Bench, workers: str) -> None:
    bench.task()
    bench.pytester.makeconftest(CONFTEST)
    done = bench.run("tasks", "--benchflow-agent=solver", "--benchflow-sandbox=mine", "-n", workers, "-v")
    assert done.ret == 0, done.outlines
    assert done.parseoutcomes()["solved"] == 1
    assert "task.toml::check_solved[solver-none-default-1]" in done.stdout.str()
    (path,) = bench.rollouts()
    assert bench.config(path)["agent"] == "solver"
    assert bench.config(path)["environment"] == "mine"
    assert (bench.path / "finished.txt").read_text() == f"{path.name} True\n"


def test_a_registered_check_can_fail(bench: Bench) -> None:
    bench.task()
    bench.pytester.makeconftest(CONFTEST)
    done = bench.run("tasks", "-k", "check_solved", "--benchflow-agent=nop")
    assert done.ret == 1
    assert "the reward is 0" in done.stdout.str()


def test_a_conftest_beside_the_tasks_counts(bench: Bench) -> None:
    task = bench.task()
    bench.write(task.parent, {"conftest.py": CONFTEST})
    assert any("solver-none" in line for line in bench.ids("--benchflow-agent=solver"))
    assert any("solver-none" in line for line in bench.ids("tasks/hello", "--benchflow-agent=solver"))


def test_a_taken_name_is_refused(bench: Bench) -> None:
    bench.pytester.makeconftest("def pytest_benchflow_agents(): return {'oracle': None}")
    bench.refused(says="the name 'oracle' is taken")
