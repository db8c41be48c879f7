"""An agent made up for a test: a program in one text that speaks ACP and calls no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.agents._acp import drive

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import AgentContext, AgentOutcome, Backend, Mount
    from pytest_benchflow.tasks.task import Task

# Speaks just enough ACP to be prompted, then runs BODY with `say(update)` and `answer()` at hand.
PROGRAM = """\
import json, sys, time

def send(message):
    sys.stdout.buffer.write(json.dumps({{"jsonrpc": "2.0", **message}}).encode() + b"\\n")
    sys.stdout.buffer.flush()

for line in sys.stdin.buffer:
    request = json.loads(line)
    if request.get("method") == "initialize":
        send({{"id": request["id"], "result": {{"protocolVersion": 1, "agentCapabilities": {{}}}}}})
    elif request.get("method") == "session/new":
        send({{"id": request["id"], "result": {{"sessionId": "s"}}}})
    elif request.get("method") == "session/prompt":
        def say(text):
            update = {{"sessionUpdate": "agent_message_chunk", "content": {{"type": "text", "text": text}}}}
            send({{"method": "session/update", "params": {{"sessionId": "s", "update": update}}}})

        def answer():
            send({{"id": request["id"], "result": {{"stopReason": "end_turn"}}}})

{body}
"""


class ProgramAgent:
    """An ACP agent whose whole program is one text; it calls no model."""

    name = "program"
    version: str | None = "1"
    uses_model = False
    api_dialect: str | None = None

    def __init__(self, body: str) -> None:
        self._program = PROGRAM.format(body="\n".join("        " + line for line in body.splitlines()))

    def unsupported(self, task: Task) -> str | None:  # noqa: ARG002
        return None

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:  # noqa: ARG002
        return ()

    def environment(self, context: AgentContext) -> dict[str, str]:  # noqa: ARG002
        return {}

    async def run(self, context: AgentContext) -> AgentOutcome:
        process = await context.sandbox.spawn(
            ["python3", "-c", self._program], cwd=context.sandbox.workdir, env=self.environment(context)
        )
        return await drive(process, context, start_sec=10)
