"""--benchflow-trials: several rollouts of a cell, each with its own id and directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.plugin.bench import Bench


def test_each_trial_is_a_rollout_of_its_own(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "--benchflow-trials=2", "-n", "2")
    assert done.ret == 0
    assert done.parseoutcomes()["solved"] == 2
    assert [path.name for path in bench.rollouts()] == [
        "hello__oracle__none__default__1",
        "hello__oracle__none__default__2",
    ]
