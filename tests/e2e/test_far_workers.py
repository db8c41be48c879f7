"""Workers of pytest-xdist on another machine run rollouts, and everything they write comes to this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.records.rollout import Rollout
from tests import sshhost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

ROOT = Path(__file__).parents[2]
NAMES = ("ant", "bee", "cow")


# The last worker has ended well, and then the machine is gone.
CUT = """
import os, signal
from pathlib import Path

def end(pid):
    for child in Path(f"/proc/{{pid}}/task/{{pid}}/children").read_text().split():
        end(child)
    os.kill(int(pid), signal.SIGKILL)

def pytest_testnodedown(node, error):
    end({pid})
"""


class Elsewhere:
    """A machine with an interpreter and a home of its own, and the project that is copied there."""

    def __init__(self, place: Path, sshd: sshhost.Sshd, project: Path) -> None:
        self.sshd, self.project = sshd, project
        self.work = sshd.far_home / "work"
        self.work.mkdir(exist_ok=True)
        config = place / "client"
        config.write_text(
            f"Port {sshd.port}\nIdentityFile {sshd.key}\nUserKnownHostsFile {sshd.home}/.ssh/known_hosts\n"
            "StrictHostKeyChecking yes\nBatchMode yes\n"
        )
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "python"], check=True)
        (packages,) = (place / "python").glob("lib/python*/site-packages")
        found = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "shared.pth").write_text("\n".join([*found, str(ROOT)]) + "\n")
        self.worker = (
            f"ssh={sshd.user}@127.0.0.1//ssh_config={config}//python={place}/python/bin/python//chdir={self.work}"
        )

    @property
    def job(self) -> Path:
        """Return the job's directory on this machine."""
        return self.project / "jobs" / "ramp"

    def left(self) -> list[Path]:
        """Return what the other machine still has of jobs."""
        return list((self.work / "benchflow-jobs").glob("*/*"))


@pytest.fixture
def elsewhere(tmp_path: Path, make_task: MakeTask) -> Iterator[Elsewhere]:
    if reason := sshhost.why_no_sshd():
        pytest.skip(reason)
    for name in NAMES:
        task = make_task(name)
        (task / "solution" / "solve.sh").write_text("#!/bin/sh\necho 42 > /app/answer\n")
    project = task.parents[1]
    (project / "pytest.ini").write_text("[pytest]\n")
    sshd = sshhost.Sshd(tmp_path / "sshd")
    sshd.start()
    yield Elsewhere(tmp_path, sshd, project)
    sshd.stop()


def run(machine: Machine, there: Elsewhere, *options: str, workers: int = 2) -> tuple[int, str]:
    session = machine.pytest(
        "tasks",
        "--benchflow-agent=oracle",
        "--benchflow-job-name=ramp",
        f"--tx={workers}*{there.worker}",
        *options,
        cwd=there.project,
    )
    output, _ = session.communicate(timeout=300)
    return session.returncode, output


def rewards(job: Path) -> dict[str, float | None]:
    return {
        path.parent.name.partition("__")[0]: Rollout(path.parent).reward for path in sorted(job.glob("*/result.json"))
    }


def test_rollouts_of_other_machines_are_here_at_the_end(machine: Machine, elsewhere: Elsewhere) -> None:
    code, output = run(machine, elsewhere, f"--junitxml={elsewhere.project}/junit.xml")

    assert code == 0, output
    assert rewards(elsewhere.job) == dict.fromkeys(NAMES, 1.0)
    assert "3/3 healthy" in output
    assert "directory: jobs/ramp\n" in output
    assert f'value="{elsewhere.job.relative_to(elsewhere.project)}/' in (elsewhere.project / "junit.xml").read_text()
    ours = elsewhere.project / "tasks"
    job = json.loads((elsewhere.job / "job.json").read_text())
    assert [cell["task_path"] for cell in job["matrix"]] == [str(ours / name) for name in NAMES]
    assert sorted(job["digests"]["tasks"]) == [str(ours / name) for name in NAMES]
    summary = json.loads((elsewhere.job / "summary.json").read_text())
    assert (summary["coverage"]["planned"], summary["coverage"]["healthy"]) == (3, 3)
    ledger = [json.loads(line) for line in (elsewhere.job / "sandboxes.jsonl").read_text().splitlines()]
    assert {line["machine"] for line in ledger} == {f"{elsewhere.sshd.user}@127.0.0.1"}
    assert sum(line["event"] == "deleted" for line in ledger) == 3
    assert elsewhere.left() == []
    assert not (elsewhere.job / ".arriving").exists()


def test_what_came_is_reviewed_like_any_other(machine: Machine, elsewhere: Elsewhere) -> None:
    run(machine, elsewhere, "-q")

    review = machine.pytest(f"--benchflow-review={elsewhere.job}", "-q", cwd=elsewhere.project)
    output, _ = review.communicate(timeout=120)
    assert review.returncode == 0, output


def test_a_worker_killed_elsewhere_leaves_its_rollout_here(machine: Machine, elsewhere: Elsewhere) -> None:
    slow = elsewhere.project / "tasks" / "bee" / "solution" / "solve.sh"
    slow.write_text("#!/bin/sh\necho 42 > /app/answer\nsleep 600\n")
    session = machine.pytest(
        "tasks",
        "--benchflow-agent=oracle",
        "--benchflow-job-name=ramp",
        f"--tx={elsewhere.worker}",
        "--max-worker-restart=0",
        cwd=elsewhere.project,
    )
    there = elsewhere.work / "benchflow-jobs" / "ramp"
    until = time.monotonic() + 120
    while not list(there.glob("bee__*/trajectory/acp_trajectory.jsonl")):
        assert time.monotonic() < until and session.poll() is None
        time.sleep(0.1)
    os.kill(int(json.loads((there / "sandboxes.jsonl").read_text().splitlines()[-1])["pid"]), signal.SIGKILL)
    output, _ = session.communicate(timeout=120)

    assert session.returncode == 1, output
    assert rewards(elsewhere.job)["ant"] == 1.0
    cut = json.loads(next(elsewhere.job.glob("bee__*/result.json")).read_text())
    assert (cut["verdict"], cut["error_category"]) == ("unhealthy", "interrupted")


def test_a_machine_that_is_gone_at_the_end_is_told_of(machine: Machine, elsewhere: Elsewhere) -> None:
    (elsewhere.project / "conftest.py").write_text(CUT.format(pid=elsewhere.sshd.pid))
    code, output = run(machine, elsewhere, workers=1)

    assert code == 1, output
    assert f"not brought from {elsewhere.sshd.user}@127.0.0.1: the machine does not answer" in output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--benchflow-max-cost=1"], "--benchflow-max-cost goes by what all workers have done"),
        (["--benchflow-resume"], "--benchflow-resume goes by what all workers have done"),
        (["--benchflow-canary=ant"], "--benchflow-canary goes by what all workers have done"),
        (["/etc/passwd"], "lies outside the root directory"),
    ],
)
def test_what_cannot_hold_elsewhere_is_refused(
    machine: Machine, elsewhere: Elsewhere, options: list[str], said: str
) -> None:
    code, output = run(machine, elsewhere, *options)

    assert code == 4, output
    assert said in output
    assert "Traceback" not in output
