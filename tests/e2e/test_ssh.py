"""Rollouts over SSH leave what they leave here, whatever becomes of the connection, and nothing on the far machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout
from tests import sshhost
from tests.e2e.test_docker import events, shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from subprocess import Popen

    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine
    from tests.sshhost import Sshd

ROOT = Path(__file__).parents[2]
SOLUTION = "#!/bin/sh\necho 42 > /app/answer\nsleep {}\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Return a server of this module's own: on the one that all share, tests of the contract keep a session open."""
    with sshhost.running(tmp_path_factory.mktemp("sshd")) as made:
        yield made


@pytest.fixture
def host(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> Sshd:
    """Return a server that knows who runs pytest, with nothing of an earlier test on it."""
    monkeypatch.setenv("HOME", str(server.home))
    return server


@pytest.fixture
def own_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """Return a server of a test's own, on which agents are installed as they are here."""
    with sshhost.running(tmp_path / "sshd", alike=True) as made:
        monkeypatch.setenv("HOME", str(made.home))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield made


def asked(*hosts: str) -> list[str]:
    return ["--benchflow-sandbox=ssh", *(f"--benchflow-ssh-host={host}" for host in hosts)]


def run(machine: Machine, jobs: Path, name: str, *options: str) -> Path:
    session = machine.pytest("tasks/csv-report", *options, f"--benchflow-jobs-dir={jobs / name}", "-q", cwd=ROOT)
    output, _ = session.communicate(timeout=300)
    assert session.returncode == 0, output
    (rollout,) = (path.parent for path in (jobs / name).glob("*/*/result.json"))
    return rollout


def lay_out(make_task: MakeTask, *, seconds: float, names: tuple[str, ...] = ("answer",)) -> Path:
    """Return a directory with tasks whose solution takes its time."""
    for name in names:
        task = make_task(name, agent_timeout=120)
        (task / "solution" / "solve.sh").write_text(SOLUTION.format(seconds))
    (task.parents[1] / "pytest.ini").write_text("[pytest]\n")
    return task.parents[1]


def until(true: Callable[[], object]) -> None:
    # A far side that was not heard to end does so by itself after two minutes.
    deadline = time.monotonic() + 180
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert true()


def solving(sshd: Sshd) -> bool:
    """Tell whether a solution has begun."""
    return any(path.read_text() == "42\n" for path in sshd.far_home.glob("tmp/*/*/*/scratch/root/app/answer"))


def result_of(root: Path, job: str) -> dict[str, Any]:
    (path,) = root.glob(f"jobs/{job}/*/result.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def finished(session: Popen[str]) -> tuple[int, str]:
    output, _ = session.communicate(timeout=300)
    return session.returncode, output


def test_an_agent_leaves_the_same_artifacts_as_in_the_local_sandbox(
    host: Sshd, machine: Machine, tmp_path: Path
) -> None:
    far = run(machine, tmp_path, "ssh", *asked(host.address))
    local = run(machine, tmp_path, "local")
    files = [{path.relative_to(place).as_posix() for path in place.rglob("*")} for place in (far, local)]
    assert files[0] == files[1]
    for name in ("result.json", "config.json"):
        theirs, ours = (json.loads((place / name).read_text()) for place in (far, local))
        assert shape(theirs) == shape(ours)
        if name == "config.json":
            assert theirs["environment"] == "ssh"
            assert theirs["limits"]["sandbox"]["host"]["applied"] == host.address
        else:
            assert theirs["verdict"] == "pass"
    until(lambda: host.sessions() == [])


def test_a_cut_connection_is_made_again_and_the_rollout_is_solved(
    host: Sshd, machine: Machine, make_task: MakeTask
) -> None:
    root = lay_out(make_task, seconds=3)
    session = machine.pytest("tasks", *asked(host.address), "--benchflow-agent=oracle", "-q", cwd=root)
    until(lambda: solving(host))
    host.cut()
    code, output = finished(session)
    assert code == 0, output
    (path,) = root.glob("jobs/*/*/result.json")
    assert json.loads(path.read_text())["verdict"] == "pass"
    until(lambda: host.sessions() == [])


def test_a_far_side_that_is_gone_is_the_infrastructures_fault(
    host: Sshd, machine: Machine, make_task: MakeTask
) -> None:
    root = lay_out(make_task, seconds=60)
    options = [*asked(host.address), "--benchflow-agent=oracle", "--benchflow-job-name=lost", "-k", "rollout"]
    session = machine.pytest("tasks", *options, "-q", cwd=root)
    until(lambda: solving(host))
    for place in host.sessions():
        os.kill(int((place / "pid").read_text()), signal.SIGKILL)
    code, output = finished(session)
    assert code == 1, output
    result = result_of(root, "lost")
    assert (result["verdict"], result["error_category"]) == ("unhealthy", "sandbox")
    assert "was lost and could not be made again" in result["error"]
    until(lambda: host.sessions() == [])


def test_the_next_run_removes_what_a_kill_left(host: Sshd, machine: Machine, make_task: MakeTask) -> None:
    root = lay_out(make_task, seconds=60)
    options = [*asked(host.address), "-k", "rollout", "-q"]
    killed = machine.pytest("tasks", *options, "--benchflow-agent=oracle", "--benchflow-job-name=killed", cwd=root)
    until(lambda: solving(host))
    killed.kill()
    killed.communicate(timeout=60)
    assert host.sessions()
    code, output = finished(machine.pytest("tasks", *options, "--benchflow-agent=nop", cwd=root))
    assert code == 0, output
    assert events(root / "jobs/killed") == ["create", "created", "deleted"]
    until(lambda: host.sessions() == [])
    assert machine.leftovers() == []


def test_workers_share_the_slots_of_two_hosts(
    host: Sshd, own_host: Sshd, machine: Machine, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mine, theirs in ((host, own_host), (own_host, host)):
        text = (mine.place / "authorized").read_text()
        if text not in (theirs.place / "authorized").read_text():
            with (theirs.place / "authorized").open("a") as file:
                file.write(text)
    with (own_host.home / ".ssh" / "known_hosts").open("a") as file:
        file.write((host.home / ".ssh" / "known_hosts").read_text())
    root = lay_out(make_task, seconds=1, names=tuple(f"answer-{number}" for number in range(4)))
    hosts = {host.address: 1, own_host.address: 1}
    options = asked(*(f"{name}*{slots}" for name, slots in hosts.items()))
    session = machine.pytest("tasks", *options, "--benchflow-agent=oracle", "-k", "rollout", "-n", "3", "-q", cwd=root)
    code, output = finished(session)
    assert code == 0, output
    (job,) = (path.parent for path in root.glob("jobs/*/sandboxes.jsonl"))
    where = {}
    for path in job.glob("*/config.json"):
        where[path.parent.name] = json.loads(path.read_text())["limits"]["sandbox"]["host"]["applied"]
    assert set(where.values()) == set(hosts)
    lines = [json.loads(line) for line in (job / "sandboxes.jsonl").read_text().splitlines()]
    running: dict[str, set[str]] = {name: set() for name in hosts}
    for line in sorted(lines, key=lambda line: float(line["time"])):
        place = running[where[line["rollout"]]]
        if line["event"] == "created":
            place.add(line["rollout"])
        place.discard(line["rollout"] if line["event"] == "deleted" else "")
        # One that was stopped a moment ago may be told of after the next in its slot.
        assert len(place) <= hosts[where[line["rollout"]]] + 1
    until(lambda: host.sessions() == own_host.sessions() == [])


WRITE = Call("terminal", {"command": "echo 42 > /app/answer", "security_risk": "LOW", "summary": "Write it"})
FINISH = Call("finish", {"message": "Done.", "summary": "Say that it is done"})


def test_openhands_works_over_ssh(own_host: Sshd, make_task: MakeTask, tmp_path: Path) -> None:
    from pytest_benchflow.sandboxes.ssh import SshBackend

    task = make_task(agent_timeout=300)
    backend = SshBackend([own_host.address])

    async def main() -> Any:
        turns = (ScriptTurn(calls=(WRITE,)), ScriptTurn(calls=(FINISH,)))
        async with serving(ScriptedUpstream(turns)) as url:
            return await run_rollout(
                RolloutConfig(
                    task=task,
                    agent="openhands",
                    model=f"invented/scripted@{url}",
                    sandbox=backend,
                    jobs_dir=tmp_path / "jobs",
                    job_name="far",
                )
            )

    rollout = asyncio.run(main())
    assert rollout.verdict == "pass", rollout.result
    assert rollout.config["acp_transport"] == "ssh"
    assert rollout.result["proxy"]["received"] == rollout.result["proxy"]["recorded"] == len(rollout.exchanges) == 2
    until(lambda: own_host.sessions() == [])


def test_an_agent_is_installed_once_on_its_host(host: Sshd, tmp_path: Path) -> None:
    from pytest_benchflow.contracts import Installation
    from pytest_benchflow.sandboxes.ssh import SshBackend
    from tests.contracts.sandboxrig import Rig, make_task

    count = (
        "n=$(cat /opt/benchflow/count 2>/dev/null || echo 0); echo $((n + 1)) >/opt/benchflow/count; echo installing"
    )
    installation = Installation("invented", "1", f"{count}\necho {tmp_path.name}", 60)
    task = make_task(tmp_path / "task")

    def install(name: str) -> str:
        backend = SshBackend([host.address])
        with Rig(backend, tmp_path / name) as rig:
            try:
                log = tmp_path / f"{name}.log"
                mounts = rig.run(backend.install(installation, task, log))
                sandbox = rig.create(task, mounts=mounts)
                assert rig.sh(sandbox, "cat /opt/benchflow/count").stdout == "1\n"
                return log.read_text() if log.exists() else ""
            finally:
                with contextlib.suppress(OSError):
                    rig.run(backend.close())

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert install("one") == f"installing\n{tmp_path.name}\n"
    assert install("two") == ""
