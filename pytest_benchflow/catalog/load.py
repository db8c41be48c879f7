"""Read agent manifests: the fields of contract version 1, and a [host] table with what only this package needs."""

from __future__ import annotations

import re
import stat
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow import registry
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

CONTRACT_MAJOR = 1
_HERE = Path(__file__).parent
_VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(\.[0-9]+)?\Z")
# A name and a version become part of paths; an @ in what a user types separates them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LONGEST_SEC = 10_000_000
_SHOWN = 200

# What each item of a list, or each key and value of a table, must be like, as the contract's schema says too.
_ITEMS = {
    "requires_env": (_VARIABLE, "names of variables"),
    "env_mapping": (_VARIABLE, "names of variables"),
    # They become part of a command, where the variable in front is to be replaced and nothing else.
    "skill_paths": (
        re.compile(r"\$(HOME|WORKSPACE)/[^\"$`\\]*\Z"),
        'paths that begin with $HOME/ or $WORKSPACE/ and have no other $, and no ", ` or \\',
    ),
    "home_dirs": (re.compile(r"(?!/)(?!(.*/)?\.\.(/|\Z)).", re.DOTALL), "relative paths without .."),
}

# The wire format of each api_protocol, by the names of `dialects`.
_DIALECTS = {
    "openai-completions": "chat",
    "openai-responses": "responses",
    "anthropic-messages": "messages",
    "google-generative-ai": "generateContent",
}
# Where no api_protocol is given: whose clients read a URL from a variable that is named so.
_URL_VARIABLES = {"ANTHROPIC": "anthropic-messages", "GEMINI": "google-generative-ai", "GOOGLE": "google-generative-ai"}
MODEL_FORMATS = ("bare", "provider/model", "registered-provider/model")


@dataclass(frozen=True, slots=True)
class HostTable:
    """What only this package needs to know of an agent; seconds for times."""

    version: str | None = None
    # Others that NAME@VERSION chooses, each with what is known of it; install_cmd finds it in BENCHFLOW_AGENT_VERSION.
    versions: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None  # an interpreter the agent needs, as "3.12"; found on the host and mounted
    start_timeout: float = 180.0
    terminal_tools: tuple[str, ...] = ()  # tools that end the work: nobody waits for their result
    efforts: tuple[str, ...] = ()  # the reasoning efforts that it can ask its model for; empty: all known ones
    mcp_servers: bool = True  # whether the agent makes use of the tool servers that the protocol tells it of
    mcp_environment: bool = False  # whether launch_cmd tells it of them instead, from BENCHFLOW_MCP_SERVERS
    # A file of JSON that launch_cmd writes, and again as FILE.launched, so that an agent that went on with other
    # settings is found; what such an agent may print instead.
    settings: str | None = None
    settings_refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One agent as data. Commands are POSIX sh; `file` is where it was read."""

    contract_version: str
    name: str
    description: str = ""
    install_cmd: str
    launch_cmd: str
    protocol: str = "acp"
    api_protocol: str = ""
    acp_model_format: str = "bare"
    supports_acp_set_model: bool = True
    requires_env: tuple[str, ...] = ()
    install_timeout: int = 900
    env_mapping: Mapping[str, str] = field(default_factory=dict)
    default_model: str = ""
    skill_paths: tuple[str, ...] = ()
    home_dirs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    host: HostTable = HostTable()
    file: Path = Path()

    @property
    def dialect(self) -> str | None:
        """Return the name of the wire format the agent speaks to its model, None when it is not known here."""
        return _DIALECTS.get(self.spoken_protocol)

    @property
    def spoken_protocol(self) -> str:
        """Return api_protocol, and where it is not given what the variable for the base URL lets expect."""
        variable = self.env_mapping.get("BENCHFLOW_PROVIDER_BASE_URL", "")
        likely = (protocol for word, protocol in _URL_VARIABLES.items() if word in variable)
        return self.api_protocol or next(likely, "openai-completions")

    def unmet(self, given: Container[str]) -> tuple[str, ...]:
        """Return the required variables that neither `given` has nor the gateway stands for.

        It stands for what a BENCHFLOW_PROVIDER_* variable is mapped to, and with its token for a provider's key.
        """
        keyed = "BENCHFLOW_PROVIDER_API_KEY" in self.env_mapping
        met = {theirs for ours, theirs in self.env_mapping.items() if ours.startswith("BENCHFLOW_PROVIDER_")}
        met |= {name for name in self.requires_env if keyed and name.endswith("_API_KEY")}
        return tuple(name for name in self.requires_env if name not in met and name not in given)

    @property
    def installs(self) -> bool:
        """Tell whether install_cmd brings anything, or only looks for a tool that must be there."""
        return re.fullmatch(r"\s*(command -v \S+)?\s*", self.install_cmd) is None


# The fields of the contract, in the order in which they are written.
CONTRACT_FIELDS = tuple(item.name for item in fields(Manifest) if item.name not in ("host", "file"))


def find(name: str) -> Manifest | None:
    """Return the manifest that runs under a name or alias, whatever version is asked for, None when there is none.

    Raises: UsageError when it is not valid.
    """
    base = registry.canonical("agents", name).partition("@")[0]
    return registry.declared().get(base) or shipped(base)


@cache
def shipped(name: str) -> Manifest | None:
    """Return the catalogue's own manifest of that name or alias, as `find` does."""
    base = name.partition("@")[0]
    file = _HERE / f"{registry.shipped_aliases().get(base, base)}.toml"
    return load_manifest(file) if file.is_file() else None


