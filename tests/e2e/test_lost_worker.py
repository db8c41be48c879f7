"""A worker that is killed costs its own item at most, and never the end of the run."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine


def workers_of(controller: int) -> list[int]:
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    return [int(pid) for pid in children]


def test_a_killed_worker_does_not_keep_the_run_from_its_end(make_task: MakeTask, machine: Machine) -> None:
    for number in range(3):
        task = make_task(f"answer-{number}", agent_timeout=60)
        (task / "solution" / "solve.sh").write_text("#!/bin/sh\nsleep 3\necho 42 > /app/answer\n")
    root = task.parents[1]
    (root / "pytest.ini").write_text("[pytest]\n")
    run = machine.pytest("tasks", "--benchflow-agent=oracle", "-n", "2", "-k", "rollout", cwd=root)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list(root.glob("jobs/*/*/config.json"))) < 2:
        time.sleep(0.05)
    os.kill(workers_of(run.pid)[0], signal.SIGKILL)
    output, _ = run.communicate(timeout=90)
    assert run.returncode == 1, output
    assert "crashed" in output
    results = [json.loads(path.read_text()) for path in root.glob("jobs/*/*/result.json")]
    assert len(results) == 3, output
    assert all(result["verdict"] for result in results)

    # What the killed worker could not clear up itself is gone with the next run.
    following = machine.pytest("tasks", "--benchflow-agent=nop", "-k", "rollout", "-q", cwd=root)
    output, _ = following.communicate(timeout=60)
    assert following.returncode == 0, output
    assert machine.leftovers() == []
    for path in root.glob("jobs/*/sandboxes.jsonl"):
        told: dict[str, list[str]] = {}
        for line in map(json.loads, path.read_text().splitlines()):
            told.setdefault(line["sandbox"], []).append(line["event"])
        assert len(told) >= 3
        assert {(events[0], events[-1], events.count("deleted")) for events in told.values()} == {
            ("create", "deleted", 1)
        }
