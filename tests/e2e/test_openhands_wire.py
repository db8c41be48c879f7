"""What the real OpenHands puts on the wire for each reasoning effort, by the names of models, and for Azure.

One start of the agent serves all: its settings are written anew, by its own launch_cmd, before each session.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_benchflow.agents._catalog import agent
from pytest_benchflow.agents._mcp import environment as mcp_environment
from pytest_benchflow.agents._place import agent_dir
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.tasks.task import McpServer
from tests.contracts.agentrig import rig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.contracts import ExecResult, ModelRequest, Process
    from tests.contracts.agentrig import Rig

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", None)
# Beside its settings the launch only starts a CLI: here one that ends at once.
STUB = """\
mkdir -p /tmp/stub/venv/bin
ln -s "$BENCHFLOW_AGENT_DIR/venv/bin/python" /tmp/stub/venv/bin/python
printf '#!/bin/sh\\n' >/tmp/stub/venv/bin/openhands
chmod +x /tmp/stub/venv/bin/openhands
"""
ANSWER_SEC = 120
SDK = "1.21.0"
CHECK = Path(__file__).parents[2] / ".ci" / "settings.py"


class Client:
    """A client that takes its agent through many sessions."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._last = 0
        self._read = b""

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its result. Raises: AssertionError on an error."""
        self._last += 1
        message = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        await self._process.write(json.dumps(message).encode() + b"\n")
        while True:
            line = await asyncio.wait_for(self._line(), ANSWER_SEC)
            if line.startswith(b"{") and (answer := json.loads(line)).get("id") == self._last:
                assert "error" not in answer, answer
                return dict(answer["result"])

    async def _line(self) -> bytes:
        while b"\n" not in self._read:
            read = await self._process.read()
            assert read, "the agent is gone"
            self._read += read
        line, _, self._read = self._read.partition(b"\n")
        return line


class Speaker:
    """The agent, ready for session after session."""

    def __init__(self, made: Rig, client: Client, env: Mapping[str, str]) -> None:
        self._made = made
        self._client = client
        self._env = {**env, "BENCHFLOW_AGENT_DIR": "/tmp/stub"}

    async def session(self, **env: str) -> ModelRequest:
        """Write the settings of an environment, prompt once, and return the one request that the model got."""
        asked = self._made.upstream.requests
        before = len(asked)
        launched = await self._made.sandbox.exec(
            ["sh", "-c", agent("openhands").manifest.launch_cmd], env=self._env | env
        )
        assert launched.exit_code == 0, launched.stderr
        made = await self._client.ask("session/new", cwd=self._made.sandbox.workdir, mcpServers=[])
        prompt = [{"type": "text", "text": "Go."}]
        await self._client.ask("session/prompt", sessionId=made["sessionId"], prompt=prompt)
        assert len(asked) == before + 1
        return asked[-1]


async def drain(process: Process) -> None:
    """Read an agent's stderr to its end."""
    while await process.read_stderr():
        pass


def efforts_of(request: ModelRequest) -> dict[str, Any]:
    """Return all of a body that is about efforts."""
    body = json.loads(request.body)
    return {key: value for key, value in body.items() if "effort" in key or "reasoning" in key}


TYPED = {effort: {"reasoning_effort": effort} for effort in ("none", "low", "medium", "high", "xhigh")}
NESTED = {effort: {"reasoning": {"effort": effort}} for effort in TYPED}
EXTRA = {"minimal": {"reasoning_effort": "minimal"}, "max": {"reasoning": {"effort": "max"}}}
ALL_ON_CHAT = {**TYPED, **EXTRA}
ALL_ON_RESPONSES = {**NESTED, **EXTRA}
# A tool server over HTTP in a few lines; it answers whoever sends the header that the task gives it.
LEDGER = """
import http.server, json

TOOL = {"name": "look_up", "description": "Look a word up.", "inputSchema": {"type": "object", "properties": {}}}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        told = {"tools": [TOOL]}
        if asked["method"] == "initialize":
            told = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            told["serverInfo"] = {"name": "ledger", "version": "1"}
        body = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "result": told}).encode()
        known = self.headers["X-Book"] == "7"
        self.send_response((200 if "id" in asked else 202) if known else 403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if "id" in asked else 0))
        self.end_headers()
        self.wfile.write(body if "id" in asked else b"")

    def do_GET(self):
        self.send_response(405)
        self.end_headers()

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 9009), Handler)
print("ready", flush=True)
server.serve_forever()
"""
SERVERS = mcp_environment([McpServer("ledger", "http", url="http://127.0.0.1:9009/mcp", headers={"X-Book": "7"})])
AZURE = "/v1/openai/deployments/{}/chat/completions?api-version=2024-12-01-preview"
AZURE_RESPONSES = "/v1/openai/responses?api-version=2024-12-01-preview"


def without(sent: dict[str, Any], *lost: str) -> dict[str, Any]:
    """Return what is sent where LiteLLM knows, or believes, that the model takes no such typed effort."""
    return {effort: {} if effort in lost else body for effort, body in sent.items()}


