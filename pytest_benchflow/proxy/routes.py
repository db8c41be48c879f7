"""Find the way from a model's name, as a user types it, to where its answers come from."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_benchflow.errors import ProviderError, UnsupportedError, UsageError
from pytest_benchflow.proxy import _providers
from pytest_benchflow.proxy._providers import KEY, PROVIDERS, SERVER, Provider
from pytest_benchflow.proxy.replay import ReplayUpstream, recording_path
from pytest_benchflow.settings import host_variable
from pytest_benchflow.tasks.load import task_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchflow.contracts import Agent, Upstream
    from pytest_benchflow.proxy._routed import Way
    from pytest_benchflow.proxy.gateway import Gateway, GatewayEndpoint
    from pytest_benchflow.proxy.litellm import Translation
    from pytest_benchflow.records.redact import Redactor
    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.tasks.task import Task

ACCEPTED = (
    f"replay, {', '.join(f'{name}/<model>' for name in PROVIDERS)}, <any>/<model>@http://host:port/v1 (a server of its "
    "own), <provider>/<model> as LiteLLM names it, or script/<file>"
)
_NO_NAMES = "; the names that LiteLLM knows need pip install 'pytest-benchflow[litellm]'"
_AT_URL = re.compile(r"(?P<provider>[^@/]*)/(?P<model>[^@]+)@(?P<url>https?://[^\s@]+)\Z")
_OTHER_URL = re.compile(r"[^@]+@([\w.-]+:\d+(/\S*)?\Z|\w[\w+.-]*://)")
_HTTP = re.compile(r"https?://[^\s/?#]+(/\S*)?\Z")
_WITH_LOGIN = re.compile(r"(?<=://)[^/?#\s]*@")
_SECRET_NAME = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Route:
    """Where an agent's requests go; `secrets` are the values that must reach no record."""

    upstream: Upstream
    agent_model: str  # as the agent should name it
    source: Literal["replay", "provider"]
    upstream_model: str | None
    secrets: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # what a reader of the rollout should know of this route
    way: Way | None = None  # None: it leads to no provider
    dialect: str | None = None  # the agent's, None where it is not known

    async def open_endpoint(
        self,
        gateway: Gateway,
        *,
        rundir: RunDir,
        redactor: Redactor,
        translation: Callable[[], Translation] | None = None,
        effort: str | None = None,
    ) -> GatewayEndpoint:
        """Open the door to this route, recording into `rundir`; the endpoint owns and closes the upstream."""
        from pytest_benchflow.proxy._routed import RoutedUpstream

        redactor.add(*self.secrets)
        if translation is not None and isinstance(self.upstream, RoutedUpstream):
            self.upstream.use(translation(), dialect=self.dialect)
        return await gateway.open(
            rundir=rundir, upstream=self.upstream, redactor=redactor, model=self.agent_model, effort=effort
        )

    def when_rejected(self, tell: Callable[[str, str | None], None]) -> None:
        """Call `tell` with the name of a key when the provider rejects it, and with what was said.

        That is None where it may be about the request alone.
        """
        from pytest_benchflow.proxy._routed import RoutedUpstream

        if isinstance(self.upstream, RoutedUpstream):
            self.upstream.rejected = tell

    def as_json(self) -> dict[str, object] | None:
        """Return the route as config.json holds it, without a key; None where no provider answers."""
        if self.way is None:
            return None
        dialect = self.dialect
        passes = None if dialect is None else dialect in self.way.natives
        return {
            "agent_format": dialect,
            "passes_through": passes,
            "base_url": self.way.natives.get(dialect or "") if passes else None,
            "litellm_model": self.way.litellm_model or None,
            "key_source": self.way.key_source,
        }


def route(
    model: str,
    *,
    task: Task,
    agent_name: str,
    replay_strict: bool,
    skill_mode: str | None = None,
    dialect: str | None = None,
    timeout: float | None = None,
) -> Route:
    """Return the route of a model's name; `dialect` is the agent's format, `timeout` seconds for one answer.

    Raises: UsageError for a name of no known form, UnsupportedError where nothing is recorded, ProviderError naming
    the variable that is not set, or the package that is not installed.
    """
    if model == "replay":
        return _replay(task, agent_name, strict=replay_strict, skill_mode=skill_mode)
    return provider_route(model, dialect, timeout)


def check_model(model: str, agent: Agent | None = None) -> None:
    """Refuse a model's name of no known form, or whose key is not set, or that `agent` cannot reach.

    Raises: UsageError, ProviderError.
    """
    if model != "replay":
        provider_route(model, agent.api_dialect if agent else None)


