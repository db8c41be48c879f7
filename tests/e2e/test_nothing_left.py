"""No process, mount, namespace, directory or port outlives a run, however it ends."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.e2e.conftest import Machine, MakeTask

# The solution starts a daemon of its own that would outlive it, then takes its time.
DAEMON = "#!/bin/sh\nsetsid sleep 300 >/dev/null 2>&1 &\necho 42 > /app/answer\n"
SLOW = DAEMON + "sleep 60\n"


def lay_out(make_task: MakeTask, solution: str, *, tasks: int = 1) -> Path:
    for number in range(tasks):
        task = make_task(f"answer-{number}", agent_timeout=120)
        (task / "solution" / "solve.sh").write_text(solution)
    root = task.parents[1]
    (root / "pytest.ini").write_text("[pytest]\n")
    return root


def finish(run: subprocess.Popen[str], seconds: float = 120) -> str:
    output, _ = run.communicate(timeout=seconds)
    return output


def wait_for_agents(root: Path, count: int = 1) -> None:
    """Wait until as many solutions have begun; their daemons run by then."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        begun = list(root.glob("jobs/*/*/config.json"))
        running = [p for p in begun if not (p.parent / "result.json").exists()]
        if len(running) >= count:
            time.sleep(1)
            return
        time.sleep(0.05)
    raise AssertionError("no rollout began within 30 s")


def test_thirty_rollouts_in_a_row(make_task: MakeTask, machine: Machine) -> None:
    root = lay_out(make_task, DAEMON)
    run = machine.pytest("tasks", "--benchflow-agent=oracle", "--benchflow-trials=30", "-k", "rollout", "-q", cwd=root)
    output = finish(run)
    assert run.returncode == 0, output
    assert len(list(root.glob("jobs/*/*/result.json"))) == 30
    assert machine.leftovers() == []


def test_four_at_a_time_in_two_sessions(make_task: MakeTask, machine: Machine) -> None:
    root = lay_out(make_task, DAEMON, tasks=4)
    runs = [
        machine.pytest("tasks", "--benchflow-agent=oracle", f"--benchflow-job-name={name}", "-n", "2", "-q", cwd=root)
        for name in ("first", "second")
    ]
    outputs = [finish(run) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert len(list(root.glob("jobs/*/*/result.json"))) == 8
    assert machine.leftovers() == []


@pytest.mark.parametrize("workers", [pytest.param(0, id="serial"), pytest.param(2, id="two-workers")])
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "terminate"])
def test_a_signal_ends_everything_with_complete_records(
    make_task: MakeTask, machine: Machine, kind: signal.Signals, workers: int
) -> None:
    root = lay_out(make_task, SLOW, tasks=max(1, workers))
    run = machine.pytest("tasks", "--benchflow-agent=oracle", "-n", str(workers), "-k", "rollout", cwd=root)
    wait_for_agents(root, max(1, workers))
    run.send_signal(kind)
    output = finish(run)
    assert run.returncode != 0, output
    assert machine.leftovers() == [], output
    results = [json.loads(path.read_text()) for path in root.glob("jobs/*/*/result.json")]
    assert len(results) == max(1, workers), output
    assert {result["verdict"] for result in results} == {"unhealthy"}
    assert {result["error_category"] for result in results} == {"interrupted"}


def test_the_next_run_clears_up_after_a_kill(make_task: MakeTask, machine: Machine) -> None:
    root = lay_out(make_task, SLOW)
    run = machine.pytest("tasks", "--benchflow-agent=oracle", "--benchflow-job-name=killed", "-k", "rollout", cwd=root)
    wait_for_agents(root)
    run.kill()
    finish(run)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(line.startswith("process") for line in machine.leftovers()):
        time.sleep(0.1)
    assert not [line for line in machine.leftovers() if line.startswith(("process", "mount", "port"))]

    following = machine.pytest("tasks", "--benchflow-agent=nop", "-k", "rollout", "-q", cwd=root)
    output = finish(following)
    assert following.returncode == 0, output
    assert machine.leftovers() == []
    (killed,) = [json.loads(path.read_text()) for path in root.glob("jobs/killed/*/result.json")]
    assert killed["verdict"] == "unhealthy"
    assert killed["error_category"] == "interrupted"
    assert killed["rewards"] is None


def test_the_check_for_leftovers_sees_one(machine: Machine, tmp_path: Path) -> None:
    run = machine.pytest("--help", cwd=tmp_path)
    while not machine.leftovers():
        assert run.poll() is None, "the process was never seen"
        os.sched_yield()
    finish(run)
    assert machine.leftovers() == []
    (machine.temporary / "left").mkdir()
    assert machine.leftovers() == [f"directory {machine.temporary / 'left'}"]
