"""Read the Harbor layout: task.toml (schema 1.0 to 1.4), instruction.md, environment/, tests/, solution/, steps/."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_benchflow.errors import TaskError
from pytest_benchflow.tasks._files import inside, subdirectory
from pytest_benchflow.tasks._reader import Reader
from pytest_benchflow.tasks._schema import ROOT_KEYS, SCHEMAS, relative
from pytest_benchflow.tasks.task import AgentPhase, Environment, Step, Task, VerifierPhase

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a form of task keeps its parts; directories are tried in order, each with its place in the sandbox."""

    form: Literal["harbor", "document"]
    tests: tuple[tuple[str, str], ...]
    solution: tuple[tuple[str, str], ...]


HARBOR = Layout("harbor", (("tests", "/tests"),), (("solution", "/solution"),))


def load_harbor(path: Path) -> Task:
    """Read the task directory `path` by its task.toml. Raises: TaskError naming file, key and what is allowed."""
    reader = Reader(path / "task.toml")
    try:
        data = tomllib.loads(read_text(reader.file, reader.label))
    except (ValueError, RecursionError) as error:  # also a number of too many digits, or tables nested too deeply
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
    package = _Package(reader, layout)
    inside(package.root, reader.file, reader.label)
    table = reader.table("", data, ROOT_KEYS)
    about = table.get("task", {})
    schema = table.get("schema_version", table.get("version", "1.0"))
    if schema not in SCHEMAS:
        reader.warn(f"schema_version {schema} is not known; it is read as {SCHEMAS[-1]}")
    environment: Environment = table.get("environment", Environment())
    environment_dir = package.directory("environment")
    package.directory("recorded")  # replay reads it: its links are checked too
    tests, tests_target = package.first(layout.tests)
    solution, solution_target = package.first(layout.solution)
    skills_path, skills = package.skills(environment)
    return Task(
        path=package.root,
        file=reader.file,
        name=about.get("name", package.root.name),
        form=layout.form,
        schema_version=schema,
        steps=package.steps(table, prompt, tests, solution),
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
        tests_target=tests_target,
        solution_target=solution_target,
        warnings=tuple(reader.warnings),
    )


def _existing(directory: Path | None, *names: str) -> Path | None:
    return next((directory / name for name in names if directory and (directory / name).is_file()), None)


class _Package:
    """Find the parts of one task directory."""

    def __init__(self, reader: Reader, layout: Layout) -> None:
        self.reader = reader
        self.layout = layout
        self.root = reader.file.parent

    def directory(self, name: str) -> Path | None:
        return subdirectory(self.root, name, self.reader.label)

    def first(self, choices: tuple[tuple[str, str], ...], below: str = "") -> tuple[Path | None, str]:
        """Return the first directory that exists and its place in the sandbox, else None and the first place."""
        for name, target in choices:
            found = self.directory(below + name)
            if found:
                return found, target
        return None, choices[0][1]

    def steps(
        self, table: Mapping[str, Any], prompt: str | None, tests: Path | None, solution: Path | None
    ) -> tuple[Step, ...]:
        """Return the declared steps, or the one that every other task has."""
        declared = table.get("steps", ())
        if not declared:
            self._require_script("", tests)
            step = Step(
                name=None,
                instruction=self._instruction("", prompt),
                agent=AgentPhase(**table.get("agent", {})),
                verifier=VerifierPhase(**table.get("verifier", {})),
                tests=tests,
                solution=solution,
            )
            return (step,)
        names = [item["name"] for item in declared]
        for name in names:
            if names.count(name) > 1:
                raise self.reader.error("steps", f"holds {name} twice", "each name once")
        return tuple(self._declared_step(item, table, tests) for item in declared)

    def _declared_step(self, item: Mapping[str, Any], table: Mapping[str, Any], shared: Path | None) -> Step:
        """Make a step of its table and its directory; what it does not say, the task says."""
        below = f"steps/{item['name']}/"
        if self.directory(below.rstrip("/")) is None:
            raise self.reader.error("steps", f"names {item['name']}", f"a directory {below} with its instruction.md")
        own, _ = self.first(self.layout.tests, below)
        self._require_script(below, own, shared)
        verifier = {**table.get("verifier", {}), **item.get("verifier", {})}
        verifier["env"] = {**table.get("verifier", {}).get("env", {}), **item.get("verifier", {}).get("env", {})}
        workdir = self.directory(below + "workdir")
        return Step(
            name=item["name"],
            instruction=self._instruction(below, None),
            agent=AgentPhase(**{**table.get("agent", {}), **item.get("agent", {})}),
            verifier=VerifierPhase(**verifier),
            tests=own or shared,
            shared_tests=shared if own else None,
            solution=self.first(self.layout.solution, below)[0],
            setup=_existing(workdir, "setup.sh"),
            workdir=workdir,
            min_reward=item.get("min_reward"),
            healthcheck=item.get("healthcheck"),
            artifacts=item.get("artifacts", ()),
        )

    def _instruction(self, below: str, prompt: str | None) -> str:
        if prompt is None:
            name = below + "instruction.md"
            file = self.root / name
            if not file.is_file():
                raise TaskError(f"{self.reader.label}: there is no {name}; a task needs its instruction there")
            inside(self.root, file, self.reader.label)
            prompt = read_text(file, f"{self.root.name}/{name}")
        if not prompt.strip():
            raise TaskError(f"{self.reader.label}: the instruction is empty; write there what the agent is to do")
        return prompt

    def _require_script(self, below: str, *directories: Path | None) -> None:
        if not any(_existing(directory, "test.sh") for directory in directories):
            places = " or ".join(f"{below}{name}/test.sh" for name, _ in self.layout.tests)
            raise TaskError(f"{self.reader.label}: there is no verifier; a task needs {places}, which writes a reward")

    def skills(self, environment: Environment) -> tuple[Path | None, tuple[str, ...]]:
        """Return the host directory of the task's skills and their names; an absolute skills_dir is a sandbox path."""
        path = self.directory("environment/skills")
        given = environment.skills_dir
        if given and not given.startswith("/"):
            relative(self.reader, "environment.skills_dir", given)
            path = self.directory(given) or self.directory(f"environment/{given}")
            if path is None:
                allowed = "a directory of the task, or an absolute path in the sandbox"
                raise self.reader.wrong("environment.skills_dir", given, allowed)
        if path is None:
            return None, ()
        return path, tuple(sorted(entry.name for entry in path.iterdir() if (entry / "SKILL.md").is_file()))
