"""Resolve what a rollout was asked to be into the parts that do it, refusing early what cannot run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pytest_benchflow import registry
from pytest_benchflow.errors import UnsupportedError
from pytest_benchflow.rollout.skills import skill_mode
from pytest_benchflow.settings import host_variable
from pytest_benchflow.tasks.env import expand_env
from pytest_benchflow.tasks.load import load_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.contracts import Agent, Backend, Network
    from pytest_benchflow.proxy.routes import Route
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.tasks.task import Step, Task

SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH)S?(_|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cell:
    """One rollout with its parts resolved; nothing has been started yet."""

    config: RolloutConfig
    task: Task
    backend: Backend
    agent: Agent
    route: Route | None  # None: this agent calls no model
    skill_mode: str
    environment: Mapping[str, str]  # the task's own variables, expanded from the host

    @property
    def model(self) -> str:
        """Return the model's name as the user gave it, "none" where no model is called."""
        return self.config.model if self.route else "none"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the values that must never be written anywhere."""
        named = {**self.config.agent_env, **self.environment, **expand_env(self.task.solution_env, host_variable)}
        for step in self.task.steps:
            named.update(expand_env(step.verifier.env, host_variable))
        # A value written literally in a task file is public; one taken from the host is not.
        hidden = [value for name, value in named.items() if SECRET_NAME.search(name) and len(value) >= 8]
        return (*hidden, *(self.route.secrets if self.route else ()))


def resolve(config: RolloutConfig) -> Cell:
    """Resolve names and check that this cell can run here.

    Raises: UnsupportedError (the reason of a skip), UsageError, TaskError, ProviderError (no key).
    """
    task = config.task if not isinstance(config.task, str | Path) else load_task(Path(config.task))
    backend = resolve_backend(config.sandbox)
    mode = skill_mode(config.skills, task)
    for reason in (backend.available(), backend.unsupported(task), *map(_unsupported_step, task.steps)):
        if reason:
            raise UnsupportedError(reason)
    agent = resolve_agent(config.agent)
    return Cell(
        config=config,
        task=task,
        backend=backend,
        agent=agent,
        route=_route(config, task, agent, mode) if agent.uses_model else None,
        skill_mode=mode,
        environment=expand_env(task.environment.env, host_variable),
    )


def resolve_agent(agent: str | Agent) -> Agent:
    """Return the agent of that name. Raises: UsageError naming those that exist."""
    return cast("Agent", registry.load("agents", agent, "agent")(agent)) if isinstance(agent, str) else agent


def resolve_backend(sandbox: str | Backend) -> Backend:
    """Return the sandbox backend of that name. Raises: UsageError naming those that exist."""
    return cast("Backend", registry.load("sandboxes", sandbox, "backend")) if isinstance(sandbox, str) else sandbox


def verifier_network(task: Task, step: Step) -> Network:
    """Return what the verifier may reach: what the task declares, else public."""
    mode = step.verifier.network.mode or task.environment.network.mode or "public"
    return "public" if mode == "public" else "none"


def _route(config: RolloutConfig, task: Task, agent: Agent, mode: str) -> Route:
    # Imported here: a session of agents that call no model never loads the proxy.
    from pytest_benchflow.proxy.routes import route

    return route(config.model, task=task, agent_name=agent.name, replay_strict=config.replay_strict, skill_mode=mode)


def _unsupported_step(step: Step) -> str | None:
    if step.verifier.environment_mode == "separate" or step.verifier.environment is not None:
        return "needs a separate verifier environment, which no sandbox here offers yet"
    return None
