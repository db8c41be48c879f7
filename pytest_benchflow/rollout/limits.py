"""Derive every time limit from one table, so that none is shorter than what it contains."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.tasks.task import Step, Task

DEFAULT_AGENT_SEC = 1800.0
_SETUP_SEC = 600.0
# What no limit bounds, such as copies and the time between two phases, takes far less.
_SPARE_SEC = 900.0
_SPARE_FACTOR = 1.1


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds for each part of one step; what lies around another part is never shorter than it."""

    agent: float
    llm_client: float  # what the agent is told to wait for a model: never less than its own limit
    upstream: float | None  # for one answer, from the gateway; None: the agent's limit ends it
    litellm: float | None  # the same, where LiteLLM asks
    idle: float | None
    setup: float
    verifier: float

    def as_json(self) -> dict[str, Any]:
        """Return the limits as config.json holds them."""
        return asdict(self)


def time_limits(config: RolloutConfig, task: Task, step: Step) -> TimeLimits:
    """Return the limits of a step: the option's, else the task's, else the default."""
    agent = config.agent_timeout or step.agent.timeout_sec or DEFAULT_AGENT_SEC
    return TimeLimits(
        agent=agent,
        llm_client=max(agent, config.model_timeout or 0),
        upstream=config.model_timeout,
        litellm=config.model_timeout,
        idle=config.idle_timeout,
        setup=max(_SETUP_SEC, task.environment.build_timeout_sec),
        verifier=step.verifier.timeout_sec,
    )


def lifetime(config: RolloutConfig, task: Task) -> float:
    """Return for how many seconds a rollout may need its sandbox, with room to spare."""
    total = 0.0
    for step in task.steps:
        limits = time_limits(config, task, step)
        check = step.healthcheck or task.environment.healthcheck
        total += limits.setup + limits.agent + limits.verifier
        if check:
            turns = check.retries + 1
            total += check.start_period_sec + turns * (check.timeout_sec + check.interval_sec)
    return total * _SPARE_FACTOR + _SPARE_SEC
