"""opencode, Gemini CLI, Claude Code and Codex: installed from npm, at work in the local sandbox without a network."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from pytest_benchflow.catalog.load import shipped
from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.rollout.cell import resolve_agent
from pytest_benchflow.sandboxes._host import package_sources
from pytest_benchflow.settings import cache_dir
from tests.contracts.agentrig import SLEEP, rig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

ROOT = Path(__file__).parents[2]
INSTALL_SEC = 900
# Each one's dialect, and the end of the paths it asks.
AGENTS = {
    "opencode": ("chat", "/chat/completions"),
    "gemini": ("generateContent", ":streamGenerateContent"),
    "claude-agent-acp": ("messages", "/v1/messages"),
    "codex-acp": ("responses", "/v1/responses"),
}
# What two of them ask beside their work: a title for the session.
TITLES = (
    ScriptTurn(text="An answer", match="You are a title generator", repeat=True),
    ScriptTurn(text='{"title": "An answer"}', match="json_schema", repeat=True),
)


@pytest.fixture(autouse=True)
def installable() -> None:
    """Skip where an agent is not installed, and the registry cannot be reached."""
    kept = list((cache_dir() / "agents").glob("*/.complete.json"))
    if all(any(path.parent.name.startswith(f"{agent}@") for path in kept) for agent in AGENTS):
        return
    registry = package_sources()[0].get("npm_config_registry", "https://registry.npmjs.org").rstrip("/")
    try:
        with urlopen(f"{registry}/npm/latest", timeout=30):  # noqa: S310 - the host's own setting
            return
    except OSError as error:
        pytest.skip(f"not installed, and the npm registry {registry} cannot be reached: {error}")


def shell(agent: str, command: str) -> Call:
    """Return a call of an agent's own tool for commands."""
    if agent == "codex-acp":
        return Call("exec_command", {"cmd": command})
    name = {"opencode": "bash", "gemini": "run_shell_command", "claude-agent-acp": "Bash"}[agent]
    return Call(name, {"command": command, "description": "a step"})


def effort_sent(agent: str, body: Mapping[str, Any]) -> Any:
    """Return the effort as a request of an agent carries it."""
    if agent == "gemini":
        return body["generationConfig"]["thinkingConfig"]["thinkingLevel"]
    if agent == "claude-agent-acp":
        return body["output_config"]["effort"]
    return body["reasoning"]["effort"] if agent == "codex-acp" else body["reasoning_effort"]


def run(machine: Machine, jobs: Path, *asked: str) -> dict[str, Path]:
    """Run pytest as a user does; return the directory of each agent's rollout."""
    session = machine.pytest(*asked, f"--benchflow-jobs-dir={jobs}", "-k", "rollout", "-q", cwd=ROOT)
    output, _ = session.communicate(timeout=INSTALL_SEC)
    assert session.returncode == 0, output
    # Codex' adapter leaves a process of its own behind when it is ended.
    assert machine.leftovers() == []
    found = [path.parent for path in jobs.glob("*/*/result.json")]
    return {json.loads((path / "result.json").read_text())["agent"]: path for path in found}


