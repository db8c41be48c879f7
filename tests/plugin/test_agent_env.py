"""--benchflow-agent-env: variables for the agent, by value or by the host's; secrets reach no record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tests.plugin.bench import Bench

SECRET = "invented-for-this-test-0123456789"
PASSWORD = "hunter2-of-a-proxy"

# Writes what it is given into the task's directory, where the verifier finds it.
AGENT = """
from pytest_benchflow.contracts import AgentOutcome


class Writer:
    version = "1"
    uses_model = False
    api_dialect = None

    def __init__(self, name):
        self.name = name

    def unsupported(self, task):
        return None

    async def install(self, backend, task, log_dir):
        return ()

    async def run(self, context):
        done = await context.sandbox.exec(
            ["sh", "-c", 'echo "$PLAIN $API_KEY" > /app/seen; test -n "$API_KEY" && echo done > /app/out.txt'],
            env=context.env,
        )
        return AgentOutcome(stop="finished" if done.exit_code == 0 else "crashed")


def pytest_benchflow_agents():
    return {"writer": Writer}
"""


def test_values_reach_the_agent_and_secrets_no_record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", SECRET)
    bench.task(
        test='#!/bin/sh\ncat /app/seen\n[ "$(cat /app/out.txt)" = done ] && echo 1 > /logs/verifier/reward.txt\n'
    )
    bench.pytester.makeconftest(AGENT)
    mirror = f"MIRROR=http://me:{PASSWORD}@mirror:8080/simple"
    options = [f"--benchflow-agent-env={each}" for each in ("PLAIN=some value", "API_KEY", mirror)]
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=writer", *options)
    assert done.parseoutcomes()["solved"] == 1
    (path,) = bench.rollouts()
    seen = (path / "verifier" / "test-stdout.txt").read_text()
    assert seen.startswith("some value ")
    for file in path.parent.rglob("*"):
        if file.is_file():
            for secret in (SECRET, PASSWORD):
                assert secret.encode() not in file.read_bytes(), file
    assert SECRET not in done.stdout.str()
    assert bench.config(path)["agent_env"]["PLAIN"] == "some value"


def test_lines_of_the_ini_file(bench: Bench) -> None:
    bench.task()
    bench.pytester.makeconftest(AGENT)
    bench.ini("benchflow_agent = writer", "benchflow_agent_env =", "    PLAIN=one", "    API_KEY=two")
    assert bench.run("tasks", "-m", "rollout").parseoutcomes()["solved"] == 1
