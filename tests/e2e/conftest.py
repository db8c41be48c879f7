"""Make small real tasks, and look at the machine before and after a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import Machine

MakeTask = Callable[..., Path]

TASK_TOML = """\
schema_version = "1.3"

[task]
name = "invented/{name}"

[agent]
timeout_sec = {agent_timeout}

[verifier]
timeout_sec = 30

[environment]
network_mode = "no-network"
"""

VERIFIER = """\
#!/bin/sh
if [ "$(cat /app/answer 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
echo "1 tests ran"
"""


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Return a maker of tasks whose agent has to write 42 to /app/answer."""

    def make(name: str = "answer", *, verifier: str = VERIFIER, agent_timeout: float = 20, extra: str = "") -> Path:
        task = tmp_path / "tasks" / name
        for part in ("environment", "solution", "tests"):
            (task / part).mkdir(parents=True)
        (task / "task.toml").write_text(
            TASK_TOML.format(name=name.replace(" ", "-"), agent_timeout=agent_timeout) + extra
        )
        (task / "instruction.md").write_text("Write 42 to /app/answer.\n")
        (task / "environment" / "Dockerfile").write_text("FROM debian:12-slim\nWORKDIR /app\n")
        (task / "solution" / "solve.sh").write_text("#!/bin/sh\necho 42 > /app/answer\n")
        (task / "tests" / "test.sh").write_text(verifier)
        return task

    return make


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Return this machine as it is before a run; what a failed test leaves running is killed."""
    machine = Machine(tmp_path / "temporary")
    yield machine
    machine.close()
