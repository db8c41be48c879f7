"""An answer withheld for longer than any library's default arrives: agent, sandbox, gateway and upstream all wait."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
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

WRITE = {"command": "echo 42 > /app/answer"}
BASELINE = [ScriptTurn(calls=(Call("shell", WRITE),)), ScriptTurn(calls=(Call("finish", {"message": "Done."}),))]
OPENHANDS = [
    ScriptTurn(calls=(Call("terminal", {**WRITE, "security_risk": "LOW", "summary": "Write the answer"}),)),
    ScriptTurn(calls=(Call("finish", {"message": "Done.", "summary": "Say that it is done"}),)),
]
# Two of them ask for a title beside their work.
TITLES = (
    ScriptTurn(text="An answer", match="You are a title generator"),
    ScriptTurn(text='{"title": "An answer"}', match="json_schema"),
)


def script(tool: str, arguments: dict[str, str]) -> list[ScriptTurn]:
    """Return the answers of a model to an agent that ends its work with a sentence."""
    return [ScriptTurn(calls=(Call(tool, arguments),)), ScriptTurn(text="Done.")]


TOLD = {**WRITE, "description": "Write the answer"}
# Their clients differ, and so does what they do while nothing comes.
AGENTS = {
    "baseline": ("baseline", BASELINE, {"BENCHFLOW_STREAM": "0"}),
    "baseline-streamed": ("baseline", BASELINE, {"BENCHFLOW_STREAM": "1"}),
    "openhands": ("openhands", OPENHANDS, {"LLM_TIMEOUT": "115200"}),
    "opencode": ("opencode", script("bash", TOLD), {}),
    "gemini": ("gemini", script("run_shell_command", TOLD), {}),
    "claude-agent-acp": ("claude-agent-acp", script("Bash", TOLD), {}),
    "codex-acp": ("codex-acp", script("exec_command", {"cmd": WRITE["command"]}), {}),
}
NOT_STREAMED = ("baseline", "openhands")


@pytest.mark.waits
def test_an_answer_withheld_for_long_arrives(make_task: MakeTask, tmp_path: Path) -> None:
    """Libraries give up after 300 s or 600 s at most; nothing here does. CI withholds for longer than the first."""
    seconds = float(os.environ.get("BENCHFLOW_TEST_WITHHOLD", "3"))
    # The agent's limit is what would end the wait, so it is the only one that is raised.
    tasks = {case: make_task(case, agent_timeout=seconds + 300) for case in AGENTS}

    async def work(case: str) -> Rollout:
        agent, (first, *rest), agent_env = AGENTS[case]
        async with serving(ScriptedUpstream([replace(first, delay=seconds), *rest, *TITLES])) as url:
            config = RolloutConfig(
                task=tasks[case],
                agent=agent,
                model=f"invented/scripted@{url}",
                jobs_dir=tmp_path / "jobs",
                job_name="waits",
                agent_env=agent_env,
            )
            return await run_rollout(config)

    async def all_at_once() -> list[Rollout]:
        return await asyncio.gather(*map(work, AGENTS))

    for case, rollout in zip(AGENTS, asyncio.run(all_at_once()), strict=True):
        assert rollout.verdict == "pass", (case, rollout.result)
        # A request that offers no tools asks for a title. A client that gives up asks again: one exchange more.
        answers = [exchange for exchange in rollout.exchanges if exchange["request"]["body"].get("tools")]
        assert [exchange["error"] for exchange in answers] == [None, None], case
        assert answers[0]["duration_ms"] >= seconds * 1000, case
        assert answers[0]["metadata"]["stream"] is (case not in NOT_STREAMED), case
        assert answers[0]["metadata"]["client_gone"] is False, case