def load_manifest(file: Path) -> Manifest:
    """Read a manifest. Raises: UsageError naming file, key and what is allowed."""
    values = read_toml(file)
    minor = minor_version(file, values)
    host = values.pop("host", {})
    if not isinstance(host, dict):
        raise UsageError(f"{file}: host is a {type(host).__name__}; it takes a table")
    table = _typed(HostTable, host, f"{file}: host.", strict=minor == 0)
    # A higher minor version may have keys that are not known yet.
    told = _typed(Manifest, values, f"{file}: ", strict=minor == 0)
    manifest = Manifest(**{**told, "host": HostTable(**table), "file": file})
    if manifest.protocol != "acp":
        raise UsageError(f"{file}: protocol is {_brief(manifest.protocol)}; it takes acp")
    for name in (manifest.name, *manifest.aliases):
        if not _NAME.match(name):
            raise UsageError(
                f"{file}: {_brief(name)} is no name; it takes up to 64 letters, digits, dots, dashes and underscores"
            )
    # Words that others made up do no harm where the protocol carries no model.
    if manifest.supports_acp_set_model and manifest.acp_model_format not in MODEL_FORMATS:
        known = ", ".join(MODEL_FORMATS)
        raise UsageError(f"{file}: acp_model_format is {_brief(manifest.acp_model_format)}; it takes one of: {known}")
    _check_items(manifest)
    _check_host(manifest)
    return manifest


def _check_items(manifest: Manifest) -> None:
    """Refuse what a list, table or command cannot hold."""
    for name, (pattern, noun) in _ITEMS.items():
        value: Mapping[str, str] | tuple[str, ...] = getattr(manifest, name)
        both = (*value, *value.values()) if isinstance(value, dict) else tuple(value)
        for each in both:
            if not pattern.match(each):
                raise UsageError(f"{manifest.file}: {name} holds {_brief(each)}; it takes {noun}")
    for name in CONTRACT_FIELDS:
        value = getattr(manifest, name)
        for each in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
            if "\0" in each:
                raise UsageError(f"{manifest.file}: {name} holds a NUL, which no command, path or variable can hold")
    _check_seconds(f"{manifest.file}: install_timeout", manifest.install_timeout, least=1)


