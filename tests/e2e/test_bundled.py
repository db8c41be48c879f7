"""The real agents work on the bundled tasks in the local sandbox against recordings, healthy, and leave nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.tasks.load import find_tasks

if TYPE_CHECKING:
    from tests.e2e.machine import Machine

ROOT = Path(__file__).parents[2]
ALL = sorted(path.name for path in find_tasks(ROOT / "tasks"))
# One in the form of task.md, one of two steps, one with a skill, and one whose recorded answers do not solve it.
OF_OPENHANDS = ["build-order", "config-migrate", "stock-ledger", "telemetry-decode"]
# What the recorded answers are worth, where that is not the whole reward; tests/recordings/README.md says why.
UNSOLVED = {("cron-next", "baseline"), ("config-migrate", "openhands")}
# The first run on a machine installs the agent.
INSTALL_SEC = 1200


def run(machine: Machine, tmp_path: Path, agent: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return result.json of each task, as one session left them."""
    jobs = tmp_path / "jobs"
    tasks = [f"tasks/{name}" for name in names]
    asked = [f"--benchflow-agent={agent}", f"--benchflow-jobs-dir={jobs}", "-k", "rollout", "-q"]
    session = machine.pytest(*tasks, *asked, cwd=ROOT)
    output, _ = session.communicate(timeout=INSTALL_SEC)
    assert session.returncode == 0, output
    assert machine.leftovers() == []
    results = [json.loads(path.read_text()) for path in jobs.glob("*/*/result.json")]
    return {result["task_name"].rpartition("/")[2]: result for result in results}


@pytest.mark.parametrize(
    ("agent", "names"),
    [
        pytest.param("baseline", ALL, id="baseline"),
        pytest.param("openhands", OF_OPENHANDS, id="openhands"),
    ],
)
def test_replayed_rollouts_are_healthy_and_as_recorded(
    machine: Machine, tmp_path: Path, agent: str, names: list[str]
) -> None:
    results = run(machine, tmp_path, agent, names)
    assert sorted(results) == names
    verdicts = {name: (result["verdict"], result["error"]) for name, result in results.items()}
    assert verdicts == {name: ("fail" if (name, agent) in UNSOLVED else "pass", None) for name in names}
    for name, result in results.items():
        assert result["checks"]["findings"] == [], name
        assert result["training_ready"] is True, (name, result["training_ready_reason"])
        assert result["proxy"]["received"] == result["proxy"]["recorded"] > 0, name
        assert result["exchanges"]["with_usage"] == result["proxy"]["recorded"], name
        # A tool may print something else than on the machine of the recording; nothing else may differ.
        assert [line for line in result["warnings"] if ": the output of " not in line] == [], name
