"""Lay out the matrix: which rollouts a task gets under the session's settings."""

from __future__ import annotations

from dataclasses import fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import UsageError
from pytest_benchflow.pricing import read_prices
from pytest_benchflow.rollout.cell import resolve_agent
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.settings import Include, host_variable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_benchflow.rollout.config import SkillMode
    from pytest_benchflow.settings import Exclude, Settings
    from pytest_benchflow.tasks.task import Task

# What an included part of the matrix may set otherwise for its own cells.
OWN_SETTINGS = ("reasoning_effort", "agent_timeout", "idle_timeout", "model_timeout")


def plan(settings: Settings, task: Task, *, distinguish: bool = False) -> list[RolloutConfig]:
    """Return one configuration per agent, model, skill mode and trial, in that order, then what is included beside.

    A cell that is asked for twice in the same way is one. Raises: UsageError, also for two ways.
    """
    common: dict[str, Any] = {
        "task": task,
        "sandbox": settings.sandbox,
        "jobs_dir": settings.jobs_dir,
        "job_name": settings.job_name,
        "keep_sandbox": settings.keep_sandbox,
        "agent_network": settings.agent_network,
        "agent_env": agent_environment(settings),
        "replay_strict": settings.replay_strict,
        "record": settings.record,
        "canary": is_named(task, settings.canary),
        "prices": read_prices(settings.price, settings.prices),
        "distinguish": distinguish,
    }
    found: dict[str, RolloutConfig] = {}
    for part in parts(settings):
        if part.task and not _fits(names_of(task), part.task):
            continue
        for agent, model in _pairs(part, settings):
            for skills in skill_modes(part.skills or settings.skills, task):
                for trial in range(1, (part.trials or settings.trials) + 1):
                    own = {name: _own(part, settings, name) for name in OWN_SETTINGS}
                    arm = (agent, model, skills)
                    cell = RolloutConfig(agent=agent, model=model, skills=skills, trial=trial, arm=arm, **common, **own)
                    if any(_leaves_out(rule, cell, task) for rule in settings.exclude):
                        continue
                    known = found.setdefault(cell.cell_id, cell)
                    if known != cell:
                        raise UsageError(_asked_twice(settings, task, known, cell))
    return list(found.values())


def parts(settings: Settings) -> tuple[Include, ...]:
    """Return the product of agents and models, and what is included beside it, as parts of one kind."""
    return (Include(agent=settings.agents, model=settings.models), *settings.include)


def pairs(settings: Settings) -> list[tuple[str, str]]:
    """Return each agent with each model that any part of the matrix runs it with."""
    return list(dict.fromkeys(pair for part in parts(settings) for pair in _pairs(part, settings)))


def names_of(task: Task) -> tuple[str, ...]:
    """Return what a user may call a task: its name, the last part of it, and its directory's name."""
    return tuple(dict.fromkeys((task.name, task.name.rpartition("/")[2], task.slug)))


def is_named(task: Task, names: Iterable[str]) -> bool:
    """Tell whether a task is one of those that are named."""
    return not set(names_of(task)).isdisjoint(names)


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


def _pairs(part: Include, settings: Settings) -> list[tuple[str, str]]:
    """Return a part's agents with their models; an agent that calls no model is paired with one named none."""
    models = part.model or settings.models
    return [
        (agent, model) for agent in part.agent for model in (models if resolve_agent(agent).uses_model else ("none",))
    ]


def _own(part: Include, settings: Settings, name: str) -> Any:
    value = getattr(part, name)
    return getattr(settings, name) if value is None else value


def _leaves_out(rule: Exclude, cell: RolloutConfig, task: Task) -> bool:
    """Tell whether a cell fits every pattern of a rule."""
    has = {"task": names_of(task), "agent": (cell.agent_name,), "model": (cell.model,), "skills": (cell.skills,)}
    return all(not getattr(rule, name) or _fits(values, getattr(rule, name)) for name, values in has.items()) and (
        not rule.trial or cell.trial in rule.trial
    )


def _fits(values: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(value, pattern) for value in values for pattern in patterns)


def _asked_twice(settings: Settings, task: Task, first: RolloutConfig, second: RolloutConfig) -> str:
    different = [
        f"{field.name} {getattr(first, field.name)!r} and {getattr(second, field.name)!r}"
        for field in fields(RolloutConfig)
        if getattr(first, field.name) != getattr(second, field.name)
    ]
    return (
        f"{settings.matrix}: {second.cell_id} of the task {task.name} is asked for twice, with {', '.join(different)}; "
        "rollouts are told apart by task, agent, model, skill mode and trial, so leave one of them out, or give it a "
        "job of its own"
    )
