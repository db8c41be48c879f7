"""Read the Harbor layout: task.toml (schema 1.0 to 1.4), instruction.md, environment/, tests/, solution/, steps/."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_benchflow.errors import TaskError
from pytest_benchflow.tasks import _reader as kind
from pytest_benchflow.tasks._files import inside, subdirectory
from pytest_benchflow.tasks._reader import Reader
from pytest_benchflow.tasks.task import (
    AgentPhase,
    Artifact,
    Collect,
    Environment,
    Healthcheck,
    McpServer,
    NetworkPolicy,
    Step,
    Task,
    VerifierPhase,
)

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_SECONDS = kind.number(above=0, unit="seconds")
_SECONDS_OR_ZERO = kind.number(at_least=0, unit="seconds")
_TASK_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*(?:/[A-Za-z0-9][\w.+-]*)?\Z")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a form of task keeps its parts; directories are tried in order, each with its place in the sandbox."""

    form: str
    tests: tuple[tuple[str, str], ...]
    solution: tuple[tuple[str, str], ...]


HARBOR = Layout("harbor", (("tests", "/tests"),), (("solution", "/solution"),))


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
        return Artifact(source=kind.filled(reader, key, value))
    shape = {"source": kind.filled, "destination": _relative, "exclude": kind.texts, "service": kind.text}
    return Artifact(**reader.table(key, value, shape, required=("source",)))


def _relative(reader: Reader, key: str, value: Any) -> str:
    path = kind.filled(reader, key, value)
    if path.startswith(("/", "~")) or ".." in Path(path).parts:
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


def load_harbor(path: Path) -> Task:
    """Read the task directory `path` by its task.toml. Raises: TaskError naming file, key and what is allowed."""
    reader = Reader(path / "task.toml")
    try:
        data = tomllib.loads(read_text(reader.file, reader.label))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(
            f"{reader.label}: this is not valid TOML: {error}; see https://toml.io for what is allowed"
        ) from None
    return build_task(reader, data, HARBOR, None)


