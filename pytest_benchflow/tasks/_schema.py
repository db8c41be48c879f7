"""Hold every key of a task's tables with its type: what task.toml and, renamed, task.md may say."""

from __future__ import annotations

import re
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from pytest_benchflow.tasks import _reader as kind
from pytest_benchflow.tasks._reader import Reader
from pytest_benchflow.tasks.task import (
    Artifact,
    Collect,
    Environment,
    Healthcheck,
    McpServer,
    NetworkPolicy,
)

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_SECONDS = kind.number(above=0, unit="seconds")
_SECONDS_OR_ZERO = kind.number(at_least=0, unit="seconds")
_TASK_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*(?:/[A-Za-z0-9][\w.+-]*)*\Z")


def _network(reader: Reader, key: str, table: dict[str, Any]) -> NetworkPolicy:
    """Take the network keys out of a typed table; the deprecated allow_internet counts where no mode is given."""
    mode = table.pop("network_mode", None)
    hosts = table.pop("allowed_hosts", ())
    allow = table.pop("allow_internet", None)
    if mode is None and allow is not None:
        mode = "public" if allow else "no-network"
    if hosts and mode != "allowlist":
        raise reader.error(
            f"{key}.allowed_hosts", f"is given while network_mode is {mode}", 'it goes with network_mode = "allowlist"'
        )
    if mode == "allowlist" and not hosts:
        raise reader.error(
            f"{key}.allowed_hosts", "is missing or empty", 'at least one host name where network_mode is "allowlist"'
        )
    return NetworkPolicy(mode=mode, allowed_hosts=hosts)


def _hosts(reader: Reader, key: str, value: Any) -> tuple[str, ...]:
    hosts = kind.texts(reader, key, value)
    for host in hosts:
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\.?", host):
            raise reader.wrong(key, host, "host names, without scheme, port or path")
    return tuple(host.lower().rstrip(".") for host in hosts)


def _artifact(reader: Reader, key: str, value: Any) -> Artifact:
    if isinstance(value, str):
        return Artifact(source=_inside(reader, key, value))
    shape = {"source": _inside, "destination": relative, "exclude": kind.texts, "service": kind.text}
    return Artifact(**reader.table(key, value, shape, required=("source",)))


def _inside(reader: Reader, key: str, value: Any) -> str:
    """Read a path in the sandbox; a relative one starts at the working directory."""
    path = kind.filled(reader, key, value)
    if path.startswith("~") or ".." in PurePosixPath(path).parts or "\0" in path:
        raise reader.wrong(key, value, "a path in the sandbox without .. or ~")
    return path


def relative(reader: Reader, key: str, value: Any) -> str:
    """Read a path that stays below where it starts."""
    path = kind.filled(reader, key, value)
    if path.startswith(("/", "~")) or ".." in PurePosixPath(path).parts:
        raise reader.wrong(key, value, "a relative path without ..")
    return path


_HEALTHCHECK: kind.Kind = kind.record(
    {
        "command": kind.filled,
        "interval_sec": _SECONDS,
        "timeout_sec": _SECONDS,
        "start_period_sec": _SECONDS_OR_ZERO,
        "start_interval_sec": _SECONDS,
        "retries": kind.whole(0),
    },
    Healthcheck,
    required=("command",),
)
_ARTIFACTS = kind.list_of(_artifact, "paths or tables with source")
_NETWORK_KEYS: kind.Shape = {
    "network_mode": kind.choice("public", "no-network", "allowlist"),
    "allowed_hosts": _hosts,
}


def _mcp_server(reader: Reader, key: str, value: Any) -> McpServer:
    shape = {
        "name": kind.filled,
        "transport": kind.choice("stdio", "sse", "http", "streamable-http"),
        "url": kind.text,
        "command": kind.text,
        "args": kind.texts,
        "headers": kind.variables,
    }
    table = reader.table(key, value, shape, required=("name",))
    table.setdefault("transport", "sse")
    needed = "command" if table["transport"] == "stdio" else "url"
    if not table.get(needed):
        raise reader.error(f"{key}.{needed}", "is missing", f"a value for it where transport is {table['transport']}")
    return McpServer(**table)


