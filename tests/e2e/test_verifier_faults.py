"""A 0 that a verifier writes without having run a test is an error of its own; one that it decided is a score."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout
    from tests.e2e.conftest import MakeTask

ZERO = "echo 0 > /logs/verifier/reward.txt"
# A test runner of a few lines, so that the sandbox needs none: it imports the tests and prints as unittest does.
UNITTEST = f"cd /tests && python3 -m unittest test_outputs; {ZERO}"
OF_THE_AGENT = "import sys\nsys.path.insert(0, '/app')\nimport unittest\nimport solution\n"
CASE = "class Case(unittest.TestCase):\n    def test_answer(self):\n        self.assertEqual(solution.answer(), 42)\n"


def run(task: Path, tmp_path: Path, agent: str = "nop") -> Rollout:
    return asyncio.run(run_rollout(RolloutConfig(task=task, jobs_dir=tmp_path / "jobs", job_name="job", agent=agent)))


def make(make_task: MakeTask, verifier: str, tests: str | None = None) -> Path:
    task = make_task(verifier=f"#!/bin/bash\n{verifier}\n")
    (task / "instruction.md").write_text(
        "Write /app/solution.py with a function answer, and the program /app/out.sh.\n"
    )
    if tests is not None:
        (task / "tests" / "test_outputs.py").write_text(tests)
    return task


@pytest.mark.parametrize(
    ("verifier", "tests", "said"),
    [
        pytest.param(f"invented-jq .total /app/out.json; {ZERO}", None, "invented-jq", id="tool"),
        pytest.param(f"bash -c 'invented-jq .'; {ZERO}", None, "invented-jq", id="tool-in-a-command-string"),
        pytest.param(f"check() {{ uvx pytest; }}; check; {ZERO}", None, "uvx", id="runner"),
        pytest.param(f"python3 -c 'import missing_lib'; {ZERO}", None, "missing_lib", id="library-of-the-script"),
        pytest.param(
            UNITTEST, "import unittest\nimport invented_frame\n" + CASE, "invented_frame", id="library-of-a-test"
        ),
        pytest.param(UNITTEST, "import unittest\n", "Ran 0 tests", id="no-test"),
        pytest.param(f"python3 /tests/grader.py; {ZERO}", None, "/tests/grader.py", id="grader"),
        pytest.param(f"diff /tests/expected.txt /app/out.txt; {ZERO}", None, "/tests/expected.txt", id="expected-file"),
        pytest.param(
            f"echo 'collected 0 items' > /logs/verifier/test-stdout.txt; {ZERO}",
            None,
            "collected 0",
            id="own-output-file",
        ),
    ],
)
def test_a_zero_without_a_test_is_a_verifier_error(
    make_task: MakeTask, tmp_path: Path, verifier: str, tests: str | None, said: str
) -> None:
    rollout = run(make(make_task, verifier, tests), tmp_path)
    assert (rollout.verdict, rollout.reward) == ("unhealthy", None)
    assert rollout.result["verifier_error_category"] == "bootstrap"
    assert said in rollout.result["verifier_error"]


@pytest.mark.parametrize(
    ("verifier", "tests"),
    [
        pytest.param(f"diff <(echo 42) /app/answer; {ZERO}", None, id="comparison-in-shell"),
        pytest.param(f"[ -f /app/answer ] || {{ {ZERO}; exit 0; }}", None, id="silent"),
        pytest.param(f"/app/out.sh; {ZERO}", None, id="script-of-the-agents"),
        pytest.param(f"export PATH=/app:$PATH; out.sh; {ZERO}", None, id="program-of-the-agents"),
        pytest.param(UNITTEST, OF_THE_AGENT + CASE, id="module-of-the-agents"),
        pytest.param(f"cd /app && python3 -c 'from solution import answer'; {ZERO}", None, id="module-in-the-script"),
        pytest.param(
            UNITTEST,
            "import unittest\nclass Case(unittest.TestCase):\n    def test_it(self):\n"
            "        self.assertEqual('test.sh: line 1: pytest: command not found', '')\n",
            id="failed-test",
        ),
    ],
)
def test_a_zero_that_the_verifier_decided_is_a_score(
    make_task: MakeTask, tmp_path: Path, verifier: str, tests: str | None
) -> None:
    rollout = run(make(make_task, verifier, tests), tmp_path)
    assert (rollout.verdict, rollout.reward) == ("fail", 0), rollout.result["verifier_error"]


@pytest.mark.parametrize("broken", ["def answer(:\n", "import invented_frame\ndef answer():\n    return 42\n"])
def test_a_module_of_the_agents_that_cannot_be_imported_is_its_failure(
    make_task: MakeTask, tmp_path: Path, broken: str
) -> None:
    task = make(make_task, UNITTEST, OF_THE_AGENT + CASE)
    (task / "solution" / "solve.sh").write_text(f"#!/bin/sh\ncat > /app/solution.py <<'END'\n{broken}END\n")
    rollout = run(task, tmp_path, "oracle")
    assert (rollout.verdict, rollout.reward) == ("fail", 0), rollout.result["verifier_error"]


@pytest.mark.parametrize(
    ("instruction", "verdict"),
    [
        pytest.param("Install phpunit, so that it is on the PATH.\n", "fail", id="asked-to-install"),
        pytest.param("Write /app/answer.php.\n", "unhealthy", id="not-asked-to"),
    ],
)
def test_a_known_tool_is_the_verifiers_unless_the_task_asks_to_install_it(
    make_task: MakeTask, tmp_path: Path, instruction: str, verdict: str
) -> None:
    task = make(make_task, f"phpunit /app; {ZERO}")
    (task / "instruction.md").write_text(instruction)
    assert run(task, tmp_path).verdict == verdict


def test_what_the_environment_brought_was_the_agents_to_keep(make_task: MakeTask, tmp_path: Path) -> None:
    task = make(make_task, f"cd /app && python3 -c 'import freebusy'; {ZERO}")
    (task / "environment" / "app" / "freebusy").mkdir(parents=True)
    (task / "environment" / "app" / "freebusy" / "__init__.py").write_text("")
    (task / "environment" / "Dockerfile").write_text("FROM debian:12-slim\nWORKDIR /app\nCOPY app/ /app/\n")
    (task / "solution" / "solve.sh").write_text("#!/bin/sh\nrm -r /app/*\n")
    assert run(task, tmp_path, "oracle").verdict == "fail"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"#!/bin/sh\0\n", id="nul"),
        pytest.param(b"#!\xff/bin/sh\n", id="undecodable"),
        pytest.param(b"\xff\xfe\0e\0c\0h\0o", id="no-script-at-all"),
        pytest.param(b"#!/usr/bin/interpreter-of-nobody\n", id="unknown-interpreter"),
    ],
)
def test_a_test_script_that_cannot_start_is_a_verifier_error(make_task: MakeTask, tmp_path: Path, first: bytes) -> None:
    task = make_task()
    (task / "tests" / "test.sh").write_bytes(first + b"echo 1 > /logs/verifier/reward.txt\n")
    rollout = run(task, tmp_path)
    assert rollout.result["verdict_category"] == "verifier", rollout.result
    assert rollout.result["verifier_error_category"] == "crash"
    assert rollout.reward is None
