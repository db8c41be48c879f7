"""What an agent made of its surroundings: the settings it was launched with, and the tool servers of a task."""

from __future__ import annotations

import asyncio
import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import registry
from pytest_benchflow.agents._catalog import CatalogAgent
from pytest_benchflow.agents._mcp import environment
from pytest_benchflow.catalog.load import HostTable, Manifest
from pytest_benchflow.tasks.load import load_task
from pytest_benchflow.tasks.task import McpServer
from tests.contracts.agentrig import PRELUDE, make_task, rig

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import AgentOutcome

SETTINGS = "$HOME/.invented/settings.json"
HOST = HostTable(settings=SETTINGS, settings_refused="settings are broken")
# Writes its settings and their copy as launchers do, and becomes a program that works on them for a turn.
LAUNCH = """\
mkdir -p "$HOME/.invented"
for name in settings.json settings.json.launched; do
  printf '%s' '{{"llm": {{"effort": "max", "timeout": 115200, "key": "hush-hush"}}}}' >"$HOME/.invented/$name"
done
exec python3 -c {program}
"""
TURN = """
import pathlib, shutil
home = pathlib.Path.home() / ".invented"
prompt = start()
{body}
end(prompt)
"""
REPLACE = "(home / 'settings.json').write_text({!r})"


def outcome_of(directory: Path, body: str, *, host: HostTable = HOST) -> AgentOutcome:
    program = shlex.quote(PRELUDE + TURN.format(body=body))
    agent = CatalogAgent(
        Manifest(
            contract_version="1.0",
            name="invented",
            install_cmd="command -v python3",
            launch_cmd=LAUNCH.format(program=program),
            api_protocol="openai-completions",
            supports_acp_set_model=False,
            host=host,
        )
    )

    async def run() -> AgentOutcome:
        async with rig(directory) as made:
            return await made.run(agent, timeout_sec=20.0)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("", id="untouched"),
        pytest.param(
            REPLACE.format(
                '{"llm": {"key": "hush-hush", "timeout": 115200, "effort": "max", "top_p": 1}, "tools": []}'
            ),
            id="saved-with-what-it-added",
        ),
    ],
)
def test_settings_that_an_agent_kept(tmp_path: Path, body: str) -> None:
    assert outcome_of(tmp_path, body).settings == {"file": SETTINGS, "kept": True, "why": None}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(
            REPLACE.format('{"llm": {"effort": "high", "timeout": 115200, "key": "hush-hush"}}'),
            "the agent ran with other values of llm.effort",
            id="lowered",
        ),
        pytest.param(
            REPLACE.format('{"llm": {"effort": "max", "timeout": "115200", "key": ""}}'),
            "the agent ran with other values of llm.timeout, llm.key",
            id="another-type",
        ),
        pytest.param(REPLACE.format("{}"), "the agent ran with other values of llm", id="emptied"),
        pytest.param(REPLACE.format("[]"), "the agent ran with other values of everything", id="another-thing"),
        pytest.param(REPLACE.format("llm: max"), "the file is no JSON any more", id="no-json"),
        pytest.param(
            "(home / 'settings.json').rename(home / 'settings.json.corrupted')", "the file is gone", id="put-aside"
        ),
        pytest.param(
            "shutil.rmtree(home)",
            "it and its copy are gone, or launch_cmd ended before it wrote them",
            id="nothing-left",
        ),
        pytest.param(
            "(home / 'settings.json.launched').unlink()",
            "the copy that launch_cmd made of it is gone",
            id="copy-gone",
        ),
        pytest.param(
            "print('Your settings are broken!', flush=True)", "the agent printed 'settings are broken'", id="said-so"
        ),
    ],
)
def test_settings_that_an_agent_went_on_without(tmp_path: Path, body: str, why: str) -> None:
    outcome = outcome_of(tmp_path, body)
    assert outcome.stop == "finished"
    assert outcome.settings == {"file": SETTINGS, "kept": False, "why": why}
    assert "hush-hush" not in str(outcome)


def test_of_an_agent_without_settings_nothing_is_said(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, "", host=HostTable()).settings is None


