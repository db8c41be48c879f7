"""What an agent must offer, and what it is given for one prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from pytest_benchflow.contracts.sandbox import Backend, Mount, Sandbox
    from pytest_benchflow.records.journal import Journal
    from pytest_benchflow.tasks.task import Task


def _as_it_is(value: Any) -> Any:
    return value


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """How the client side of the agent protocol behaves during one prompt; agents without a client ignore it."""

    allow: bool = True  # whether requests for permission are granted
    cancel: Callable[[], Awaitable[object]] | None = None  # the turn is cancelled when this returns
    cancel_grace_sec: float = 10.0  # how long the agent may take to end a cancelled turn


@dataclass(frozen=True, slots=True)
class AgentContext:
    """All an agent needs for one prompt (one step of a task)."""

    task: Task
    instruction: str
    sandbox: Sandbox
    events: Journal  # acp_trajectory.jsonl: `events.append({"type": …})`
    log_dir: Path  # agent/ in the rollout directory
    timeout_sec: float
    idle_timeout_sec: float | None
    llm_timeout_sec: float  # how long the agent should let its model take: never less than its own time
    model: str  # as the agent should name it, without a provider prefix
    base_url: str | None  # of the gateway as seen from inside, without a path
    token: str | None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | int | None = None
    reasoning_effort: str | None = None
    skills_dir: str | None = None  # inside the sandbox; None: no skills in this rollout
    step: str | None = None
    redact: Callable[[Any], Any] = _as_it_is  # text or JSON value -> the same without secrets; for logs
    # Whether a model call is open, or has come since the last look: an agent that waits for its model is not idle.
    busy: Callable[[], bool] = _never
    settled: Callable[[], bool] = _never  # whether its model's last answer leaves it nothing to do but end its turn
    client: ClientPolicy = ClientPolicy()


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """How an agent's run ended. `stop` is finished, timeout, idle, crashed, cancelled or refused."""

    stop: str
    stop_reason: str | None = None  # the protocol's own word, such as end_turn
    error: str | None = None
    error_category: str | None = None
    n_tool_calls: int = 0
    reported_usage: Mapping[str, Any] | None = None
    idle_before_timeout_s: float | None = None
    in_flight_at_timeout: str | None = None
    settings: Mapping[str, Any] | None = None  # {file, kept, why}: whether the agent kept those it was launched with


class Agent(Protocol):
    """Something that works on a task; `agents/NAME.py` offers `agent(name) -> Agent`."""

    name: str
    version: str | None
    uses_model: bool
    api_dialect: str | None  # chat, responses, messages, generateContent: what it speaks to its model

    def unsupported(self, task: Task) -> str | None:
        """Return None when the agent can work on the task, else the reason to skip it."""

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:
        """Make the agent available once per version and image; return what to mount. Raises: AgentError."""

    async def run(self, context: AgentContext) -> AgentOutcome:
        """Work on one instruction and return; never raises for what an agent does, AgentError when it cannot start."""
