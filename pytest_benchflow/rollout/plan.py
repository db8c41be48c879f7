"""Lay out the matrix: which rollouts a task gets under the session's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.errors import UsageError
from pytest_benchflow.pricing import read_prices
from pytest_benchflow.rollout.cell import resolve_agent
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from pytest_benchflow.rollout.config import SkillMode
    from pytest_benchflow.settings import Settings
    from pytest_benchflow.tasks.task import Task


def plan(settings: Settings, task: Task, *, distinguish: bool = False) -> list[RolloutConfig]:
    """Return one configuration per agent, model, skill mode and trial, in that order. Raises: UsageError."""
    agent_env, prices = agent_environment(settings), read_prices(settings.price, settings.prices)
    return [
        RolloutConfig(
            task=task,
            agent=agent,
            model=model,
            sandbox=settings.sandbox,
            skills=skills,
            trial=trial,
            jobs_dir=settings.jobs_dir,
            job_name=settings.job_name,
            agent_timeout=settings.agent_timeout,
            idle_timeout=settings.idle_timeout,
            model_timeout=settings.model_timeout,
            reasoning_effort=settings.reasoning_effort,
            keep_sandbox=settings.keep_sandbox,
            agent_network=settings.agent_network,
            agent_env=agent_env,
            replay_strict=settings.replay_strict,
            record=settings.record,
            prices=prices,
            distinguish=distinguish,
        )
        for agent in settings.agents
        for model in models_for(agent, settings)
        for skills in skill_modes(settings.skills, task)
        for trial in range(1, settings.trials + 1)
    ]


def models_for(agent: str, settings: Settings) -> tuple[str, ...]:
    """Return the models an agent is run with; one that calls no model gets a single cell named none."""
    return settings.models if resolve_agent(agent).uses_model else ("none",)


def skill_modes(asked: str, task: Task) -> tuple[SkillMode, ...]:
    """Return the skill modes a task is run in; `both` makes two cells only where the task ships skills."""
    if asked == "both":
        return ("with", "without") if task.skills else ("default",)
    if asked == "with":
        return ("with",)
    return ("without",) if asked == "without" else ("default",)


def agent_environment(settings: Settings) -> dict[str, str]:
    """Return the variables for the agent; a bare KEY takes the host's value. Raises: UsageError when it has none."""
    variables = {}
    for item in settings.agent_env:
        key, given, value = item.partition("=")
        if not given:
            host_value = host_variable(key)
            if host_value is None:
                raise UsageError(
                    f"--benchflow-agent-env={key} takes the host's value, and it has none; set it or pass {key}=VALUE"
                )
            value = host_value
        variables[key] = value
    return variables
