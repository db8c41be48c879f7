"""The real OpenHands meets slow, failing and broken surroundings: its records stay whole and its verdict is right."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.agents._catalog import CatalogAgent
from pytest_benchflow.catalog.load import shipped
from pytest_benchflow.checks._check import run_checks
from pytest_benchflow.checks.verdict import verdict_of
from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.waits

SETTINGS = "$HOME/.openhands/agent_settings.json"
TASK = """\
schema_version = "1.3"
[task]
name = "invented/answer"
[agent]
timeout_sec = 600
[environment]
network_mode = "no-network"
"""
SERVER = """\
[[environment.mcp_servers]]
name = "almanac"
transport = "stdio"
command = "python3"
args = ["/app/almanac.py"]
"""
# A tool server in a few lines: it offers one tool, which tells the answer.
ALMANAC = """\
import json, sys

TOOL = {"name": "look_up", "description": "Look a word up.", "inputSchema": {"type": "object", "properties": {}}}
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        told = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        told["serverInfo"] = {"name": "almanac", "version": "1"}
    elif asked.get("method") == "tools/list":
        told = {"tools": [TOOL]}
    elif asked.get("method") == "tools/call":
        told = {"content": [{"type": "text", "text": "the almanac says 42"}]}
    else:
        told = {}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": told}), flush=True)
