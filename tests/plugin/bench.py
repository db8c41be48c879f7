"""Write tiny tasks and run pytest over them, as a user would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema

from pytest_benchflow import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

SUMMARY_SCHEMA = json.loads((Path(records.__file__).with_name("summary.schema.json")).read_text("utf-8"))

# The work is to write "done" into /app/out.txt; the reward is 1 for it and 0 for anything else.
TASK_TOML = 'schema_version = "1.4"\n[verifier]\nnetwork_mode = "no-network"\n'
SOLVE = "#!/bin/sh\necho done > /app/out.txt\n"
TEST = """\
#!/bin/sh
if [ "$(cat /app/out.txt 2>/dev/null)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
# Would fail the session if pytest on the host ever looked at it.
TRAP = 'raise SystemExit("a file of a task was imported on the host")\n'

SOLVED = "rollout[oracle-none-default-1]"
UNSOLVED = "rollout[nop-none-default-1]"


def outcomes(done: pytest.RunResult) -> dict[str, int]:
    """Return the counts of the last line, without what was deselected."""
    return {name: count for name, count in done.parseoutcomes().items() if name != "deselected"}


@dataclass
class Bench:
    """A directory with tasks, and the runs over it."""

    pytester: pytest.Pytester

    @property
    def path(self) -> Path:
        return self.pytester.path

    def task(
        self, name: str = "hello", *, toml: str = TASK_TOML, solve: str = SOLVE, test: str = TEST, under: str = "tasks"
    ) -> Path:
        """Write a task whose own Python files must never be imported here."""
        directory = self.path / under / name
        self.write(
            directory,
            {
                "task.toml": toml,
                "instruction.md": "Write done into /app/out.txt.\n",
                "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n",
                "solution/solve.sh": solve,
                "solution/test_solution.py": TRAP,
                "tests/test.sh": test,
                "tests/test_outputs.py": TRAP,
                "tests/conftest.py": TRAP,
            },
        )
        return directory

    def write(self, directory: Path, files: Mapping[str, str]) -> None:
        for name, content in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            path.chmod(0o755 if name.endswith(".sh") else 0o644)

    def ini(self, *lines: str) -> None:
        (self.path / "pytest.ini").write_text("\n".join(["[pytest]", *lines]) + "\n", encoding="utf-8")

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in a process of its own; whatever it came to, each summary it wrote has the form that is told."""
        done = self.pytester.runpytest_subprocess(*arguments)
        for summary in filter(Path.is_file, self.path.glob("*/*/summary.json")):
            jsonschema.validate(json.loads(summary.read_text("utf-8")), SUMMARY_SCHEMA)
        return done

    def look(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in this process: for what ends before a rollout begins."""
        return self.pytester.runpytest_inprocess(*arguments)

    def ids(self, *arguments: str) -> list[str]:
        """Return the node ids that are collected."""
        done = self.look("--collect-only", "-q", *arguments)
        return [line for line in done.outlines if "::" in line]

    def refused(self, *arguments: str, says: str) -> None:
        """Assert that pytest refuses to start with a sentence that holds `says`, and no traceback."""
        done = self.look(*arguments)
        assert done.ret == 4, done.outlines
        text = " ".join([*done.errlines, *done.outlines])
        assert says in text
        assert "Traceback" not in text

    def rollouts(self, jobs: str = "jobs") -> list[Path]:
        """Return the directories of all rollouts, over all jobs."""
        return sorted(path.parent for path in (self.path / jobs).glob("*/*/result.json"))

    def result(self, path: Path) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((path / "result.json").read_text("utf-8"))
        return value

    def config(self, path: Path) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((path / "config.json").read_text("utf-8"))
        return value
