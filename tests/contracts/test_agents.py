"""One suite over every shipped agent: what the contract promises, with the real program of each."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, cast

import pytest

from pytest_benchflow import registry
from pytest_benchflow.proxy.script import Call, ScriptTurn
from tests.contracts.agentrig import SLEEP, make_task, rig

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import Agent
    from tests.contracts.agentrig import Rig

AGENTS = ("oracle", "nop", "baseline", "openhands")
MODELS = ("baseline", "openhands")
DAEMON = f"(setsid sh -c 'trap \"\" TERM HUP; sleep {SLEEP}' >/dev/null 2>&1 &)"


def load(name: str) -> Agent:
    return cast("Agent", registry.load("agents", name, "agent")(name))


def shell(agent: str, command: str) -> Call:
    if agent == "openhands":
        return Call("terminal", {"command": command, "security_risk": "LOW", "summary": "a step"})
    return Call("shell", {"command": command})


def finish() -> ScriptTurn:
    return ScriptTurn(calls=(Call("finish", {"message": "The answer is written."}),))


@pytest.mark.parametrize("name", AGENTS)
def test_a_turn_is_done_recorded_and_leaves_nobody_alive(name: str, tmp_path: Path) -> None:
    agent = load(name)
    task = make_task(tmp_path / "task", f"#!/bin/sh\n{DAEMON}\necho 42 > answer\n")
    turns = [ScriptTurn(text="I write it.", calls=(shell(name, f"{DAEMON}; echo 42 > answer; sleep 0.1"),)), finish()]

    async def play() -> None:
        async with rig(tmp_path, task=task, agent=agent, turns=turns) as made:
            outcome = await made.run(agent)
            assert (outcome.stop, outcome.error) == ("finished", None)
            assert agent.uses_model == bool(made.upstream.requests)
            if name != "nop":
                answer = await made.sandbox.exec(["cat", "answer"])
                assert answer.stdout == "42\n"
            events = made.events()
            assert [event["text"] for event in events if event["type"] == "user_message"] == [
                "Write 42 to /app/answer.\n"
            ]
            assert events[-1]["type"] == "stop"
            await made.sandbox.enter("verifier", "none")
            assert await made.survivors() == ""

    asyncio.run(play())


@pytest.mark.parametrize("name", MODELS)
def test_an_agent_in_a_hanging_model_call_is_killed_when_its_time_is_up(name: str, tmp_path: Path) -> None:
    agent = load(name)
    limit = {"baseline": 4.0, "openhands": 12.0}[name]
    turns = [ScriptTurn(calls=(shell(name, f"{DAEMON}; sleep 0.1"),)), ScriptTurn(hang=True, repeat=True)]

    async def play() -> None:
        async with rig(tmp_path, agent=agent, turns=turns) as made:
            outcome = await made.run(agent, timeout_sec=limit)
            assert (outcome.stop, outcome.error, outcome.n_tool_calls) == ("timeout", None, 1)
            assert outcome.in_flight_at_timeout is None
            assert outcome.idle_before_timeout_s is not None
            assert outcome.idle_before_timeout_s > 1
            (event,) = made.events("agent_timeout")
            assert (event["reason"], event["timeout_sec"]) == ("timeout", limit)
            assert await made.survivors() == ""

    asyncio.run(play())


def test_a_solution_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", f"#!/bin/sh\n{DAEMON}\nsleep {SLEEP}\n")

    async def play() -> None:
        async with rig(tmp_path, task=task) as made:
            outcome = await made.run(load("oracle"), timeout_sec=1.0)
            assert outcome.stop == "timeout"
            assert (await made.sandbox.exec(["ls", "/solution"])).exit_code != 0
            await made.sandbox.enter("verifier", "none")
            assert await made.survivors() == ""

    asyncio.run(play())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_keeps_failing_is_the_agents_error(name: str, tmp_path: Path) -> None:
    agent = load(name)
    turns = [ScriptTurn(status=400, error="this model is not served here", repeat=True)]

    async def play() -> None:
        async with rig(tmp_path, agent=agent, turns=turns) as made:
            outcome = await made.run(agent, timeout_sec=60.0)
            assert outcome.stop == "crashed"
            assert "this model is not served here" in str(outcome.error)

    asyncio.run(play())


@pytest.mark.parametrize("name", MODELS)
def test_a_failure_of_the_model_that_passes_is_overcome(name: str, tmp_path: Path) -> None:
    agent = load(name)
    turns = [ScriptTurn(status=500), ScriptTurn(calls=(shell(name, "echo 42 > answer"),)), finish()]

    async def play() -> None:
        async with rig(tmp_path, agent=agent, turns=turns) as made:
            outcome = await made.run(agent)
            assert outcome.stop == "finished"
            assert (await made.sandbox.exec(["cat", "answer"])).stdout == "42\n"

    asyncio.run(play())


@pytest.mark.parametrize("name", MODELS)
def test_the_reasoning_effort_reaches_the_wire_and_nothing_contradicts_it(name: str, tmp_path: Path) -> None:
    agent = load(name)
    sent = {"openhands": {"reasoning": {"effort": "max"}}, "baseline": {"reasoning_effort": "max"}}[name]

    async def play() -> None:
        async with rig(tmp_path, agent=agent, turns=[finish()]) as made:
            assert (await made.run(agent, reasoning_effort="max", timeout_sec=61.5)).stop == "finished"
            body = json.loads(made.upstream.requests[0].body)
            assert {key: body[key] for key in ("reasoning_effort", "reasoning") if key in body} == sent
            if name == "openhands":
                await its_settings_are_its_own(made)

    asyncio.run(play())


async def its_settings_are_its_own(made: Rig) -> None:
    look = "cd ~/.openhands && stat -c %a . agent_settings.json && cat agent_settings.json"
    outer, inner, text = (await made.sandbox.exec(["sh", "-c", look])).stdout.split("\n", 2)
    assert (outer, inner) == ("700", "600")
    llm = json.loads(text)["llm"]
    assert llm["timeout"] == 62
    assert llm["litellm_extra_body"] == {"reasoning": {"effort": "max"}}


@pytest.mark.parametrize("name", MODELS)
def test_skills_are_listed_to_the_model_only_when_the_rollout_has_them(name: str, tmp_path: Path) -> None:
    agent = load(name)
    skill = tmp_path / "skills" / "ledger-reading"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        "---\nname: ledger-reading\ndescription: >\n  How ledgers\n  are read.\n---\n# Ledgers\n"
    )

    async def first_request(directory: Path, skills_dir: str | None) -> str:
        directory.mkdir()
        async with rig(directory, agent=agent, turns=[finish()]) as made:
            await made.sandbox.upload(skill.parent, "/skills")
            assert (await made.run(agent, skills_dir=skills_dir)).stop == "finished"
            return str(json.loads(made.upstream.requests[0].body)["messages"])

    with_skills = asyncio.run(first_request(tmp_path / "with", "/skills"))
    assert "<available_skills>" in with_skills
    assert "ledger-reading" in with_skills
    assert "How ledgers are read." in with_skills
    if name == "baseline":  # the start of OpenHands is too dear to show the same twice
        assert "ledger-reading" not in asyncio.run(first_request(tmp_path / "without", None))


def test_baseline_works_the_same_with_a_server_that_streams(tmp_path: Path) -> None:
    agent = load("baseline")
    two = (shell("baseline", "echo 4 > answer"), Call("edit", {"path": "answer", "content": "42\n"}))
    turns = [ScriptTurn(text="Both at once.", calls=two), ScriptTurn(cut=60), ScriptTurn(text="Done.")]

    async def play() -> None:
        async with rig(tmp_path, agent=agent, turns=turns) as made:
            outcome = await made.run(agent, env={"BENCHFLOW_STREAM": "1"})
            assert (outcome.stop, outcome.n_tool_calls) == ("finished", 2)
            assert (await made.sandbox.exec(["cat", "answer"])).stdout == "42\n"
            assert [event["text"] for event in made.events("agent_message")] == ["Both at once.", "Done."]

    asyncio.run(play())


def test_a_task_without_a_solution_says_so(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task")
    (task / "solution/solve.sh").unlink()
    (task / "solution").rmdir()

    async def play() -> None:
        async with rig(tmp_path, task=task) as made:
            with pytest.raises(RuntimeError, match=r"has no solution; oracle runs solution/solve\.sh"):
                await made.run(load("oracle"))

    asyncio.run(play())


def test_a_solution_runs_as_its_first_line_says_with_its_own_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INVENTED_SEED", "42")
    work = "import os\nopen('answer', 'w').write(os.environ['SEED'])\nprint('said')\nraise SystemExit(3)\n"
    script = f"#!/usr/bin/env python3\n{work}"
    task = make_task(tmp_path / "task", script)
    with (task / "task.toml").open("a") as file:
        file.write('[solution.env]\nSEED = "${INVENTED_SEED}"\nOTHER = "${NOT_SET}"\n')

    async def play() -> None:
        async with rig(tmp_path, task=task) as made:
            outcome = await made.run(load("oracle"))
            # Whether the work is good is for the verifier to say.
            assert (outcome.stop, outcome.stop_reason) == ("finished", "exit code 3")
            assert (await made.sandbox.exec(["cat", "answer"])).stdout == "42"
            assert (await made.sandbox.exec(["ls", "/solution"])).exit_code != 0
            assert made.log("stdout.txt") == "said\n"

    asyncio.run(play())