def provider_route(model: str, dialect: str | None = None, timeout: float | None = None) -> Route:
    """Return the route of a model that is no recording; see `route`. Raises: UsageError, ProviderError."""
    prefix, _, name = model.partition("/")
    if prefix == "script" and name and not _AT_URL.match(model):
        # Imported here: it brings pydantic, which no other route needs.
        from pytest_benchflow.proxy.script import load_script
        from pytest_benchflow.proxy.scripted import ScriptedUpstream

        return Route(ScriptedUpstream(load_script(Path(name))), "scripted", "provider", "scripted")
    from pytest_benchflow.proxy._routed import RoutedUpstream

    way, hidden = way_to(model)
    if dialect is not None and dialect not in way.natives and way.untranslatable:
        raise ProviderError(
            f"model {model} has to be translated for an agent that speaks {dialect}, and {way.untranslatable}"
        )
    way = replace(way, timeout=timeout)
    return Route(RoutedUpstream(way), way.model, "provider", way.model, hidden, way=way, dialect=dialect)


def way_to(model: str) -> tuple[Way, tuple[str, ...]]:
    """Return how a live model is reached, and the values on that way that must reach no record.

    Raises: UsageError for a name of no known form, ProviderError naming the variable that is not set.
    """
    if _WITH_LOGIN.search(model):
        raise UsageError(
            f"the URL of model {_WITH_LOGIN.sub('***@', model)!r} has a user or a password in it, which records would "
            f"tell; a server gets its key from {SERVER.credentials[0][0].variables[0]}"
        )
    at_url = _AT_URL.match(model)
    if at_url:
        named = PROVIDERS.get(_providers.ALIASES.get(at_url["provider"], at_url["provider"]))
        # Whatever it is called, a server speaks OpenAI's formats, unless the name is that of another format's provider.
        provider = SERVER
        if named is not None and "chat" not in named.speaks and named.speaks:
            provider = replace(named, credentials=SERVER.credentials, base_variables=())
        return _way(provider, model, at_url["model"], at_url["url"])
    prefix, _, name = model.partition("/")
    if prefix == "vllm" and name and "@" not in model:
        raise UsageError(f"model {model!r} names no server; pass {model}@http://host:port/v1, with the URL of yours")
    known = _providers.provider_of(prefix) if name and not _OTHER_URL.match(model) else None
    if known is None:
        more = "" if _providers.is_there("litellm") else _NO_NAMES
        raise UsageError(f"model {model!r} is of no known form; it takes {ACCEPTED}{more}")
    variable = next((each for each in known.base_variables if host_variable(each)), "")
    named_base = host_variable(variable)
    if named_base and _WITH_LOGIN.search(named_base):
        raise ProviderError(
            f"{variable} has a user or a password in its URL, which records would tell; set it without them, as "
            f"{model} gets a key of its own"
        )
    if named_base and not _HTTP.match(named_base):
        raise ProviderError(f"{variable} is {named_base!r}; it takes a URL as http://host:port/v1 or https://host")
    return _way(known, model, name, named_base)


def _way(provider: Provider, full: str, model: str, own_base: str | None) -> tuple[Way, tuple[str, ...]]:
    """Return the way to a provider's model; `own_base` is a URL that the user names."""
    from pytest_benchflow.proxy._routed import Way

    _providers.require(provider, full, own_base)
    credentials = _providers.credentials_of(provider) or {}
    if spoilt := next((setting for setting, value in credentials.items() if not value.isprintable()), None):
        source = next(name for name in spoilt.variables if host_variable(name))
        raise ProviderError(f"{source} has a line break or another control character in it; set it without that")
    settings = _providers.settings_of(provider)
    base = (own_base or provider.base or "").rstrip("/")
    if own_base and provider.version:
        base = base.removesuffix(provider.version) + provider.version
    # At a URL of the user's only that is known to be served which is served at the provider's own one.
    served = {name: url for name, url in provider.speaks.items() if own_base is None or url.startswith("{base}")}
    parameters: dict[str, str] = {setting.parameter: value for setting, value in credentials.items()} | settings
    key = parameters.get(KEY)
    if own_base:
        name = "aws_bedrock_runtime_endpoint" if provider.litellm == "bedrock" else "api_base"
        parameters[name] = base.removesuffix(provider.version) if provider.litellm_versionless else base
    if provider is SERVER and key is None:
        parameters[KEY] = "none"  # a server may take none, LiteLLM's client asks for one
    environment = _providers.environment_of(provider)
    hidden = [value for setting, value in credentials.items() if setting.secret]
    hidden += _providers.hidden_in_files(parameters)
    hidden += [value for name, value in environment.items() if _SECRET_NAME.search(name)]
    way = Way(
        model=model,
        natives={name: url.format(base=base, model=model) for name, url in served.items()},
        key=key,
        key_source=_source(credentials),
        key_header=provider.key_header,
        query=provider.query.format(**settings),
        litellm_model=f"{provider.litellm}/{model}",
        parameters=parameters,
        environment=environment,
        untranslatable=_providers.why_no_translation(provider),
    )
    return way, tuple(dict.fromkeys(hidden))


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


def _source(credentials: dict[_providers.Setting, str]) -> str | None:
    """Return the name of the variable that a key, or what stands for one, came from."""
    return next(
        (name for setting in credentials for name in setting.variables if host_variable(name)),
        None,
    )