"""
SKILL = "---\nname: ledger-reading\ndescription: How ledgers are read.\n---\n# Ledgers\n"
VERIFIER = """\
#!/bin/sh
if [ "$(cat /app/answer 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
echo "1 tests ran"
"""
KILL = (
    r"for each in /proc/[0-9]*; do case $(tr '\0' ' ' <$each/cmdline) in "
    "*'openhands acp'*) kill -KILL ${each#/proc/};; esac; done"
)


def shell(command: str, **more: Any) -> ScriptTurn:
    call = Call("terminal", {"command": command, "security_risk": "LOW", "summary": "a step"})
    return ScriptTurn(calls=(call,), **more)


WRITE = shell("echo 42 > /app/answer")
FINISH = ScriptTurn(calls=(Call("finish", {"message": "Done.", "summary": "Say that it is done"}),))
FAILS = ScriptTurn(status=500, error="invented: overloaded")


@dataclass(frozen=True)
class Case:
    """One rollout: what its model does, and how it is asked for."""

    turns: tuple[ScriptTurn, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    effort: str | None = None
    skills: Any = "default"
    servers: bool = False
    launch: tuple[str, str] = ("", "")  # what stands in the launch_cmd, and what is put in its place


LATE = shell("echo 41 > /app/answer", delay=12)
# The settings begin with it: what follows is as if the launch had written it. Its usual pauses take two minutes.
FIRST = '"usage_id": "agent",'
CASES = {
    "race": Case((LATE, WRITE, shell("sleep 10"), FINISH), {"LLM_TIMEOUT": "5"}, skills="without"),
    "still-open": Case((replace(LATE, delay=600), WRITE, FINISH), {"LLM_TIMEOUT": "5"}),
    "recovers": Case((FAILS, FAILS, WRITE, FAILS, FINISH), effort="max", skills="with"),
    "fails": Case(
        (WRITE, replace(FAILS, repeat=True)), launch=(FIRST, FIRST + ' "retry_min_wait": 0, "retry_max_wait": 1,')
    ),
    "killed": Case((WRITE, shell(KILL), FINISH)),
    "server": Case(
        (ScriptTurn(calls=(Call("look_up", {"security_risk": "LOW", "summary": "Look"}),)), WRITE, FINISH),
        {"LLM_REASONING_EFFORT": "max", "LLM_TIMEOUT": "115200", "OPENHANDS_SUBAGENTS": "off"},
        servers=True,
    ),
    "corrupted": Case((FINISH,), launch=(FIRST, FIRST + ' "reasoning_effort": "max",')),
}


def make_task(directory: Path, *, servers: bool) -> Path:
    for name, text in {
        "task.toml": TASK + (SERVER if servers else ""),
        "instruction.md": "Write 42 to /app/answer.\n",
        "environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\nCOPY app/ /app/\n",
        "environment/app/almanac.py": ALMANAC,
        "environment/skills/ledger-reading/SKILL.md": SKILL,
        "tests/test.sh": VERIFIER,
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


async def work(name: str, case: Case, directory: Path) -> Rollout:
    manifest = shipped("openhands")
    assert manifest is not None
    agent = CatalogAgent(replace(manifest, launch_cmd=manifest.launch_cmd.replace(*case.launch)))
    async with serving(ScriptedUpstream(case.turns)) as url:
        return await run_rollout(
            RolloutConfig(
                task=make_task(directory / name, servers=case.servers),
                agent=agent,
                model=f"invented/scripted@{url}",
                jobs_dir=directory / "jobs",
                job_name="troubles",
                skills=case.skills,
                agent_env=case.env,
                reasoning_effort=case.effort,
            )
        )


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rollout]:
    """Run them all at once: most of their time is waiting."""
    directory = tmp_path_factory.mktemp("troubles")

    async def all_at_once() -> list[Rollout]:
        return await asyncio.gather(*(work(name, case, directory) for name, case in CASES.items()))

    return dict(zip(CASES, asyncio.run(all_at_once()), strict=True))


def findings(rollout: Rollout) -> dict[str, str]:
    """Return what its review finds wrong, now and not as it was written down: check -> message."""
    report = run_checks(Rollout(rollout.path))
    assert rollout.result["checks"]["findings"] == [each.as_json() for each in report.findings]
    return {each.check: each.message for each in report.findings if each.severity == "error"}


def statuses(rollout: Rollout) -> list[int | None]:
    """Return the status of each answer, in the order of the requests."""
    records = sorted(rollout.exchanges, key=lambda record: int(record["metadata"]["started_seq"]))
    return [(record["response"] or {}).get("status_code") for record in records]


@pytest.mark.parametrize("name", CASES)
def test_its_artifacts_are_complete(rollouts: dict[str, Rollout], name: str) -> None:
    rollout = rollouts[name]
    left = {str(path.relative_to(rollout.path)) for path in rollout.path.rglob("*") if path.is_file()}
    assert {"config.json", "result.json", "results.jsonl", "prompts.json", "timing.json"} <= left
    assert {"trajectory/acp_trajectory.jsonl", "trajectory/llm_trajectory.jsonl", "agent/jsonrpc.jsonl"} <= left
    assert not {path for path in left if "pending" in path}
    assert rollout.result["proxy"]["received"] == rollout.result["proxy"]["recorded"] == len(rollout.exchanges)
    assert rollout.events[-1]["type"] == "stop"
    (row,) = (rollout.path / "results.jsonl").read_text().splitlines()
    assert json.loads(row)["info"]["training_ready"] is (rollout.verdict == "pass")


@pytest.mark.parametrize("name", [name for name in CASES if name != "corrupted"])
def test_it_kept_its_settings(rollouts: dict[str, Rollout], name: str) -> None:
    assert rollouts[name].result["agent_settings"] == {"file": SETTINGS, "kept": True, "why": None}


def test_an_answer_that_came_too_late_is_a_retry_race_and_is_not_trained_on(rollouts: dict[str, Rollout]) -> None:
    rollout = rollouts["race"]
    assert (rollout.verdict, findings(rollout)) == ("pass", {})
    assert statuses(rollout) == [200, 200, 200, 200]
    late = next(record for record in rollout.exchanges if record["metadata"]["started_seq"] == 0)
    assert late["metadata"]["client_gone"] is True
    assert late["duration_ms"] >= 12_000
    assert rollout.result["exchanges"]["selected"] == 3
    assert rollout.result["exchanges"]["excluded_by_reason"] == {"superseded_retry": 1}
    assert "echo 41" not in (rollout.path / "results.jsonl").read_text()


def test_a_request_that_was_given_up_leaves_nothing_open(rollouts: dict[str, Rollout]) -> None:
    rollout = rollouts["still-open"]
    assert (rollout.verdict, findings(rollout)) == ("pass", {})
    assert statuses(rollout) == [None, 200, 200]
    assert rollout.result["in_flight_at_timeout"] is None
    assert rollout.result["exchanges"]["selected"] == 2


def test_errors_that_pass_are_tried_again_and_cost_nothing(rollouts: dict[str, Rollout]) -> None:
    rollout = rollouts["recovers"]
    assert (rollout.verdict, findings(rollout)) == ("pass", {})
    assert statuses(rollout) == [500, 500, 200, 500, 200]
    assert rollout.result["exchanges"]["excluded_by_reason"] == {"provider_error": 3}
    assert rollout.result["exchanges"]["selected"] == 2


def test_errors_that_stay_are_the_providers_fault(rollouts: dict[str, Rollout]) -> None:
    rollout = rollouts["fails"]
    assert (rollout.verdict, rollout.result["verdict_category"]) == ("unhealthy", "infra")
    assert rollout.result["error_category"] == "provider"
    assert "HTTP 500" in rollout.result["error"]
    assert "overloaded" in rollout.result["error"]
    # Five attempts of the SDK with three tries of the client each, after the one that was answered.
    assert statuses(rollout) == [200] + [500] * 15
    assert set(findings(rollout)) == {"no_infrastructure_error"}


def test_an_agent_killed_in_its_turn_is_a_fault_and_no_failure(rollouts: dict[str, Rollout]) -> None:
    rollout = rollouts["killed"]
    # Its work is there and is worth a full reward, which counts for nothing.
    assert rollout.reward == 1
    assert (rollout.verdict, rollout.result["verdict_category"]) == ("unhealthy", "infra")
    assert rollout.result["error_category"] == "agent"
    assert "killed by signal 9 during session/prompt" in rollout.result["error"]
    assert statuses(rollout) == [200, 200]
    assert set(findings(rollout)) == {"no_infrastructure_error"}


def test_settings_that_it_calls_corrupted_are_a_fault_of_the_infrastructure(rollouts: dict[str, Rollout]) -> None:
    rollout = rollouts["corrupted"]
    assert (rollout.verdict, rollout.result["verdict_category"]) == ("unhealthy", "infra")
    assert rollout.result["agent_settings"]["kept"] is False
    assert "Agent configuration file is corrupted" in findings(rollout)["agent_settings_kept"]
    assert rollout.exchanges == []


def test_a_tool_server_of_the_task_is_used(rollouts: dict[str, Rollout]) -> None:
    rollout = rollouts["server"]
    assert (rollout.verdict, findings(rollout)) == ("pass", {})
    first, second = rollout.exchanges[0]["request"]["body"], rollout.exchanges[1]["request"]["body"]
    offered = {tool["function"]["name"] for tool in first["tools"]}
    assert "look_up" in offered
    assert "the almanac says 42" in str(second["messages"][-1])
    # They are switched off in this rollout, and were there in another.
    assert "task" not in offered
    others = rollouts["killed"].exchanges[0]["request"]["body"]["tools"]
    assert "task" in {tool["function"]["name"] for tool in others}


@pytest.mark.parametrize("name", ["recovers", "server"])
def test_every_request_asks_for_max_and_nothing_else(rollouts: dict[str, Rollout], name: str) -> None:
    """It was asked for by the option in one, and by the agent's own variable in the other."""
    rollout = rollouts[name]
    assert rollout.config["reasoning_effort"] == "max"
    assert "effort_kept" in run_checks(Rollout(rollout.path)).ran
    for record in rollout.exchanges:
        body = record["request"]["body"]
        assert {key: body[key] for key in body if "reason" in key or "effort" in key} == {
            "reasoning": {"effort": "max"}
        }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"reasoning": {"effort": "high"}}, "exchange 1 high", id="lowered"),
        pytest.param({"reasoning": None}, "exchange 1 names none", id="left-out"),
        pytest.param({"reasoning_effort": "high"}, "exchange 1 ", id="contradicted"),
    ],
)
def test_one_request_with_another_effort_is_found(
    rollouts: dict[str, Rollout], tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(rollouts["server"].path, copy)
    file = copy / "trajectory/llm_trajectory.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records[1]["request"]["body"] |= change
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    report = run_checks(Rollout(copy))
    (message,) = (each.message for each in report.findings if each.check == "effort_kept")
    assert "is in 2 of 3 requests of the policy" in message
    assert said in message
    assert verdict_of(report.findings, Rollout(copy).result) == ("unhealthy", "accounting")


def test_skills_are_shown_to_its_model_only_in_a_rollout_with_them(rollouts: dict[str, Rollout]) -> None:
    shown, hidden = rollouts["recovers"], rollouts["race"]
    assert [each.result["skill_mode"] for each in (shown, hidden)] == ["with-skill", "no-skill"]
    assert [each.result["task_skills_loading"] for each in (shown, hidden)] == [1, 0]
    assert shown.result["skill_catalog"]["names"] == ["ledger-reading"]
    for rollout in (shown, hidden):
        records = sorted(rollout.exchanges, key=lambda record: int(record["metadata"]["started_seq"]))
        opening = json.dumps(records[0]["request"]["body"])
        assert ("ledger-reading" in opening) is (rollout is shown)
