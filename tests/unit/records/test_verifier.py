from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.records.verifier import dead_bootstrap

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "output",
    [
        pytest.param("test.sh: line 9: pytest: command not found", id="runner-missing"),
        pytest.param("sh: 3: uvx: not found", id="dash-wording"),
        pytest.param("/tests/test.sh: line 3: /root/.local/bin/uvx: No such file or directory", id="path-wording"),
        pytest.param("env: 'uvx': No such file or directory", id="env-wording"),
        pytest.param("curl: (56) CONNECT tunnel failed, response 502", id="behind-a-proxy"),
        pytest.param("curl: (6) Could not resolve host: astral.sh", id="no-name-service"),
        pytest.param("ERROR: No matching distribution found for pytest==8.4.1", id="no-package"),
        pytest.param("E: Unable to locate package jq", id="apt"),
        pytest.param("/usr/bin/python3: No module named pytest", id="no-module"),
    ],
)
def test_a_verifier_that_lacks_its_own_tools_is_dead(tmp_path: Path, output: str) -> None:
    for name in ("test-stdout.txt", "test-stderr.txt"):
        (tmp_path / name).write_text(output)
        assert dead_bootstrap(tmp_path)
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    "output",
    [
        pytest.param("test.sh: line 4: /app/tool: No such file or directory", id="the-agent-made-no-tool"),
        pytest.param("test.sh: line 4: wordfreq: command not found", id="the-agent-installed-nothing"),
        pytest.param("the answer was: python3: command not found", id="the-agent-quotes-a-shell"),
        pytest.param("curl: (7) Failed to connect to localhost port 8080", id="the-agents-server-is-down"),
        pytest.param("pytest: command not found\n2 failed, 1 passed in 0.1s", id="tests-ran-all-the-same"),
        pytest.param("Ran 3 tests in 0.01s\n\nFAILED (failures=3)\nNo module named pytest", id="unittest-ran"),
    ],
)
def test_a_failed_test_is_not_a_dead_verifier(tmp_path: Path, output: str) -> None:
    (tmp_path / "test-stdout.txt").write_text(output)
    assert dead_bootstrap(tmp_path) is None


def test_a_report_of_executed_tests_is_proof_of_life(tmp_path: Path) -> None:
    (tmp_path / "ctrf.json").write_text('{"results": {"summary": {"tests": 2}}}')
    (tmp_path / "test-stderr.txt").write_text("test.sh: line 1: pytest: command not found")
    assert dead_bootstrap(tmp_path) is None