def read_text(file: Path, label: str) -> str:
    """Read a task's text file. Raises: TaskError when it is not UTF-8 or cannot be read."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{label}: byte {error.start} is not UTF-8; allowed: text encoded as UTF-8") from None
    except OSError as error:
        raise TaskError(f"{label}: it cannot be read: {error.strerror}") from None


def build_task(reader: Reader, data: Mapping[str, Any], layout: Layout, prompt: str | None) -> Task:
    """Make a `Task` of parsed tables; `prompt` None: it is in instruction.md. Raises: TaskError."""
    root = reader.file.parent
    inside(root, reader.file, reader.label)
    table = reader.table("", data, ROOT_KEYS)
    about = table.get("task", {})
    schema = table.get("schema_version", table.get("version", "1.0"))
    if schema not in SCHEMAS:
        reader.warn(f"schema_version {schema} is not known; it is read as {SCHEMAS[-1]}")
    environment: Environment = table.get("environment", Environment())
    environment_dir = subdirectory(root, "environment", reader.label)
    steps, targets = _steps(reader, table, layout, prompt)
    skills_path, skills = _skills(reader, environment, environment_dir)
    return Task(
        path=root,
        file=reader.file,
        name=about.get("name", root.name),
        form=layout.form,  # type: ignore[arg-type]
        schema_version=schema,
        steps=steps,
        environment=environment,
        environment_dir=environment_dir,
        dockerfile=_existing(environment_dir, "Dockerfile"),
        compose_file=_existing(environment_dir, "docker-compose.yaml", "docker-compose.yml"),
        skills=skills,
        skills_path=skills_path,
        solution_env=table.get("solution", {}).get("env", {}),
        metadata=table.get("metadata", {}),
        artifacts=table.get("artifacts", ()),
        multi_step_reward_strategy=table.get("multi_step_reward_strategy", "mean"),
        description=about.get("description", ""),
        keywords=about.get("keywords", ()),
        source=table.get("source"),
        tests_target=targets[0],
        solution_target=targets[1],
        warnings=tuple(reader.warnings),
    )


def _existing(directory: Path | None, *names: str) -> Path | None:
    return next((directory / name for name in names if directory and (directory / name).is_file()), None)


def _first(root: Path, where: Path, choices: tuple[tuple[str, str], ...], label: str) -> tuple[Path | None, str]:
    """Return the first directory that exists and its place in the sandbox, else None and the first place."""
    for name, target in choices:
        found = subdirectory(root, str((where / name).relative_to(root)), label)
        if found:
            return found, target
    return None, choices[0][1]


def _steps(
    reader: Reader, table: Mapping[str, Any], layout: Layout, prompt: str | None
) -> tuple[tuple[Step, ...], tuple[str, str]]:
    """Return the steps and the places in the sandbox of tests and solution."""
    root = reader.file.parent
    agent, verifier = table.get("agent", {}), table.get("verifier", {})
    tests, tests_target = _first(root, root, layout.tests, reader.label)
    solution, solution_target = _first(root, root, layout.solution, reader.label)
    declared = table.get("steps", ())
    if not declared:
        step = Step(
            name=None,
            instruction=_instruction(reader, root, prompt),
            agent=AgentPhase(**agent),
            verifier=VerifierPhase(**verifier),
            tests=_with_script(reader, tests, root, layout),
            solution=solution,
        )
        return (step,), (tests_target, solution_target)
    steps = tuple(_declared_step(reader, item, agent, verifier, tests, layout) for item in declared)
    doubled = {step.name for step in steps if sum(other.name == step.name for other in steps) > 1}
    if doubled:
        raise reader.error("steps", f"holds {sorted(map(str, doubled))[0]} twice", "each name once")
    return steps, (tests_target, solution_target)


def _instruction(reader: Reader, where: Path, prompt: str | None) -> str:
    if prompt is None:
        file = where / "instruction.md"
        if not file.is_file():
            raise TaskError(
                f"{reader.label}: there is no {file.relative_to(reader.file.parent)}; a task needs its instruction there"
            )
        inside(reader.file.parent, file, reader.label)
        prompt = read_text(file, f"{reader.file.parent.name}/{file.relative_to(reader.file.parent)}")
    if not prompt.strip():
        raise TaskError(f"{reader.label}: the instruction is empty; write there what the agent is to do")
    return prompt


def _with_script(reader: Reader, tests: Path | None, where: Path, layout: Layout) -> Path:
    """Return a tests directory that holds test.sh. Raises: TaskError."""
    if tests is None or not (tests / "test.sh").is_file():
        root = reader.file.parent
        places = " or ".join(str((where / name / "test.sh").relative_to(root)) for name, _ in layout.tests)
        raise TaskError(f"{reader.label}: there is no verifier; a task needs {places}, which writes a reward")
    return tests


def _declared_step(
    reader: Reader,
    item: Mapping[str, Any],
    agent: Mapping[str, Any],
    verifier: Mapping[str, Any],
    shared_tests: Path | None,
    layout: Layout,
) -> Step:
    """Make a step of its table and its directory; what it does not say, the task says."""
    root = reader.file.parent
    where = root / "steps" / item["name"]
    if not where.is_dir():
        raise reader.error(
            "steps", f"names {item['name']}", f"a directory steps/{item['name']} with its instruction.md"
        )
    own, _ = _first(root, where, layout.tests, reader.label)
    # A step without a script of its own is scored by the task's; one with its own may still use the task's files.
    has_own = own is not None and (own / "test.sh").is_file()
    tests = _with_script(reader, own if has_own else shared_tests, where, layout)
    workdir = subdirectory(root, f"steps/{item['name']}/workdir", reader.label)
    merged = {**verifier, **item.get("verifier", {})}
    merged["env"] = {**verifier.get("env", {}), **item.get("verifier", {}).get("env", {})}
    return Step(
        name=item["name"],
        instruction=_instruction(reader, where, None),
        agent=AgentPhase(**{**agent, **item.get("agent", {})}),
        verifier=VerifierPhase(**merged),
        tests=tests,
        shared_tests=shared_tests if tests is not shared_tests else own,
        solution=_first(root, where, layout.solution, reader.label)[0],
        setup=_existing(workdir, "setup.sh"),
        workdir=workdir,
        min_reward=item.get("min_reward"),
        healthcheck=item.get("healthcheck"),
        artifacts=item.get("artifacts", ()),
    )


def _skills(reader: Reader, environment: Environment, directory: Path | None) -> tuple[Path | None, tuple[str, ...]]:
    """Return the host directory of the task's skills and their names; an absolute skills_dir is a sandbox path."""
    root = reader.file.parent
    given = environment.skills_dir
    path = subdirectory(directory, "skills", reader.label) if directory else None
    if given and not given.startswith("/"):
        name = _relative(reader, "environment.skills_dir", given)
        path = subdirectory(root, name, reader.label) or path
        if path is None:
            raise reader.wrong(
                "environment.skills_dir", given, "a directory of the task, or an absolute path in the sandbox"
            )
    if path is None:
        return None, ()
    return path, tuple(sorted(entry.name for entry in path.iterdir() if (entry / "SKILL.md").is_file()))
