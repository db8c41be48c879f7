"""Know the providers: what their models are named by, what they speak and where, and what a call needs of the host."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import ProviderError
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = "api_key"


@dataclass(frozen=True, slots=True)
class Setting:
    """A host variable, the first set one of `variables`, and the parameter of LiteLLM that takes its value."""

    variables: tuple[str, ...]
    parameter: str
    secret: bool = False
    required: bool = True


@dataclass(frozen=True, slots=True)
class Provider:
    """A row of the table. `speaks` maps a wire format to the URL below which it is served, {base} and {model} in it."""

    litellm: str  # what LiteLLM calls it
    credentials: tuple[tuple[Setting, ...], ...]  # alternatives: the first whose variables are all set counts
    speaks: Mapping[str, str] = field(default_factory=dict)
    base: str | None = None  # its URL, None where each user has one
    base_variables: tuple[str, ...] = ()
    version: str = ""  # what `base` ends in, and is added to a user's where it is missing
    litellm_versionless: bool = False  # LiteLLM adds the version by itself
    settings: tuple[Setting, ...] = ()
    key_header: str | None = None  # None: as the format has it
    query: str = ""  # of every request, with {parameters} of the settings in it
    modules: tuple[str, ...] = ()  # that LiteLLM needs for it
    extra: str = "litellm"  # of this package, which brings them


def _key(*variables: str) -> tuple[tuple[Setting, ...], ...]:
    return ((Setting(variables, KEY, secret=True),),)


_CHAT_AND_RESPONSES = {"chat": "{base}", "responses": "{base}"}
_AWS = (
    (Setting(("AWS_BEARER_TOKEN_BEDROCK",), KEY, secret=True),),
    (
        Setting(("AWS_ACCESS_KEY_ID",), "aws_access_key_id", secret=True),
        Setting(("AWS_SECRET_ACCESS_KEY",), "aws_secret_access_key", secret=True),
        Setting(("AWS_SESSION_TOKEN",), "aws_session_token", secret=True, required=False),
    ),
    (Setting(("AWS_PROFILE",), "aws_profile_name"),),
    (
        Setting(("AWS_WEB_IDENTITY_TOKEN_FILE",), "aws_web_identity_token"),
        Setting(("AWS_ROLE_ARN",), "aws_role_name"),
    ),
)

PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider(
        "openai",
        _key("OPENAI_API_KEY"),
        _CHAT_AND_RESPONSES,
        base="https://api.openai.com/v1",
        base_variables=("OPENAI_BASE_URL",),
    ),
    "anthropic": Provider(
        "anthropic",
        _key("ANTHROPIC_API_KEY"),
        {"messages": "{base}"},
        base="https://api.anthropic.com/v1",
        base_variables=("ANTHROPIC_BASE_URL",),
        version="/v1",
        litellm_versionless=True,
    ),
    "azure": Provider(
        "azure",
        _key("AZURE_API_KEY"),
        {"chat": "{base}/openai/deployments/{model}", "responses": "{base}/openai"},
        base_variables=("AZURE_API_BASE",),
        settings=(Setting(("AZURE_API_VERSION",), "api_version"),),
        key_header="api-key",
        query="api-version={api_version}",
    ),
    "bedrock": Provider(
        "bedrock",
        _AWS,
        base_variables=("AWS_ENDPOINT_URL_BEDROCK_RUNTIME",),
        settings=(Setting(("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_REGION_NAME"), "aws_region_name"),),
        modules=("boto3",),
        extra="bedrock",
    ),
    "vertex": Provider(
        "vertex_ai",
        ((Setting(("GOOGLE_APPLICATION_CREDENTIALS",), "vertex_credentials"),),),
        base_variables=("VERTEXAI_API_BASE",),
        settings=(
            Setting(("VERTEXAI_PROJECT", "GOOGLE_CLOUD_PROJECT"), "vertex_project"),
            Setting(("VERTEXAI_LOCATION", "GOOGLE_CLOUD_LOCATION"), "vertex_location"),
        ),
        modules=("google.auth", "requests"),
        extra="vertex",
    ),
    "gemini": Provider(
        "gemini",
        _key("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        {"generateContent": "{base}"},
        base="https://generativelanguage.googleapis.com/v1beta",
        base_variables=("GEMINI_BASE_URL",),
        version="/v1beta",
    ),
    "openrouter": Provider(
        "openrouter",
        _key("OPENROUTER_API_KEY"),
        {"chat": "{base}", "responses": "{base}", "messages": "{base}"},
        base="https://openrouter.ai/api/v1",
        base_variables=("OPENROUTER_BASE_URL",),
        key_header="Authorization",
    ),
    "zai": Provider(
        "zai",
        _key("ZAI_API_KEY"),
        {"chat": "{base}", "messages": "https://api.z.ai/api/anthropic/v1"},
        base="https://api.z.ai/api/paas/v4",
        base_variables=("ZAI_BASE_URL",),
    ),
    "deepseek": Provider(
        "deepseek",
        _key("DEEPSEEK_API_KEY"),
        {"chat": "{base}", "messages": "https://api.deepseek.com/anthropic/v1"},
        base="https://api.deepseek.com/v1",
        base_variables=("DEEPSEEK_BASE_URL",),
    ),
}
ALIASES = {"google": "gemini", "vertex_ai": "vertex", "azure_openai": "azure"}

# A server named by its URL: OpenAI's formats, and Anthropic's, which vLLM and others serve too.
SERVER = Provider(
    "openai",
    ((Setting(("BENCHFLOW_MODEL_API_KEY",), KEY, secret=True, required=False),),),
    {"chat": "{base}", "responses": "{base}", "messages": "{base}"},
)

# Of LiteLLM's other providers the key is in NAME_API_KEY, unless it says so here; () for those that take none.
_OTHER_KEYS: Mapping[str, tuple[str, ...]] = {
    "huggingface": ("HF_TOKEN", "HUGGINGFACE_API_KEY"),
    "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY"),
    "cohere_chat": ("COHERE_API_KEY", "CO_API_KEY"),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "dashscope": ("DASHSCOPE_API_KEY",),
    "nvidia_nim": ("NVIDIA_NIM_API_KEY",),
    "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    "github": ("GITHUB_API_KEY",),
    "sagemaker": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    "sagemaker_chat": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    **dict.fromkeys(
        (
            "ollama",
            "ollama_chat",
            "lm_studio",
            "llamafile",
            "hosted_vllm",
            "xinference",
            "oobabooga",
            "docker_model_runner",
            "lemonade",
            "triton",
            "petals",
        ),
        (),
    ),
}
_MEMBER = re.compile(r'^    [A-Z0-9_]+ = "([^"]+)"', re.MULTILINE)


def provider_of(name: str) -> Provider | None:
    """Return the provider of a model's first part, of the table or of LiteLLM's own list; None: nobody's."""
    row = PROVIDERS.get(ALIASES.get(name, name))
    if row is not None or name not in _litellm_names():
        return row
    prefix = re.sub(r"\W", "_", name).upper()
    keys = _OTHER_KEYS.get(name, (f"{prefix}_API_KEY",))
    bases = (f"{prefix}_API_BASE", f"{prefix}_BASE_URL")
    return Provider(name, _key(*keys) if keys else (), base_variables=bases)


