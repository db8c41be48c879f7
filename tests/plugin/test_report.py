"""What people read: outcomes, phases, evidence, the table, JUnit; the same under -n."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

BOTH = ("tasks", "--benchflow-agent=oracle", "--benchflow-agent=nop")
PHASES = ("install", "sandbox", "agent", "verifier", "records")


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_outcomes_table_and_evidence(bench: Bench, workers: str) -> None:
    bench.task()
    done = bench.run(*BOTH, "-n", workers)
    assert done.ret == 0
    counts = done.parseoutcomes()
    assert (counts["solved"], counts["unsolved"]) == (1, 1)
    done.stdout.fnmatch_lines(
        [
            "task * agent * model * verdict * reward * steps * tokens * cost * time * directory",
            "hello * nop * unsolved * 0 * jobs/*/hello__nop__none__default__1",
            "hello * oracle * solved * 1 * jobs/*/hello__oracle__none__default__1",
            "2/2 healthy · 0 tool calls · 2/2 rewards present · * s",
        ]
    )


def test_phases_on_one_line_or_on_a_line_each(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle")
    assert f"hello · oracle: {' · '.join(PHASES)}S" in done.stdout.str()
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "-v")
    done.stdout.fnmatch_lines([f"hello · oracle · {phase}…" for phase in PHASES], consecutive=True)
    done.stdout.fnmatch_lines(["hello · oracle · solved · 1/1 healthy · * · reward present · * s", "*SOLVED*"])
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "-q")
    assert "hello · oracle" not in done.stdout.str()


def test_phases_and_evidence_of_workers(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "-v", "-n", "2")
    done.stdout.fnmatch_lines(
        ["hello · oracle · install * s · * · verifier * s*", "hello · oracle · solved · 1/1 healthy · *", "*SOLVED*"]
    )


def test_an_agent_that_runs_out_of_time_is_a_category_of_its_own(bench: Bench) -> None:
    bench.task()
    bench.pytester.makeconftest(
        """
        import asyncio

        from pytest_benchflow.contracts import AgentOutcome


        class Slow:
            name, version, uses_model, api_dialect = "slow", "1", False, None

            async def install(self, backend, task, log_dir):
                return ()

            async def run(self, context):
                done = await context.sandbox.exec(["sleep", "60"], timeout=context.timeout_sec)
                return AgentOutcome(stop="timeout" if done.timed_out else "finished", idle_before_timeout_s=0.1)


        def pytest_benchflow_agents():
            return {"slow": lambda name: Slow()}
        """
    )
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=slow", "--benchflow-agent-timeout=1", "-v")
    assert done.ret == 0, done.outlines
    assert done.parseoutcomes()["timeout"] == 1
    done.stdout.fnmatch_lines(["*TIMEOUT*", "hello * slow * timeout * 0 *"])


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_junit_has_the_row_as_properties(bench: Bench, workers: str) -> None:
    bench.task()
    assert bench.run("tasks", "--benchflow-agent=oracle", "--junitxml=out.xml", "-n", workers).ret == 0
    cases = {case.get("name"): case for case in ET.parse(bench.path / "out.xml").iter("testcase")}  # noqa: S314
    rollout = cases["rollout[oracle-none-default-1]"]
    assert rollout.get("classname") == "tasks.hello.task.toml"
    found = {item.get("name"): item.get("value") for item in rollout.iter("property")}
    assert str(found.pop("benchflow_directory")).endswith("hello__oracle__none__default__1")
    assert float(found.pop("benchflow_time") or "nan") > 0
    assert found == {
        "benchflow_task": "hello",
        "benchflow_agent": "oracle",
        "benchflow_model": "none",
        "benchflow_verdict": "pass",
        "benchflow_reward": "1.0",
        "benchflow_steps": "0",
        "benchflow_tokens": "0",
        "benchflow_cost": "0",
    }
    assert not list(cases["check_result_readable[oracle-none-default-1]"].iter("property"))


def test_a_header_says_what_will_run_where_tasks_are_asked_for(bench: Bench) -> None:
    bench.task()
    bench.pytester.makepyfile("def test_pass(): pass")
    done = bench.look("tasks", "--collect-only", "--benchflow-agent=nop", "--benchflow-trials=3")
    done.stdout.fnmatch_lines(["benchflow: nop · replay · 3 trials · local · *jobs*"])
    assert "benchflow: " not in bench.look().stdout.str()


def test_task_names_cannot_command_the_terminal(bench: Bench) -> None:
    escape = "\\u001b]0;taken\\u0007"
    bench.task(toml=f'schema_version = "1.4"\n[task]\nname = "acme/x{escape}"\n')
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop", "-v")
    assert "\x1b]0;" not in done.stdout.str() + done.stderr.str()