def test_a_bundled_task_is_solved_against_a_recording_in_each_agents_own_format(
    machine: Machine, tmp_path: Path
) -> None:
    agents = [f"--benchflow-agent={agent}" for agent in AGENTS]
    rollouts = run(machine, tmp_path / "jobs", "tasks/csv-report", *agents, "--benchflow-gate=reward")
    assert sorted(rollouts) == sorted(AGENTS)
    for agent, path in rollouts.items():
        result = json.loads((path / "result.json").read_text())
        assert (result["verdict"], result["rewards"], result["error"]) == ("pass", {"reward": 1.0}, None), agent
        assert result["checks"]["findings"] == [], agent
        assert result["training_ready"] is True, (agent, result["training_ready_reason"])
        assert result["proxy"]["received"] == result["proxy"]["recorded"] > 0, agent
        assert result["exchanges"]["with_usage"] == result["proxy"]["recorded"], agent
        # A tool may print something else than on the machine of the recording; nothing else may differ.
        assert [line for line in result["warnings"] if ": the output of " not in line] == [], agent
        exchanges = list(read_records(path / "trajectory/llm_trajectory.jsonl"))
        dialect, end = AGENTS[agent]
        manifest = shipped(agent)
        assert manifest is not None
        assert manifest.dialect == dialect
        assert {each["metadata"]["stream"] for each in exchanges} == {True}
        assert all(each["request"]["path"].partition("?")[0].endswith(end) for each in exchanges), agent


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_overcomes_a_failure_with_its_skills_at_the_effort_it_was_asked_for(name: str, tmp_path: Path) -> None:
    skill = tmp_path / "skills/ledger-reading"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        "---\nname: ledger-reading\ndescription: How invented ledgers are read.\n---\n# Ledgers\n"
    )
    work = f"(setsid sh -c 'trap \"\" TERM HUP; sleep {SLEEP}' >/dev/null 2>&1 &); echo 42 > answer"
    turns = [
        *TITLES,
        ScriptTurn(status=500),
        ScriptTurn(text="I write it.", calls=(shell(name, work),)),
        ScriptTurn(text="It is written."),
    ]
    agent = resolve_agent(name)
    effort = "low" if name == "gemini" else "xhigh"

    async def play() -> None:
        async with rig(tmp_path, agent=agent, turns=turns) as made:
            await made.sandbox.upload(skill.parent, "/skills")
            outcome = await made.run(agent, reasoning_effort=effort, skills_dir="/skills")
            assert (outcome.stop, outcome.error, outcome.n_tool_calls) == ("finished", None, 1)
            assert (await made.sandbox.exec(["cat", "answer"])).stdout == "42\n"
            bodies = [json.loads(request.body) for request in made.upstream.requests]
            assert len(bodies) >= len(turns) - len(TITLES)
            for body in bodies:
                assert effort_sent(name, body).lower() == effort
            assert any("How invented ledgers are read." in json.dumps(body) for body in bodies)
            messages = [event["text"] for event in made.events("agent_message")]
            assert messages[-1] == "It is written."
            assert made.log("stdout.txt") == ""
            await made.sandbox.enter("verifier", "none")
            assert await made.survivors() == ""

    asyncio.run(play())


TOOLS = (
    "awk",
    "bash",
    "cat",
    "chmod",
    "cp",
    "curl",
    "dirname",
    "env",
    "gzip",
    "ln",
    "mkdir",
    "rm",
    "sed",
    "sh",
    "tar",
    "uname",
)
BARE = """\
FROM debian:12-slim
COPY --chmod=755 tools /opt/tools/
ENV PATH=/opt/tools
WORKDIR /app
"""
VERIFIER = """\
#!/bin/sh
if ! command -v python3 && ! command -v node && [ "$(cat /app/answer)" = 42 ]; then reward=1; fi
echo "${reward:-0}" > /logs/verifier/reward.txt
"""


def test_opencode_is_installed_and_works_where_there_is_no_python_and_no_node(
    machine: Machine, make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(verifier=VERIFIER, agent_timeout=60)
    tools = task / "environment/tools"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).write_text(f'#!/bin/sh\nexec {shutil.which(tool)} "$@"\n')
    (task / "environment/Dockerfile").write_text(BARE)
    step = {"command": "python3 -V; python -V; node -v; echo 42 > /app/answer", "description": "a step"}
    turns: list[dict[str, Any]] = [
        {"text": "A title", "match": "You are a title generator"},
        {"text": "I write it.", "calls": [{"name": "bash", "arguments": step}]},
        {"text": "It is written."},
    ]
    script = tmp_path / "model.json"
    script.write_text(json.dumps({"turns": turns}))
    # An installation of its own: that of the cache may have been made where there was a Python.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = ("--benchflow-agent=opencode", f"--benchflow-model=script/{script}")
    rollouts = run(machine, tmp_path / "jobs", str(task), *asked)
    result = json.loads((rollouts["opencode"] / "result.json").read_text())
    assert (result["verdict"], result["error"]) == ("pass", None)
    said = (rollouts["opencode"] / "trajectory/acp_trajectory.jsonl").read_text()
    for program in ("python3", "python", "node"):
        assert f"{program}: command not found" in said


def test_an_effort_that_an_agent_cannot_ask_for_is_a_usage_error(machine: Machine, tmp_path: Path) -> None:
    asked = ["tasks/csv-report", "--benchflow-agent=gemini", "--benchflow-reasoning-effort=max", "-k", "rollout"]
    session = machine.pytest(*asked, f"--benchflow-jobs-dir={tmp_path}", cwd=ROOT)
    output, _ = session.communicate(timeout=60)
    assert session.returncode == 4
    sentence = "the agent gemini can ask its model for minimal, low, medium, high"
    assert f"the reasoning effort is 'max'; {sentence}" in output
    assert list(tmp_path.glob("*/*/trajectory")) == []
