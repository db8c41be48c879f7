"""No process, mount, namespace, directory or port outlives a run, however it ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

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


def wait_for_agents(machine: Machine, run: subprocess.Popen[str], count: int = 1) -> None:
    """Wait until as many solutions sleep; their daemons run by then."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if sum(line.endswith(": sleep 60") for line in machine.leftovers()) >= count:
            return
        assert run.poll() is None, finish(run)
        time.sleep(0.05)
    raise AssertionError(f"no solution began within 60 s, only {machine.leftovers()}")


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
@pytest.mark.parametrize(
    "kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["interrupt", "terminate", "hangup"]
)
def test_a_signal_ends_everything_with_complete_records(
    make_task: MakeTask, machine: Machine, kind: signal.Signals, workers: int
) -> None:
    root = lay_out(make_task, SLOW, tasks=max(1, workers))
    run = machine.pytest("tasks", "--benchflow-agent=oracle", "-n", str(workers), "-k", "rollout", cwd=root)
    wait_for_agents(machine, run, max(1, workers))
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
    wait_for_agents(machine, run)
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
    summary = json.loads((root / "jobs" / "killed" / "summary.json").read_text())
    assert summary["coverage"] == {"planned": 1, "healthy": 0, "unhealthy": 1, "skipped": 0, "missing": 0}
    (ledger,) = root.glob("jobs/killed/sandboxes.jsonl")
    told = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [line["event"] for line in told] == ["create", "created", "deleted"]
    assert {line["sandbox"] for line in told} == {killed["sandbox_id"] or told[0]["sandbox"]}
    assert told[-1]["pid"] != told[0]["pid"]


# Listens in whatever network it is in, and sleeps under a name of its own.
LISTENER = (
    "import os, socket; s = socket.create_server(('', 4242)); os.set_inheritable(s.fileno(), True); "
    "os.execvp('sleep', ['sleep', '300.4242'])"
)
KINDS = ("ipc", "mnt", "net", "pid", "uts")


def wait_for(machine: Machine, text: str) -> list[str]:
    """Wait until a leftover is named that holds a text, and return all."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = machine.leftovers()
        if any(text in line for line in found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{text} was not seen within 30 s, only {found}")


def named(found: list[str], what: str) -> list[str]:
    return [line.removeprefix(f"{what} ") for line in found if line.startswith(f"{what} ")]


def test_a_sandbox_that_is_alive_is_seen_whole(make_task: MakeTask, machine: Machine) -> None:
    root = lay_out(make_task, f'#!/bin/sh\nsetsid python3 -c "{LISTENER}" >/dev/null 2>&1 &\nsleep 60\n')
    machine.pytest("tasks", "--benchflow-agent=oracle", "-k", "rollout", cwd=root)
    found = wait_for(machine, "sleep 300.4242")
    assert "4242" in named(found, "port")
    assert {name.partition(":")[0] for name in named(found, "namespace")} >= set(KINDS)
    assert named(found, "directory")
    limits = [json.loads(path.read_text())["limits"]["sandbox"] for path in root.glob("jobs/*/*/config.json")]
    assert bool(named(found, "control group")) == any("control group" in str(limit) for limit in limits)
    machine.close()
    assert not any(named(machine.leftovers(), what) for what in ("process", "namespace", "port", "mount"))


@pytest.mark.parametrize("left", ["whole", "without-its-outer-process"])
def test_what_outlives_its_run_is_seen(machine: Machine, tmp_path: Path, left: str) -> None:
    """Nothing of the daemon tells of its run: no variable, no argument, no session, no namespace, no living parent."""
    as_root = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    apart = ["unshare", *as_root, *(f"--{kind}" for kind in ("ipc", "mount", "net", "uts", "pid")), "--fork"]
    command = shlex.join(["env", "-i", "setsid", *apart, sys.executable, "-c", LISTENER])
    finish(machine.start("sh", "-c", f"{command} </dev/null >/dev/null 2>&1 &", cwd=tmp_path))
    found = wait_for(machine, "sleep 300.4242")
    if left != "whole":
        (outer,) = [line.partition(":")[0] for line in named(found, "process") if "unshare" in line]
        os.kill(int(outer), signal.SIGKILL)
        while any("unshare" in line for line in found):
            found = machine.leftovers()
    assert [line.partition(": ")[2] for line in named(found, "process")][-1] == "sleep 300.4242"
    assert named(found, "port") == ["4242"]
    assert {name.partition(":")[0] for name in named(found, "namespace")} >= set(KINDS)
    machine.close()
    assert machine.leftovers() == []


def test_a_file_that_is_left_is_seen(machine: Machine) -> None:
    (machine.temporary / "left").mkdir()
    assert machine.leftovers() == [f"directory {machine.temporary / 'left'}"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_a_mount_is_seen_unless_it_is_of_a_test_beside_this_one(
    machine: Machine, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own, other = tmp_path / "own", tmp_path_factory.mktemp("other")
    own.mkdir()
    for place in (own, other):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    try:
        assert machine.leftovers() == [f"mount {own}"]
    finally:
        for place in (own, other):
            subprocess.run(["umount", place], check=True)