def key_variables() -> list[str]:
    """Return the variables that keys are looked for in, of the table's providers and of servers by their URL."""
    settings = [setting for row in (*PROVIDERS.values(), SERVER) for each in row.credentials for setting in each]
    return list(
        dict.fromkeys(name for setting in settings if setting.required or setting.secret for name in setting.variables)
    )


def environment_of(provider: Provider) -> dict[str, str]:
    """Return the host's variables of a provider that has no row, whichever LiteLLM may look for."""
    if any(provider is row for row in PROVIDERS.values()) or provider is SERVER:
        return {}
    from os import environ

    prefixes = [re.sub(r"\W", "_", provider.litellm).upper() + "_"]
    prefixes += [name.partition("_")[0] + "_" for name in _OTHER_KEYS.get(provider.litellm, ())]
    return {name: value for name, value in environ.items() if name.startswith(tuple(prefixes))}


def require(provider: Provider, model: str, base: str | None) -> None:
    """Raise ProviderError naming all that a model needs and the host does not set, its URL among it."""
    lacks = []
    if provider.credentials and credentials_of(provider) is None:
        needed = [[setting for setting in each if setting.required] for each in provider.credentials]
        lacks.append(", or ".join(" and ".join(" or ".join(setting.variables) for setting in each) for each in needed))
    if base is None and provider.base is None and provider.speaks and provider.base_variables:
        lacks.append(provider.base_variables[0])
    lacks += [" or ".join(setting.variables) for setting in provider.settings if _value(setting) is None]
    if lacks:
        told = "which is not set; export it" if len(lacks) == 1 else "which are not set; export them"
        raise ProviderError(f"model {model} needs {'; and '.join(lacks)}, {told} and start again")


