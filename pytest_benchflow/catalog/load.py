"""Read agent manifests: the fields of contract version 1, and a [host] table with what only this package needs."""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import UsageError
from pytest_benchflow.registry import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTRACT_MAJOR = 1
_HERE = Path(__file__).parent

# Keys of the contract that are no concern of an agent's run here; `aliases` are the registry's.
_PASSED_OVER = frozenset(
    {
        "acp_model_format",
        "aliases",
        "default_model",
        "description",
        "home_dirs",
        "requires_env",
        "supports_acp_set_model",
    }
)

# The wire format of each api_protocol, by the names of `dialects`.
_DIALECTS = {
    "openai-completions": "chat",
    "openai-responses": "responses",
    "anthropic-messages": "messages",
    "google-generative-ai": "generateContent",
}


@dataclass(frozen=True, slots=True)
class HostTable:
    """What only this package needs to know of an agent; seconds for times."""

    version: str | None = None
    python: str | None = None  # an interpreter the agent needs, as "3.12"; found on the host and mounted
    start_timeout: float = 180.0
    terminal_tools: tuple[str, ...] = ()  # tools that end the work: nobody waits for their result


@dataclass(frozen=True, slots=True)
class Manifest:
    """One agent as data. Commands are POSIX sh; `file` is where it was read."""

    contract_version: str
    name: str
    install_cmd: str
    launch_cmd: str
    protocol: str = "acp"
    api_protocol: str = "openai-completions"
    install_timeout: int = 900
    env_mapping: Mapping[str, str] = field(default_factory=dict)
    skill_paths: tuple[str, ...] = ()
    host: HostTable = HostTable()
    file: Path = Path()

    @property
    def dialect(self) -> str | None:
        """Return the name of the wire format the agent speaks to its model, None when it is not known here."""
        return _DIALECTS.get(self.api_protocol)

    @property
    def installs(self) -> bool:
        """Tell whether install_cmd brings anything, or only looks for a tool that must be there."""
        return re.fullmatch(r"\s*(command -v \S+)?\s*", self.install_cmd) is None


@cache
def shipped(name: str) -> Manifest | None:
    """Return the manifest of that name or alias, None when there is none. Raises: UsageError when it is not valid."""
    file = _HERE / f"{canonical('agents', name)}.toml"
    return load_manifest(file) if file.is_file() else None


def load_manifest(file: Path) -> Manifest:
    """Read a manifest. Raises: UsageError naming file, key and what is allowed."""
    try:
        values = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not TOML ({error})") from None
    version = str(values.get("contract_version", ""))
    major, _, minor = version.partition(".")
    if not major.isdigit() or int(major) != CONTRACT_MAJOR:
        raise UsageError(f"{file}: contract_version is {version!r}; this package reads version {CONTRACT_MAJOR}.x")
    host = values.pop("host", {})
    if not isinstance(host, dict):
        raise UsageError(f"{file}: host is a {type(host).__name__}; it takes a table")
    # A higher minor version may have keys that are not known yet.
    strict = minor.split(".")[0] == "0"
    table = _typed(HostTable, host, f"{file}: host.", strict=True)
    ours = {key: value for key, value in values.items() if key not in _PASSED_OVER}
    manifest = _typed(Manifest, {**ours, "host": HostTable(**table), "file": file}, f"{file}: ", strict=strict)
    if manifest.get("protocol", "acp") != "acp":
        raise UsageError(f"{file}: protocol is {manifest['protocol']!r}; it takes acp")
    return Manifest(**manifest)


def _typed(kind: type[Any], values: Mapping[str, Any], where: str, *, strict: bool) -> dict[str, Any]:
    """Return the values of a dataclass's fields, lists as tuples. Raises: UsageError."""
    known = {item.name: item for item in fields(kind)}
    if strict and (unknown := sorted(set(values) - set(known))):
        raise UsageError(f"{where}{unknown[0]} is not known; there are: {', '.join(sorted(known))}")
    if missing := [n for n, f in known.items() if f.default is f.default_factory is MISSING and not values.get(n)]:
        raise UsageError(f"{where}{missing[0]} is missing")
    return {name: _value(known[name].type, value, where + name) for name, value in values.items() if name in known}


def _value(kind: Any, value: Any, where: str) -> Any:
    accepted: dict[str, tuple[Any, str]] = {
        "str": (str, "a string"),
        "str | None": (str, "a string"),
        "int": (int, "a whole number"),
        "float": ((int, float), "a number"),
        "tuple[str, ...]": (list, "a list of strings"),
        "Mapping[str, str]": (dict, "a table of strings"),
    }
    if kind not in accepted:
        return value
    types, noun = accepted[kind]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, bool) or not isinstance(value, types) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{where} is {value!r}; it takes {noun}")
    return tuple(value) if isinstance(value, list) else value
