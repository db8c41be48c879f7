"""Find the way from a model's name, as a user types it, to where its answers come from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_benchflow.errors import ProviderError, UnsupportedError, UsageError
from pytest_benchflow.proxy.http import HttpUpstream
from pytest_benchflow.proxy.replay import ReplayUpstream, recording_path
from pytest_benchflow.settings import host_variable
from pytest_benchflow.tasks.load import task_digest

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Endpoint, Upstream
    from pytest_benchflow.proxy.gateway import Gateway
    from pytest_benchflow.records.redact import Redactor
    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.tasks.task import Task

ACCEPTED = (
    "replay, openai/<model>, anthropic/<model>, <any>/<model>@http://host:port/v1 (an OpenAI-compatible server), "
    "or script/<file>"
)
_AT_URL = re.compile(r"[^@]*?/(?P<model>[^@]+)@(?P<url>https?://[^\s@]+)\Z")


@dataclass(frozen=True, slots=True)
class Route:
    """Where an agent's requests go; `secrets` are the values that must reach no record."""

    upstream: Upstream
    agent_model: str  # as the agent should name it
    source: Literal["replay", "provider"]
    upstream_model: str | None
    secrets: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # what a reader of the rollout should know of this route

    async def open_endpoint(self, gateway: Gateway, *, rundir: RunDir, redactor: Redactor) -> Endpoint:
        """Open the door to this route, recording into `rundir`; the endpoint owns and closes the upstream."""
        redactor.add(*self.secrets)
        return await gateway.open(rundir=rundir, upstream=self.upstream, redactor=redactor, model=self.agent_model)


def route(model: str, *, task: Task, agent_name: str, replay_strict: bool, skill_mode: str | None = None) -> Route:
    """Return the route of a model's name.

    Raises: UsageError for a name of no known form, UnsupportedError where nothing is recorded, ProviderError naming
    the variable that is not set.
    """
    return _replay(task, agent_name, strict=replay_strict, skill_mode=skill_mode) if model == "replay" else _live(model)


def check_model(model: str) -> None:
    """Refuse a model's name of no known form, or whose key is not set. Raises: UsageError, ProviderError."""
    if model != "replay":
        _live(model)


def _live(model: str) -> Route:
    at_url = _AT_URL.match(model)
    if at_url:
        key = host_variable("BENCHFLOW_MODEL_API_KEY")
        return _provider(at_url["url"], key, at_url["model"])
    provider, _, name = model.partition("/")
    if provider == "openai" and name:
        base_url = host_variable("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        return _provider(base_url, _key("OPENAI_API_KEY", model), name)
    if provider == "anthropic" and name:
        base_url = host_variable("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
        key = _key("ANTHROPIC_API_KEY", model)
        return _provider(base_url.rstrip("/").removesuffix("/v1") + "/v1", key, name)
    if provider == "script" and name:
        # Imported here: it brings pydantic, which no other route needs.
        from pytest_benchflow.proxy.script import load_script
        from pytest_benchflow.proxy.scripted import ScriptedUpstream

        return Route(ScriptedUpstream(load_script(Path(name))), "scripted", "provider", "scripted")
    raise UsageError(f"model {model!r} is of no known form; it takes {ACCEPTED}")


def _replay(task: Task, agent_name: str, *, strict: bool, skill_mode: str | None) -> Route:
    path = recording_path(task, agent_name)
    if not path.is_file():
        raise UnsupportedError(
            f"nothing is recorded for agent {agent_name} on task {task.slug}; pass --benchflow-model=provider/name "
            "to run it live"
        )
    upstream = ReplayUpstream(path, strict=strict)
    recorded_mode = upstream.facts.get("skill_mode")
    if skill_mode and recorded_mode and recorded_mode != skill_mode:
        raise UnsupportedError(
            f"the answers for agent {agent_name} on task {task.slug} were recorded {recorded_mode}, not {skill_mode}; "
            "pass --benchflow-model=provider/name to run it live"
        )
    digest = upstream.facts.get("task_digest")
    stale = (f"{path.name} was recorded for another state of this task",) if digest != task_digest(task) else ()
    return Route(upstream, upstream.model, "replay", None, warnings=stale if digest else ())


def _provider(base_url: str, key: str | None, model: str) -> Route:
    upstream = HttpUpstream(base_url, api_key=key, model=model)
    return Route(upstream, model, "provider", model, (key,) if key else ())


def _key(variable: str, model: str) -> str:
    key = host_variable(variable)
    if key is None:
        raise ProviderError(f"model {model} needs {variable}, which is not set; export it and start again")
    return key
