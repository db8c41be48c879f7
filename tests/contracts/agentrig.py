"""Run agents as a rollout does: in the real local sandbox, against a scripted model behind the real gateway."""

from __future__ import annotations

import textwrap
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pytest_benchflow import registry
from pytest_benchflow.agents._acp import drive
from pytest_benchflow.contracts import AgentContext, SandboxSpec
from pytest_benchflow.proxy.gateway import Gateway
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.records.journal import Journal, read_records
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.tasks.load import load_task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from pytest_benchflow.contracts import Agent, AgentOutcome, Backend, Endpoint, Sandbox
    from pytest_benchflow.proxy.script import ScriptTurn

# A number nobody else sleeps for: processes that survive an agent are found by it.
SLEEP = "31536000"

# What the invented agents below have in common: JSON-RPC over stdio, from the standard library.
PRELUDE = f"""\
import json, os, subprocess, sys, time

def send(**message):
    sys.stdout.write(json.dumps({{"jsonrpc": "2.0", **message}}) + "\\n")
    sys.stdout.flush()

def raw(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

def receive(method=None):
    for line in sys.stdin:
        message = json.loads(line)
        if method is None or message.get("method") == method:
            return message
    sys.exit(9)

def update(what, **fields):
    send(method="session/update", params={{"sessionId": "s", "update": {{"sessionUpdate": what, **fields}}}})

def call(number, status="completed"):
    update("tool_call", toolCallId=f"call_{{number}}", title=f"step {{number}}", kind="execute", status=status)

def start():
    send(id=receive("initialize")["id"], result={{"protocolVersion": 1, "agentCapabilities": {{}}}})
    send(id=receive("session/new")["id"], result={{"sessionId": "s"}})
    return receive("session/prompt")["id"]

def end(prompt, reason="end_turn"):
    send(id=prompt, result={{"stopReason": reason}})
    time.sleep({SLEEP})

def leave_a_daemon():
    subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM HUP; sleep {SLEEP}"])

"""

TASK_TOML = """\
schema_version = "1.3"
[task]
name = "invented/answer"
[environment]
network_mode = "no-network"
"""


def make_task(directory: Path, solution: str = "#!/bin/sh\necho 42 > answer\n") -> Path:
    """Make a task whose agent has to write 42 into a file."""
    for name, text in {
        "task.toml": TASK_TOML,
        "instruction.md": "Write 42 to /app/answer.\n",
        "solution/solve.sh": solution,
        "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


@dataclass
class Rig:
    """A sandbox in its agent phase, with a gateway; `run` and `play` give one prompt to one agent."""

    sandbox: Sandbox
    endpoint: Endpoint
    upstream: ScriptedUpstream
    rundir: RunDir
    context: dict[str, Any]

    async def run(self, agent: Agent, **limits: Any) -> AgentOutcome:
        return await agent.run(self.make_context(**limits))

    async def play(
        self, program: str, *, start_sec: float = 30.0, model_id: str | None = None, **limits: Any
    ) -> AgentOutcome:
        """Drive an invented agent: a Python program after the prelude."""
        process = await self.sandbox.spawn(["python3", "-c", PRELUDE + textwrap.dedent(program)])
        return await drive(process, self.make_context(**limits), start_sec=start_sec, model_id=model_id)

    def make_context(self, **limits: Any) -> AgentContext:
        asked = {**self.context, **limits}
        return AgentContext(**{"llm_timeout_sec": asked["timeout_sec"], **asked})

    def events(self, *types: str) -> list[dict[str, Any]]:
        found = list(read_records(self.rundir.acp))
        return [event for event in found if event["type"] in types] if types else found

    def log(self, name: str) -> str:
        return (self.rundir.agent_logs / name).read_text("utf-8")

    async def survivors(self) -> str:
        """Return the command lines of processes that sleep for ever inside, and of agents themselves."""
        look = 'for file in /proc/[0-9]*/cmdline; do tr "\\0" " " < "$file" 2>/dev/null; echo; done'
        listing = (await self.sandbox.exec(["sh", "-c", look])).stdout
        return "\n".join(line for line in listing.splitlines() if f"sleep {SLEEP}" in line or "jsonrpc" in line)


@asynccontextmanager
async def rig(
    directory: Path, *, task: Path | None = None, agent: Agent | None = None, turns: Iterable[ScriptTurn] = ()
) -> AsyncIterator[Rig]:
    """Bring everything up for one agent, and take it down again."""
    loaded = load_task(task or make_task(directory / "task"))
    backend = cast("Backend", registry.load("sandboxes", "local", "backend"))
    rundir = RunDir(directory / "run").create()
    mounts = await agent.install(backend, loaded, rundir.agent_logs) if agent else ()
    scratch = directory / "scratch"
    scratch.mkdir()
    redactor, upstream, events = Redactor(), ScriptedUpstream(turns), Journal(rundir.acp)
    sandbox = await backend.create(SandboxSpec(id="agents", task=loaded, scratch=scratch, mounts=mounts))
    gateway = Gateway()
    endpoint = await gateway.open(rundir=rundir, upstream=upstream, redactor=redactor, model="scripted-1", drain=False)
    try:
        await sandbox.enter("agent", "proxy")
        context = {
            "task": loaded,
            "instruction": loaded.steps[0].instruction,
            "sandbox": sandbox,
            "events": events,
            "log_dir": rundir.agent_logs,
            "timeout_sec": 60.0,
            "idle_timeout_sec": None,
            "model": "scripted-1",
            "base_url": await sandbox.reach(endpoint),
            "token": endpoint.token,
            "redact": redactor.value,
            "busy": lambda: bool(endpoint.open_requests),
        }
        yield Rig(sandbox, endpoint, upstream, rundir, context)
    finally:
        await gateway.close()
        await sandbox.stop()
        events.close()
