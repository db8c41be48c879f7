"""Describe a benchmark task, whichever layout it was written in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NetworkMode = Literal["public", "no-network", "allowlist"]


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What a phase may reach; `mode` None: the task says nothing."""

    mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """A command that must succeed before the agent starts; times in seconds."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


@dataclass(frozen=True, slots=True)
class McpServer:
    """A tool server that the agent is told of."""

    name: str
    transport: str
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine a task asks for; sizes in MiB, None: not said."""

    network: NetworkPolicy = NetworkPolicy()
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int = 0
    gpu_types: tuple[str, ...] = ()
    tpu: Mapping[str, Any] | None = None
    build_timeout_sec: float = 600.0
    mcp_servers: tuple[McpServer, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # host templates such as ${KEY}, unexpanded
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None


@dataclass(frozen=True, slots=True)
class AgentPhase:
    """How the agent runs."""

    timeout_sec: float | None = None
    user: str | int | None = None
    network: NetworkPolicy = NetworkPolicy()


@dataclass(frozen=True, slots=True)
class Collect:
    """A command whose output is kept after the agent ended."""

    command: str
    service: str | None = None
    timeout_sec: float = 60.0
    user: str | int | None = None


@dataclass(frozen=True, slots=True)
class VerifierPhase:
    """How the work is scored; `env` holds host templates, unexpanded."""

    timeout_sec: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | int | None = None
    network: NetworkPolicy = NetworkPolicy()
    environment_mode: Literal["shared", "separate"] = "shared"
    environment: Environment | None = None
    collect: tuple[Collect, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A path in the sandbox to keep after the agent ended."""

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One prompt of a task and what scores it. A task without steps has exactly one, named None."""

    name: str | None
    instruction: str
    agent: AgentPhase
    verifier: VerifierPhase
    tests: Path | None  # host directory; None: this step is not scored
    solution: Path | None
    shared_tests: Path | None = None  # of a step: laid at the tests' place first, `tests` over it
    setup: Path | None = None  # workdir/setup.sh, run before the agent
    workdir: Path | None = None  # files laid over the working directory before the step
    min_reward: float | Mapping[str, float] | None = None  # below it the later steps do not run
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()

    @property
    def test_script(self) -> Path | None:
        """Return the test.sh that scores this step: its own before the one all steps share."""
        places = (directory / "test.sh" for directory in (self.tests, self.shared_tests) if directory)
        return next((path for path in places if path.is_file()), None)


@dataclass(frozen=True, slots=True)
class Task:
    """One benchmark task; paths are absolute and inside `path`."""

    path: Path
    file: Path  # task.toml or task.md
    name: str  # as the file names it, else the directory's name
    form: Literal["harbor", "document"]
    schema_version: str
    steps: tuple[Step, ...]
    environment: Environment
    environment_dir: Path | None
    dockerfile: Path | None
    compose_file: Path | None
    skills: tuple[str, ...]  # names of the skills the task ships
    skills_path: Path | None  # host directory that holds them
    solution_env: Mapping[str, str]
    metadata: Mapping[str, Any]
    artifacts: tuple[Artifact, ...] = ()
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    description: str = ""
    keywords: tuple[str, ...] = ()
    source: Mapping[str, Any] | None = None
    # Where verifier and solution files go inside the sandbox: /tests and /solution, or /verifier and /oracle.
    tests_target: str = "/tests"
    solution_target: str = "/solution"
    warnings: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """Return the directory's name, which ids and rollout names are made from."""
        return self.path.name


def bare_task(file: Path, name: str, *, prompt: str = "", network: NetworkPolicy = NetworkPolicy()) -> Task:
    """Return a task that is nothing but a prompt, in the directory of `file`; nothing scores it."""
    step = Step(name=None, instruction=prompt, agent=AgentPhase(), verifier=VerifierPhase(), tests=None, solution=None)
    return Task(
        path=file.parent,
        file=file,
        name=name,
        form="harbor",
        schema_version="1.4",
        steps=(step,),
        environment=Environment(network=network),
        environment_dir=None,
        dockerfile=None,
        compose_file=None,
        skills=(),
        skills_path=None,
        solution_env={},
        metadata={},
    )