def _check_host(manifest: Manifest) -> None:
    host, where = manifest.host, f"{manifest.file}: host."
    for name, version in (("version", host.version), *(("versions", each) for each in host.versions)):
        if version is not None and not _RELEASE.match(version):
            raise UsageError(f"{where}{name}: {_brief(version)} is no version; it takes letters, digits and . _ + -")
    if host.python is not None and not re.fullmatch(r"[0-9]+(\.[0-9]+){0,2}", host.python):
        raise UsageError(f'{where}python is {_brief(host.python)}; it takes a version such as "3.12"')
    for name in ("settings", "settings_refused"):
        if "\0" in (getattr(host, name) or ""):
            raise UsageError(f"{where}{name} holds a NUL, which no path or variable can hold")
    _check_seconds(f"{where}start_timeout", host.start_timeout, least=0.001)


def _check_seconds(where: str, value: float, *, least: float) -> None:
    if not least <= value <= _LONGEST_SEC:
        raise UsageError(f"{where} is {_brief(value)}; it takes seconds, at least {least} and at most {_LONGEST_SEC}")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def read_toml(file: Path) -> dict[str, Any]:
    """Return the values of a TOML file. Raises: UsageError."""
    try:
        # A pipe or a device could keep its reader waiting for ever.
        strange = not stat.S_ISREG(file.stat().st_mode)
        # As bytes: text is read with other line ends than it has, and a comparison would not see them.
        values = None if strange else tomllib.loads(file.read_bytes().decode())
    except RecursionError:
        raise UsageError(f"{file}: not TOML that can be read (its values lie too deep in each other)") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        # Besides TOMLDecodeError: text that is not UTF-8, dates that are none and numbers of thousands of digits.
        raise UsageError(f"{file}: not TOML ({error})") from None
    if values is None:
        raise UsageError(f"{file}: cannot be read: it is no regular file")
    return values


def minor_version(file: Path, values: Mapping[str, Any]) -> int:
    """Return the minor part of contract_version. Raises: UsageError when it is none, or of another major version."""
    version = values.get("contract_version", "")
    found = _VERSION.match(version) if isinstance(version, str) else None
    if found is None or int(found[1]) != CONTRACT_MAJOR:
        raise UsageError(
            f"{file}: contract_version is {_brief(version)}; this package reads version {CONTRACT_MAJOR}.x, "
            f'written as "{CONTRACT_MAJOR}.0"'
        )
    return int(found[2])


def _typed(kind: type[Any], values: Mapping[str, Any], where: str, *, strict: bool) -> dict[str, Any]:
    """Return the values of a dataclass's fields, lists as tuples. Raises: UsageError."""
    known = {item.name: item for item in fields(kind) if item.name not in ("host", "file")}
    if strict and (unknown := sorted(set(values) - set(known))):
        raise UsageError(f"{where}{unknown[0]} is not known; there are: {', '.join(sorted(known))}")
    if missing := [n for n, f in known.items() if f.default is f.default_factory is MISSING and not values.get(n)]:
        raise UsageError(f"{where}{missing[0]} is missing")
    return {name: _value(known[name].type, value, where + name) for name, value in values.items() if name in known}


def _value(kind: Any, value: Any, where: str) -> Any:
    accepted: dict[str, tuple[Any, str]] = {
        "str": (str, "a string"),
        "str | None": (str, "a string"),
        "bool": (bool, "true or false"),
        "int": (int, "a whole number"),
        "float": ((int, float), "a number"),
        "tuple[str, ...]": (list, "a list of strings"),
        "Mapping[str, str]": (dict, "a table of strings"),
    }
    types, noun = accepted[kind]
    # JSON Schema, by which others check, takes 1200.0 for a whole number.
    if kind == "int" and isinstance(value, float) and value.is_integer():
        value = int(value)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    wrong_bool = isinstance(value, bool) and kind != "bool"
    if wrong_bool or not isinstance(value, types) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{where} is {_brief(value)}; it takes {noun}")
    return tuple(value) if isinstance(value, list) else value
