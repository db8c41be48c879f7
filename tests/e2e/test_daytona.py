"""Rollouts at Daytona leave what local ones leave, and end in the right verdict whatever happens to them there."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout
from tests.e2e.program import ProgramAgent
from tests.e2e.test_docker import events, run, shape

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from pytest_benchflow.contracts import Agent, AgentContext
    from pytest_benchflow.records.rollout import Rollout
    from tests.daytonahost import DaytonaHost
    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

WRITE = ScriptTurn(calls=(Call("shell", {"command": "echo 42 > /app/answer"}),))
DONE = ScriptTurn(calls=(Call("finish", {"message": "Done."}),))
# Asks its model once, does what is to be done, and never ends its turn.
SILENT = """\
import os, urllib.request
asked = {"model": "scripted", "messages": [{"role": "user", "content": "Is it done?"}]}
head = {"Authorization": "Bearer " + os.environ["TOKEN"], "Content-Type": "application/json"}
url = os.environ["MODEL"] + "/v1/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), head)).read()
open("/app/answer", "w").write("42")
time.sleep(10**6)
"""


class SilentAgent(ProgramAgent):
    """An agent that calls a model and then says nothing more."""

    uses_model = True
    api_dialect: str | None = "chat"

    def environment(self, context: AgentContext) -> dict[str, str]:
        return {"MODEL": context.base_url or "", "TOKEN": context.token or ""}


@pytest.fixture(autouse=True)
def at_daytona(daytona: DaytonaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in daytona.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("BENCHFLOW_DAYTONA_ACP_TRANSPORT", raising=False)


def roll(
    task: Path,
    jobs: Path,
    turns: list[ScriptTurn],
    *,
    agent: str | Agent = "baseline",
    idle_timeout: float | None = None,
    meanwhile: Callable[[ScriptedUpstream], Awaitable[object]] | None = None,
) -> Rollout:
    async def work() -> Rollout:
        upstream = ScriptedUpstream(turns)
        async with serving(upstream) as url:
            config = RolloutConfig(
                task=task,
                agent=agent,
                model=f"invented/scripted@{url}",
                sandbox="daytona",
                jobs_dir=jobs,
                job_name="job",
                idle_timeout=idle_timeout,
            )
            other = asyncio.ensure_future(meanwhile(upstream)) if meanwhile else None
            try:
                return await run_rollout(config)
            finally:
                if other is not None:
                    other.cancel()
                    await asyncio.gather(other, return_exceptions=True)

    return asyncio.run(work())


def test_agents_leave_the_same_artifacts_as_in_the_local_sandbox(
    machine: Machine, tmp_path: Path, daytona: DaytonaHost
) -> None:
    theirs, ours = (run(machine, tmp_path, sandbox, "baseline") for sandbox in ("daytona", "local"))
    files = [{path.relative_to(place).as_posix() for path in place.rglob("*")} for place in (theirs, ours)]
    assert files[0] == files[1]
    for name in ("result.json", "config.json"):
        assert shape(json.loads((theirs / name).read_text())) == shape(json.loads((ours / name).read_text()))
    config = json.loads((theirs / "config.json").read_text())
    assert (config["environment"], config["acp_transport"]) == ("daytona", "pty")
    assert json.loads((theirs / "result.json").read_text())["verdict"] == "pass"
    assert daytona.sandboxes == {}
    written = "".join(path.read_text(errors="replace") for path in theirs.rglob("*") if path.is_file())
    assert daytona.key not in written


def test_a_last_word_that_a_terminal_lost_is_fetched(make_task: MakeTask, tmp_path: Path, daytona: DaytonaHost) -> None:
    daytona.silence_pty(b'"stopReason"')
    rollout = roll(make_task(agent_timeout=120), tmp_path / "jobs", [WRITE, DONE])
    assert rollout.verdict == "pass", rollout.result
    assert daytona.requests["GET /process/pty/create-connect"] == 2


def test_an_agent_that_never_tells_its_end_is_a_lost_completion_and_no_timeout(
    make_task: MakeTask, tmp_path: Path, daytona: DaytonaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_benchflow.agents._acp._REATTACH_SEC", 1.0)
    rollout = roll(
        make_task(agent_timeout=120),
        tmp_path / "jobs",
        [ScriptTurn(text="It is.")],
        agent=SilentAgent(SILENT),
        idle_timeout=8.0,
    )
    assert rollout.result["error_category"] == "lost_completion", rollout.result
    assert (rollout.verdict, rollout.result["verdict_category"]) == ("unhealthy", "infra")
    # Whatever it was doing is dead before its work is judged.
    assert rollout.result["verifier_started_after_agent"] is True
    assert daytona.requests["GET /process/pty/create-connect"] == 2
    assert daytona.sandboxes == {}


def test_a_sandbox_that_somebody_deletes_keeps_its_exchanges_and_trains_nothing(
    make_task: MakeTask, tmp_path: Path, daytona: DaytonaHost
) -> None:
    other = daytona.add({"benchflow.owner": "ann"})[0]

    async def delete(upstream: ScriptedUpstream) -> list[Any]:
        def has_worked() -> bool:
            told = any(b'"tool_call"' in path.read_bytes() for path in tmp_path.rglob("acp_trajectory.jsonl"))
            return told and len(upstream.requests) == 2

        while not has_worked():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        ours = next(name for name in daytona.sandboxes if name != other)
        return await asyncio.to_thread(daytona.delete_by_other, ours, other, actor="carl")

    late = ScriptTurn(calls=DONE.calls, delay=100.0)
    rollout = roll(make_task(agent_timeout=300), tmp_path / "jobs", [WRITE, late], meanwhile=delete)
    assert rollout.result["error_category"] == "sandbox_deleted", rollout.result
    details = json.loads(rollout.result["error_details"])
    assert details["actor"] == "carl@example.org"
    assert details["deleted_with_it"] == [other]
    assert details["event_id"]
    assert details["time"]
    assert (rollout.verdict, rollout.result["verdict_category"]) == ("unhealthy", "infra")
    assert rollout.result["training_ready"] is False
    assert [exchange["error"] is None for exchange in rollout.exchanges] == [True, False]
    assert rollout.result["n_tool_calls"] == 1


ASKED = ("tasks", "--benchflow-sandbox=daytona", "-k", "rollout", "-q")


def begin(machine: Machine, root: Path, daytona: DaytonaHost) -> subprocess.Popen[str]:
    """Start a session whose solution takes minutes, and return when it has begun."""
    (root / "tasks" / "answer" / "solution" / "solve.sh").write_text("#!/bin/sh\nsleep 600\n")
    before = set(daytona.sandboxes)
    session = machine.pytest(*ASKED, "--benchflow-agent=oracle", "--benchflow-job-name=begun", cwd=root)
    until = time.monotonic() + 120
    while not any("sleep 600" in line for name in set(daytona.sandboxes) - before for line in daytona.processes(name)):
        assert time.monotonic() < until, "the solution did not start"
        time.sleep(0.2)
    return session


def test_the_next_session_removes_what_a_killed_one_left(
    machine: Machine, make_task: MakeTask, daytona: DaytonaHost
) -> None:
    root = make_task().parents[1]
    others = set(daytona.add({"benchflow.managed": "1:ann", "benchflow.owner": "ann"}, count=3))
    killed = begin(machine, root, daytona)
    killed.kill()
    killed.communicate(timeout=60)
    assert len(daytona.sandboxes) == 4
    output, _ = machine.pytest(*ASKED, "--benchflow-agent=nop", cwd=root).communicate(timeout=200)
    assert set(daytona.sandboxes) == others, output


def test_a_signal_ends_a_session_without_a_traceback_and_leaves_nothing(
    machine: Machine, make_task: MakeTask, daytona: DaytonaHost
) -> None:
    root = make_task().parents[1]
    session = begin(machine, root, daytona)
    session.terminate()
    output, _ = session.communicate(timeout=200)
    assert session.returncode == 2, output
    assert "interrupted: jobs/begun/" in output
    assert "Traceback" not in output
    assert daytona.sandboxes == {}
    assert events(root / "jobs" / "begun") == ["create", "created", "deleted"]