def credentials_of(provider: Provider) -> dict[Setting, str] | None:
    """Return what the host sets of the first of a provider's credentials that is whole, None when none is."""
    for alternative in provider.credentials:
        if all(_value(setting) for setting in alternative if setting.required):
            return {setting: value for setting in alternative if (value := _value(setting))}
    return None


def settings_of(provider: Provider) -> dict[str, str]:
    """Return a provider's other parameters, as far as the host sets them."""
    return {setting.parameter: value for setting in provider.settings if (value := _value(setting)) is not None}


def why_no_translation(provider: Provider) -> str | None:
    """Return what is missing to translate for a provider, with what to do; None when nothing is."""
    try:
        metadata.version("litellm")
        missing = [name for name in provider.modules if not is_there(name)]
    except metadata.PackageNotFoundError:
        missing = ["litellm"]
    if not missing:
        return None
    return f"{' and '.join(missing)} is not installed: pip install 'pytest-benchflow[{provider.extra}]'"


def hidden_in_files(parameters: Mapping[str, str]) -> list[str]:
    """Return the secrets in the files that a provider's parameters lead to. Raises: ProviderError."""
    found: list[str] = []
    if path := parameters.get("vertex_credentials"):
        found += file_secrets(path)
    if profile := parameters.get("aws_profile_name"):
        found += _profile_secrets(profile)
    if token := parameters.get("aws_web_identity_token"):
        with suppress(OSError, ValueError):
            found.append(Path(token).read_text(encoding="utf-8"))
    return found


def _profile_secrets(profile: str) -> list[str]:
    """Return what a profile of AWS has in the files where it may have keys; whoever uses it tells what is wrong."""
    from configparser import Error, RawConfigParser

    places = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
    found = RawConfigParser()
    try:
        found.read([Path(host_variable(name) or usual).expanduser() for name, usual in places], encoding="utf-8")
    except (Error, UnicodeDecodeError):
        return []
    sections = [found[name] for name in (profile, f"profile {profile}") if name in found]
    return [value for section in sections for name, value in section.items() if re.search(r"key|token", name) and value]


def file_secrets(path: str) -> tuple[str, ...]:
    """Return the secrets in a credentials file of Google's. Raises: ProviderError when it cannot be read."""
    import json

    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProviderError(f"GOOGLE_APPLICATION_CREDENTIALS names {path}, which cannot be read: {error}") from None
    names = ("private_key", "private_key_id", "refresh_token", "client_secret")
    return tuple(str(told[name]) for name in names if isinstance(told, dict) and told.get(name))


def _value(setting: Setting) -> str | None:
    return next((value for name in setting.variables if (value := host_variable(name))), None)


def is_there(module: str) -> bool:
    """Tell whether a module can be imported, without importing it."""
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _litellm_names() -> frozenset[str]:
    """Return the providers that the installed LiteLLM knows. Read from its text: importing it takes seconds."""
    try:
        distribution = metadata.distribution("litellm")
        text = Path(str(distribution.locate_file("litellm/types/utils.py"))).read_text(encoding="utf-8")
    except (metadata.PackageNotFoundError, OSError):
        return frozenset()
    listed = text.partition("class LlmProviders(")[2].partition("\n\n\n")[0]
    return frozenset(_MEMBER.findall(listed))
