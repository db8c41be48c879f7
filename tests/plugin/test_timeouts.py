"""--benchflow-agent-timeout and --benchflow-idle-timeout: how long an agent may take, over what the task says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

SLOW = "#!/bin/sh\necho done > /app/out.txt\nsleep 600\n"


def test_a_reference_solution_that_takes_too_long_is_ended(bench: Bench) -> None:
    bench.task(solve=SLOW)
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "--benchflow-agent-timeout=1.5")
    (path,) = bench.rollouts()
    assert bench.config(path)["timeout_sec"] == 1.5
    # What it had done by then is verified all the same.
    assert bench.result(path)["rewards"] == {"reward": 1.0}
    assert bench.result(path)["error_category"] == "timeout"
    assert bench.result(path)["in_flight_at_timeout"] == "solution/solve.sh"
    # Nobody watched whether the script was silent, so nothing is claimed about that.
    assert bench.result(path)["idle_before_timeout_s"] is None
    assert bench.result(path)["checks"]["findings"] == []
    assert bench.result(path)["verdict"] == "normal_timeout"
    assert done.duration < 60


def test_the_ini_value_holds_too(bench: Bench) -> None:
    bench.task()
    bench.ini("benchflow_agent_timeout = 77", "benchflow_idle_timeout = 66")
    assert bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop").ret == 0
    limits = bench.config(bench.rollouts()[0])["limits"]["seconds"]["task"]
    assert limits["agent"] == 77
    assert limits["idle"] == 66
