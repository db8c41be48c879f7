"""Do nothing: an agent whose score shows what a task gives away for free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.contracts import AgentOutcome

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import AgentContext, Backend, Mount
    from pytest_benchflow.tasks.task import Task


class Nop:
    """An agent that ends its turn at once."""

    name = "nop"
    version: str | None = None
    uses_model = False
    api_dialect: str | None = None

    def unsupported(self, task: Task) -> str | None:
        """Run any task."""
        del task
        return None

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:
        """Install nothing."""
        del backend, task, log_dir
        return ()

    async def run(self, context: AgentContext) -> AgentOutcome:
        """Record the prompt and an empty turn."""
        context.events.append({"type": "user_message", "text": context.instruction})
        context.events.append({"type": "stop", "outcome": "finished", "stop_reason": "end_turn", "error": None})
        return AgentOutcome(stop="finished", stop_reason="end_turn")


def agent(name: str) -> Nop:
    """Return the agent."""
    del name
    return Nop()