_ENVIRONMENT_KEYS: kind.Shape = {
    **_NETWORK_KEYS,
    "docker_image": kind.filled,
    "os": kind.choice("linux", "windows"),
    "cpus": kind.number(above=0),
    "memory_mb": kind.whole(1),
    "storage_mb": kind.whole(1),
    "gpus": kind.whole(0),
    "gpu_types": kind.texts,
    "tpu": kind.mapping,
    "build_timeout_sec": _SECONDS,
    "mcp_servers": kind.list_of(_mcp_server, "tables with name, transport and url or command"),
    "env": kind.variables,
    "skills_dir": kind.filled,
    "healthcheck": _HEALTHCHECK,
    "workdir": kind.filled,
    "allow_internet": kind.flag,
    "memory": kind.size,
    "storage": kind.size,
}


def _environment(reader: Reader, key: str, value: Any) -> Environment:
    table = reader.table(key, value, _ENVIRONMENT_KEYS)
    for old in ("memory", "storage"):
        if old in table:
            table.setdefault(f"{old}_mb", table[old])
            del table[old]
    network = _network(reader, key, table)
    return Environment(network=network, **table)


_COLLECT = kind.list_of(
    kind.record(
        {"command": kind.filled, "service": kind.text, "timeout_sec": _SECONDS, "user": kind.user},
        Collect,
        required=("command",),
    ),
    "tables with command",
)
_AGENT_KEYS: kind.Shape = {"timeout_sec": _SECONDS, "user": kind.user, **_NETWORK_KEYS}
_VERIFIER_KEYS: kind.Shape = {
    "timeout_sec": _SECONDS,
    "env": kind.variables,
    "user": kind.user,
    **_NETWORK_KEYS,
    "environment_mode": kind.choice("shared", "separate"),
    "environment": _environment,
    "collect": _COLLECT,
}


def _phase(shape: kind.Shape) -> kind.Kind:
    """Make a kind that reads the keys of a phase and keeps only those given, so that a step can override a task."""

    def read(reader: Reader, key: str, value: Any) -> dict[str, Any]:
        table = reader.table(key, value, shape)
        if table.keys() & _NETWORK_KEYS.keys():
            table["network"] = _network(reader, key, table)
        # A verifier that describes its own machine is meant to run on it.
        if "environment" in table:
            table.setdefault("environment_mode", "separate")
        return table

    return read


def _min_reward(reader: Reader, key: str, value: Any) -> float | dict[str, float]:
    if isinstance(value, dict):
        return {str(name): kind.number()(reader, f"{key}.{name}", item) for name, item in value.items()}
    return float(kind.number()(reader, key, value))


def _step_name(reader: Reader, key: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", value) or value.endswith("."):
        raise reader.wrong(
            key, value, "the name of a directory in steps/: letters, digits, dots, dashes and underscores"
        )
    return value


def _step(reader: Reader, key: str, value: Any) -> dict[str, Any]:
    shape: kind.Shape = {
        "name": _step_name,
        "agent": _phase(_AGENT_KEYS),
        "verifier": _phase(_VERIFIER_KEYS),
        "min_reward": _min_reward,
        "healthcheck": _HEALTHCHECK,
        "artifacts": _ARTIFACTS,
    }
    return reader.table(key, value, shape, required=("name",))


def _task_name(reader: Reader, key: str, value: Any) -> str:
    if not isinstance(value, str) or not _TASK_NAME.match(value):
        raise reader.wrong(key, value, "name or org/name of letters, digits, dots, dashes and underscores")
    return value


_AUTHORS = kind.list_of(kind.record({"name": kind.text, "email": kind.text}, dict), "tables with name and email")
_TASK_KEYS: kind.Shape = {
    "name": _task_name,
    "version": kind.version,
    "description": kind.text,
    "authors": _AUTHORS,
    "keywords": kind.texts,
}


def _source(reader: Reader, key: str, value: Any) -> dict[str, Any]:
    return {"name": value} if isinstance(value, str) else kind.mapping(reader, key, value)


ROOT_KEYS: kind.Shape = {
    "schema_version": kind.version,
    "version": kind.version,
    "task": partial(Reader.table, shape=_TASK_KEYS),
    "metadata": kind.mapping,
    "agent": _phase(_AGENT_KEYS),
    "verifier": _phase(_VERIFIER_KEYS),
    "environment": _environment,
    "solution": kind.record({"env": kind.variables}, dict),
    "source": _source,
    "multi_step_reward_strategy": kind.choice("mean", "final"),
    "steps": kind.list_of(_step, "tables with name"),
    "artifacts": _ARTIFACTS,
}