# An agent that answers with what session/new told it of.
ECHO = """
about = {{"protocolVersion": 1, "agentCapabilities": {{"mcpCapabilities": {said}}}}}
send(id=receive("initialize")["id"], result=about)
asked = receive("session/new")
send(id=asked["id"], result={{"sessionId": "s"}})
prompt = receive("session/prompt")["id"]
update("agent_message_chunk", content={{"type": "text", "text": json.dumps(asked["params"]["mcpServers"])}})
end(prompt)
"""
STDIO = McpServer("clock", "stdio", command="clock", args=("--utc",))
HTTP = McpServer("ledger", "streamable-http", url="http://localhost:9000/mcp", headers={"X-Book": "7"})
SSE = McpServer("news", "sse", url="http://127.0.0.1:9001/sse")
TOLD = [
    {"name": "clock", "command": "clock", "args": ["--utc"], "env": []},
    {
        "type": "http",
        "name": "ledger",
        "url": "http://localhost:9000/mcp",
        "headers": [{"name": "X-Book", "value": "7"}],
    },
    {"type": "sse", "name": "news", "url": "http://127.0.0.1:9001/sse", "headers": []},
]
SERVERS = (STDIO, HTTP, SSE)


def tell(directory: Path, servers: tuple[McpServer, ...], said: dict[str, bool]) -> tuple[AgentOutcome, str]:
    """Return how a turn ended whose task has servers, and what the agent said of them."""

    async def run() -> tuple[AgentOutcome, str]:
        async with rig(directory) as made:
            task = made.make_context().task
            task = replace(task, environment=replace(task.environment, mcp_servers=servers))
            outcome = await made.play(ECHO.format(said=said), task=task)
            return outcome, "".join(event["text"] for event in made.events("agent_message"))

    return asyncio.run(run())


def test_an_agent_is_told_of_a_tasks_tool_servers(tmp_path: Path) -> None:
    outcome, text = tell(tmp_path, SERVERS, {"http": True, "sse": True})
    assert outcome.stop == "finished"
    assert json.loads(text) == TOLD


@pytest.mark.parametrize(("missing", "name"), [("http", "ledger"), ("sse", "news")])
def test_a_transport_that_an_agent_does_not_take_ends_its_start(tmp_path: Path, missing: str, name: str) -> None:
    outcome, _ = tell(tmp_path, SERVERS, {kind: kind != missing for kind in ("http", "sse")})
    assert outcome.stop == "crashed"
    assert f"and the task has one: {name}" in str(outcome.error)


@pytest.mark.parametrize("by_launch", [True, False], ids=["by-its-launch", "by-the-protocol"])
def test_an_agent_is_told_of_them_once(tmp_path: Path, *, by_launch: bool) -> None:
    said = (
        'update("agent_message_chunk", content={"type": "text", "text": os.environ.get("BENCHFLOW_MCP_SERVERS", "")})'
    )
    program = PRELUDE + ECHO.format(said={"http": True, "sse": True}).replace("end(prompt)", f"{said}\nend(prompt)")
    agent = CatalogAgent(
        Manifest(
            contract_version="1.0",
            name="invented",
            install_cmd="command -v python3",
            launch_cmd=f"exec python3 -c {shlex.quote(program)}",
            supports_acp_set_model=False,
            host=HostTable(mcp_environment=by_launch),
        )
    )

    async def run() -> str:
        async with rig(tmp_path) as made:
            task = made.make_context().task
            task = replace(task, environment=replace(task.environment, mcp_servers=SERVERS))
            assert (await made.run(agent, task=task)).stop == "finished"
            return "".join(event["text"] for event in made.events("agent_message"))

    heard = asyncio.run(run())
    assert heard == ("[]" + environment(SERVERS)["BENCHFLOW_MCP_SERVERS"] if by_launch else json.dumps(TOLD))


def test_stdio_is_taken_by_every_agent(tmp_path: Path) -> None:
    outcome, text = tell(tmp_path, (STDIO,), {})
    assert (outcome.stop, json.loads(text)) == ("finished", TOLD[:1])


@pytest.mark.parametrize(
    ("agent", "servers", "reason"),
    [
        pytest.param("openhands", SERVERS, None, id="within-the-sandbox"),
        pytest.param(
            "openhands",
            (STDIO, replace(SSE, url="http://news:9001/sse")),
            "needs the MCP server news at http://news:9001/sse: an agent reaches its model and its own sandbox",
            id="beside-the-sandbox",
        ),
        pytest.param(
            "baseline", (STDIO,), "needs MCP servers (clock), of which the agent baseline makes no use", id="no-use"
        ),
        pytest.param("baseline", (), None, id="none"),
    ],
)
def test_a_task_is_skipped_whose_tool_servers_no_agent_reaches(
    tmp_path: Path, agent: str, servers: tuple[McpServer, ...], reason: str | None
) -> None:
    task = load_task(make_task(tmp_path / "task"))
    task = replace(task, environment=replace(task.environment, mcp_servers=servers))
    assert registry.load("agents", agent, "agent")(agent).unsupported(task) == reason
