"""A whole rollout against a model behind HTTP: streamed, recorded, and not lost when the session is killed."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout
    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

SOLVE = [
    ScriptTurn(text="I write it.", calls=(Call("shell", {"command": "echo 42 > /app/answer"}),)),
    ScriptTurn(calls=(Call("shell", {"command": "cat /app/answer"}), Call("shell", {"command": "ls /app"}))),
    ScriptTurn(calls=(Call("finish", {"message": "Done."}),)),
]


async def run_against(turns: list[ScriptTurn], task: Path, jobs: Path, **agent_env: str) -> Rollout:
    async with serving(ScriptedUpstream(turns)) as url:
        return await run_rollout(
            RolloutConfig(
                task=task, agent="baseline", model=f"invented/scripted@{url}", jobs_dir=jobs, agent_env=agent_env
            )
        )


@pytest.mark.parametrize("stream", [pytest.param("0", id="whole"), pytest.param("1", id="streamed")])
def test_baseline_solves_a_task_over_http(make_task: MakeTask, tmp_path: Path, stream: str) -> None:
    rollout = asyncio.run(run_against(list(SOLVE), make_task(), tmp_path / "jobs", BENCHFLOW_STREAM=stream))
    assert rollout.verdict == "pass", rollout.result
    assert rollout.result["training_ready"] is True
    assert len(rollout.exchanges) == rollout.result["exchanges"]["selected"] == 3
    assert {exchange["metadata"]["stream"] for exchange in rollout.exchanges} == {stream == "1"}
    assert rollout.result["exchanges"]["with_usage"] == 3
    tokens = rollout.result["exchanges"]
    assert tokens["billed_tokens"] == tokens["selected_tokens"] + tokens["excluded_tokens"] > 0


def test_an_answer_that_never_comes_is_recorded_at_the_next_start(make_task: MakeTask, machine: Machine) -> None:
    task = make_task(agent_timeout=120)
    root = task.parents[1]
    call = {"name": "shell", "arguments": {"command": "true"}}
    script = {"turns": [{"text": "Thinking.", "calls": [call]}, {"hang": True}]}
    (root / "script.json").write_text(json.dumps(script))
    (root / "pytest.ini").write_text("[pytest]\n")
    run = machine.pytest(
        "tasks", "--benchflow-model=script/script.json", "--benchflow-job-name=killed", "-k", "rollout", cwd=root
    )
    deadline = time.monotonic() + 60
    pending = root / "jobs" / "killed"
    while time.monotonic() < deadline and not any(
        p.stat().st_size for p in pending.glob("*/trajectory/llm_pending.jsonl")
    ):
        time.sleep(0.1)
    while time.monotonic() < deadline and len(list(pending.glob("*/trajectory/llm_trajectory.jsonl"))) < 1:
        time.sleep(0.1)
    time.sleep(1)
    run.kill()
    run.communicate()
    following = machine.pytest("tasks", "--benchflow-agent=nop", "-k", "rollout", "-q", cwd=root)
    output, _ = following.communicate(timeout=60)
    assert following.returncode == 0, output
    (rollout,) = pending.glob("*__baseline__*")
    lines = [json.loads(line) for line in (rollout / "trajectory" / "llm_trajectory.jsonl").read_text().splitlines()]
    assert [line["error"] and line["error"]["type"] for line in lines] == [None, "interrupted"]
    assert not (rollout / "trajectory" / "llm_pending.jsonl").exists()
    result = json.loads((rollout / "result.json").read_text())
    assert (result["verdict"], result["error_category"]) == ("unhealthy", "interrupted")
    row = json.loads((rollout / "results.jsonl").read_text())
    assert row["info"]["training_ready"] is False
    assert row["info"]["training_ready_reason"]


CALL = Call("shell", {"command": "echo 42 > /app/answer"})


@pytest.mark.parametrize(
    ("turns", "verdict"),
    [
        pytest.param([ScriptTurn(calls=(CALL,)), ScriptTurn(hang=True)], "unhealthy", id="hung"),
        pytest.param([ScriptTurn(calls=(CALL,), delay=2), ScriptTurn(delay=60)], "normal_timeout", id="slow"),
        pytest.param(
            [ScriptTurn(calls=(CALL,)), ScriptTurn(text="word " * 500, pause=0.5)], "normal_timeout", id="writes-on"
        ),
    ],
)
def test_a_provider_that_hangs_is_told_from_one_that_is_slow(
    make_task: MakeTask, tmp_path: Path, turns: list[ScriptTurn], verdict: str
) -> None:
    task = make_task(agent_timeout=7)
    rollout = asyncio.run(run_against(turns, task, tmp_path / "jobs", BENCHFLOW_STREAM="1"))
    assert rollout.result["error_category"] == "timeout"
    assert rollout.verdict == verdict, rollout.result["checks"]


def test_a_model_that_cannot_be_reached_is_not_the_agents_fault(make_task: MakeTask, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        model = f"invented/m@http://127.0.0.1:{closed.getsockname()[1]}/v1"
        config = RolloutConfig(task=make_task(), agent="baseline", model=model, jobs_dir=tmp_path / "jobs")
        rollout = asyncio.run(run_rollout(config))
    assert rollout.verdict == "unhealthy"
    assert (rollout.result["error_category"], rollout.result["verdict_category"]) == ("provider", "infra")
    assert "could not be reached" in rollout.result["error"]


def test_a_refused_key_is_the_providers_word(make_task: MakeTask, tmp_path: Path) -> None:
    refusing = [ScriptTurn(status=401, error="invented: no such key", repeat=True)]
    rollout = asyncio.run(run_against(refusing, make_task(), tmp_path / "jobs"))
    # A server without a key of the host's.
    assert rollout.result["error_category"] == "auth"
    assert " answered 401 to a request without a key: " in rollout.result["error"]
    assert "no such key" in rollout.result["error"]