# By the model's name: the path, and what of each effort is sent there.
WIRES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai/o3": ("/v1/chat/completions", ALL_ON_CHAT),
    "openai/scripted-1": ("/v1/chat/completions", ALL_ON_CHAT),
    "openai/gpt-5-mini": ("/v1/responses", without(ALL_ON_RESPONSES, "none", "xhigh")),
    "openai/gpt-5-invented": ("/v1/responses", ALL_ON_RESPONSES),
    "azure/o3": (AZURE.format("o3"), ALL_ON_CHAT),
    "azure/deployed": (AZURE.format("deployed"), without(ALL_ON_CHAT, *TYPED)),
    "azure/gpt-5.1": (AZURE_RESPONSES, without(ALL_ON_RESPONSES, "xhigh")),
}
OTHER_VERSION = {"LLM_MODEL": "azure/o3", "LLM_API_VERSION": "2025-04-01-preview"}


class Sent(NamedTuple):
    """What one start of the agent showed."""

    requests: dict[tuple[str, str | None], ModelRequest]  # by model and effort; (azure, None): another API version
    schema: ExecResult  # of the check that its own SDK keeps the settings


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    """Take the agent through a session for each model and effort."""
    finish = ScriptTurn(calls=(Call("finish", {"message": "Done.", "summary": "Say so"}),), repeat=True)
    found: dict[tuple[str, str | None], ModelRequest] = {}
    schema: list[ExecResult] = []

    async def work() -> None:
        openhands = agent("openhands")
        async with rig(tmp_path_factory.mktemp("wire"), agent=openhands, turns=[finish]) as made:
            env = openhands.environment(made.make_context())
            schema.append(await its_own_schema(made))
            stubbed = await made.sandbox.exec(["sh", "-c", STUB], env=env)
            assert stubbed.exit_code == 0, stubbed.stderr
            process = await made.sandbox.spawn(["sh", "-c", openhands.manifest.launch_cmd], env=env)
            try:
                client = Client(process)
                # It says so much there that it would be held up before long.
                drained = asyncio.create_task(drain(process))
                await client.ask("initialize", protocolVersion=1, clientCapabilities={})
                speaker = Speaker(made, client, env)
                for model in WIRES:
                    for effort in EFFORTS:
                        asked = {"LLM_REASONING_EFFORT": effort} if effort else {}
                        found[model, effort] = await speaker.session(LLM_MODEL=model, **asked)
                served = await made.sandbox.spawn(["python3", "-c", LEDGER])
                assert await served.read() == b"ready\n"
                found["mcp", None] = await speaker.session(**SERVERS)
                found["azure", None] = await speaker.session(**OTHER_VERSION)
            finally:
                await process.kill()
            await drained

    asyncio.run(work())
    return Sent(found, schema[0])


async def its_own_schema(made: Rig) -> ExecResult:
    """Run the check that CI makes with a newer SDK, with the one that is installed."""
    manifest = agent("openhands").manifest
    await made.sandbox.upload(manifest.file, "/tmp/openhands.toml")
    python = f"{agent_dir('openhands')}/venv/bin/python"
    given = [python, "-", "/tmp/openhands.toml", SDK]
    return await made.sandbox.exec(given, stdin=CHECK.read_bytes(), timeout=ANSWER_SEC)


@pytest.mark.parametrize("model", WIRES)
def test_each_effort_is_sent_as_written_down_here(sent: Sent, model: str) -> None:
    path, expected = WIRES[model]
    assert {sent.requests[model, effort].path for effort in EFFORTS} == {path}
    assert {effort: efforts_of(sent.requests[model, effort]) for effort in expected} == expected
    # Where none is asked for, the SDK asks for one of its own, by the same way.
    assert efforts_of(sent.requests[model, None]) == expected["high"]


@pytest.mark.parametrize("model", WIRES)
def test_no_request_asks_for_another_effort_than_the_one_asked_for(sent: Sent, model: str) -> None:
    """What the review reads is the effort asked for, or none where it was lost on the way; max never is."""
    for effort in EFFORTS[:-1]:
        request = sent.requests[model, effort]
        dialect = dialect_for(request.path)
        assert dialect is not None
        read = dialect.effort(json.loads(request.body))
        assert read == (effort if WIRES[model][1][effort] else None), effort
        assert effort != "max" or read == "max"


def test_the_version_of_azures_api_is_the_one_given(sent: Sent) -> None:
    assert sent.requests["azure", None].path.endswith("?api-version=2025-04-01-preview")


def test_a_tool_server_behind_a_url_is_one_of_its_tools(sent: Sent) -> None:
    offered = {tool["function"]["name"] for tool in json.loads(sent.requests["mcp", None].body)["tools"]}
    assert "look_up" in offered


def test_its_own_sdk_reads_and_writes_the_settings_without_a_change(sent: Sent) -> None:
    assert sent.schema.exit_code == 0, sent.schema.stderr
    assert f"openhands-sdk {SDK}: 7 settings come back as they were written" in sent.schema.stdout
