"""Resolve what a rollout was asked to be into the parts that do it, refusing early what cannot run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pytest_benchflow import registry
from pytest_benchflow.catalog.load import find
from pytest_benchflow.errors import UnsupportedError, UsageError
from pytest_benchflow.rollout.config import asked_effort
from pytest_benchflow.rollout.needs import not_held, why_unable, withheld
from pytest_benchflow.rollout.skills import skill_mode
from pytest_benchflow.settings import EFFORTS, OPEN_EFFORTS, host_variable
from pytest_benchflow.tasks.env import expand_env, host_values, unset_variables
from pytest_benchflow.tasks.load import load_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.contracts import Agent, Backend
    from pytest_benchflow.proxy.routes import Route
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.tasks.task import Step, Task

SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH)S?(_|$)", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"://[^/?#\s:@]*:([^/?#\s@]+)@")


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
        return self.config.model

    @property
    def paid(self) -> bool:
        """Tell whether a provider answers, whose answers cost something; recorded ones are free."""
        return self.route is not None and self.route.source == "provider"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the values that must never be written anywhere: what came from the host, whatever its name."""
        return (*self._from_host(), *(self.route.secrets if self.route else ()))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what a reader of the rollout should know before it starts."""
        unset = dict.fromkeys(name for values in self._templates() for name in unset_variables(values, host_variable))
        return (
            *(f"the task asks for ${{{name}}}, which is not set on this host" for name in unset),
            *withheld(self.task, self.config.agent_network),
            *not_held(self.backend, self.task),
            *(self.route.warnings if self.route else ()),
            *self._of_version(),
        )

    def _of_version(self) -> list[str]:
        manifest = find(self.agent.name)
        known = manifest.host.versions.get(self.agent.version or "") if manifest else None
        return [f"{self.agent.name} {self.agent.version} is {known}"] if known else []

    def _templates(self) -> list[Mapping[str, str]]:
        return [self.task.environment.env, self.task.solution_env, *(step.verifier.env for step in self.task.steps)]

    def _from_host(self) -> list[str]:
        values = [value for table in self._templates() for value in host_values(table, host_variable)]
        return values + secret_values(self.config.agent_env)


def secret_values(agent_env: Mapping[str, str]) -> list[str]:
    """Return what of the agent's variables must not be written: the host's, those named like keys, URLs' passwords."""
    whole = [value for name, value in agent_env.items() if SECRET_NAME.search(name) or value == host_variable(name)]
    return [*whole, *(found for value in agent_env.values() for found in _URL_PASSWORD.findall(value))]


def resolve(config: RolloutConfig, *, route: Route | None = None) -> Cell:
    """Resolve names and check that this cell can run here; `route` is taken in place of what the model's name says.

    Raises: UnsupportedError (the reason of a skip), UsageError, TaskError, ProviderError (no key).
    """
    config = settled(config)
    task = task_of(config)
    backend = resolve_backend(config.sandbox)
    mode = skill_mode(config.skills, task)
    check_backend(backend, keep=config.keep_sandbox)
    for reason in (backend.available(), backend.unsupported(task), *map(_unsupported_step, task.steps)):
        if reason:
            raise UnsupportedError(reason)
    agent = resolve_agent(config.agent)
    for reason in (agent.unsupported(task), why_unable(backend, agent, task, config.agent_network)):
        if reason:
            raise UnsupportedError(reason)
    environment = expand_env(task.environment.env, host_variable)
    _check_required(config, environment)
    check_effort(config.agent_name, config.reasoning_effort)
    return Cell(
        config=config,
        task=task,
        backend=backend,
        agent=agent,
        route=(route or _route(config, task, agent, mode)) if agent.uses_model else None,
        skill_mode=mode,
        environment=environment,
    )


def task_of(config: RolloutConfig) -> Task:
    """Return the task of a settled configuration."""
    assert not isinstance(config.task, str | Path), "the configuration is not settled"
    return config.task


def settled(config: RolloutConfig) -> RolloutConfig:
    """Return the configuration with its task loaded, and no model where the agent calls none.

    Raises: TaskError, UsageError.
    """
    task = load_task(Path(config.task)) if isinstance(config.task, str | Path) else config.task
    agent = registry.canonical("agents", config.agent) if isinstance(config.agent, str) else config.agent
    model = config.model if resolve_agent(agent).uses_model else "none"
    effort = asked_effort(config.reasoning_effort, config.agent_env)
    return replace(config, task=task, agent=agent, model=model, reasoning_effort=effort)


def resolve_agent(agent: str | Agent) -> Agent:
    """Return the agent of that name. Raises: UsageError naming those that exist."""
    return cast("Agent", registry.load("agents", agent, "agent")(agent)) if isinstance(agent, str) else agent


def check_backend(backend: Backend, *, keep: bool) -> None:
    """Refuse what is asked of a sandbox that it does not know or cannot do. Raises: UsageError."""
    backend.check()
    if keep and not backend.dies_with_process:
        raise UsageError(
            f"the {backend.name} sandbox leaves no files on this machine; --benchflow-keep-sandbox takes the local one"
        )


def resolve_backend(sandbox: str | Backend) -> Backend:
    """Return the sandbox backend of that name. Raises: UsageError naming those that exist."""
    return cast("Backend", registry.load("sandboxes", sandbox, "backend")) if isinstance(sandbox, str) else sandbox


def _route(config: RolloutConfig, task: Task, agent: Agent, mode: str) -> Route:
    # Imported here: a session of agents that call no model never loads the proxy.
    from pytest_benchflow.proxy.routes import route

    return route(
        config.model,
        task=task,
        agent_name=agent.name,
        replay_strict=config.replay_strict,
        skill_mode=mode,
        dialect=agent.api_dialect,
        timeout=config.model_timeout,
    )


def _check_required(config: RolloutConfig, environment: Mapping[str, str]) -> None:
    """Refuse an agent that lacks a variable which nobody but the user has. Raises: UsageError naming it."""
    manifest = find(config.agent_name)
    for name in manifest.unmet({**environment, **config.agent_env}) if manifest else ():
        raise UsageError(
            f"the agent {config.agent_name} needs {name}, which the gateway does not supply; pass "
            f"--benchflow-agent-env={name} for the host's value, or --benchflow-agent-env={name}=VALUE"
        )


def check_effort(agent: str, effort: str | None) -> None:
    """Refuse a reasoning effort that nobody knows, or that the agent cannot ask its model for.

    Raises: UsageError naming those it can.
    """
    manifest = find(agent)
    efforts = manifest.host.efforts if manifest else ()
    if not effort or effort in (efforts or (*EFFORTS, *OPEN_EFFORTS)):
        return
    if efforts:
        raise UsageError(
            f"the reasoning effort is {effort!r}; the agent {agent} can ask its model for {', '.join(efforts)}"
        )
    raise UsageError(
        f"the reasoning effort is {effort!r}; it takes {', '.join((*EFFORTS, *OPEN_EFFORTS))}, or another for an agent "
        f"whose manifest names it (efforts), which that of {agent} does not"
    )


def _unsupported_step(step: Step) -> str | None:
    if step.verifier.environment_mode == "separate" or step.verifier.environment is not None:
        return "needs a separate verifier environment, which no sandbox here offers yet"
    named = [item.service for item in step.verifier.collect] + [item.service for item in step.artifacts]
    services = [name for name in named if name not in (None, "main")]
    return f"needs docker: the service {services[0]} of a compose file" if services else None
