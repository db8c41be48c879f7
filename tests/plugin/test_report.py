"""What people read: outcomes, phases, evidence, the table, JUnit; the same under -n."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from tests.plugin.bench import SOLVE, TEST

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

BOTH = ("tasks", "--benchflow-agent=oracle", "--benchflow-agent=nop")
PHASES = ("sandbox", "agent", "verifier")


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_outcomes_table_and_evidence(bench: Bench, workers: str) -> None:
    bench.task()
    done = bench.run(*BOTH, "-n", workers)
    assert done.ret == 0
    counts = done.parseoutcomes()
    assert (counts["solved"], counts["unsolved"]) == (1, 1)
    done.stdout.fnmatch_lines(
        [
            "task * agent * verdict * reward * time*",
            "hello * nop * unsolved * 0 *",
            "hello * oracle * solved * 1 *",
            "2/2 healthy · 0 tool calls · 2/2 rewards present · * s",
            "directory: jobs/*",
        ]
    )
    assert all(len(line) <= 80 for line in done.outlines[done.outlines.index("=" * 35 + " rollouts " + "=" * 35) :])


def test_each_rollout_is_one_line_between_the_dots_of_its_checks(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", *BOTH[1:], "-k", "not check_ or check_result_readable or check_timing_recorded")
    start = next(number for number, line in enumerate(done.outlines) if line.startswith("collected "))
    lines = done.outlines[start + 1 :]
    shown = [re.sub(r"\d+\.\d s", "N s", line) for line in lines[:5]]
    assert [re.sub(r" +\[ *\d+%\]$", " [%]", line) for line in shown] == [
        "",
        "hello · oracle: sandbox · agent · verifier · solved  N s [%]",
        "tasks/hello/task.toml .. [%]",
        "hello · nop: sandbox · agent · verifier · unsolved  N s [%]",
        "tasks/hello/task.toml .. [%]",
    ]


def test_a_long_line_breaks_before_its_verdict(bench: Bench) -> None:
    bench.task("a-task-whose-name-is-rather-long-for-one-line")
    done = bench.run("tasks", "-k", "not check_ or check_timing_recorded", "--benchflow-agent=oracle")
    start = next(number for number, line in enumerate(done.outlines) if line.startswith("collected "))
    shown = [" ".join(re.sub(r"\d+\.\d s", "N s", line).split()) for line in done.outlines[start + 2 : start + 5]]
    assert shown == [
        "a-task-whose-name-is-rather-long-for-one-line · oracle: sandbox · agent ·",
        "verifier · solved N s [ 50%]",
        "tasks/a-task-whose-name-is-rather-long-for-one-line/task.toml . [100%]",
    ]


def test_a_line_for_each_rollout_under_xdist_and_none_when_quiet(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", *BOTH[1:], "-n", "2")
    for line in (
        r"hello · oracle: sandbox · agent · verifier · solved  \d+\.\d s +\[ *\d+%\]",
        r"hello · nop: sandbox · agent · verifier · unsolved  \d+\.\d s +\[ *\d+%\]",
    ):
        assert sum(re.fullmatch(line, found) is not None for found in done.outlines) == 1
    quiet = bench.run("tasks", "-m", "rollout", *BOTH[1:], "-q")
    assert quiet.outlines[0].startswith("Su ")
    assert "hello · oracle" not in quiet.stdout.str()


def test_each_line_under_xdist_has_its_percentage(bench: Bench) -> None:
    bench.task("fine")
    bench.task("unsolvable", solve="#!/bin/sh\ntrue\n")
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "-n", "2", "--benchflow-progress=off")
    start = next(number for number, line in enumerate(done.outlines) if line.endswith("workers [2 items]"))
    shown = sorted(
        re.sub(r"\d+\.\d s( F)? +\[ *\d+%\]$", r"N s\1 [%]", line) for line in done.outlines[start + 2 : start + 4]
    )
    assert shown == [
        "fine · oracle: sandbox · agent · verifier · solved  N s [%]",
        "unsolvable · oracle: sandbox · agent · verifier · unsolved  N s F [%]",
    ]
    assert done.outlines[start + 3].endswith("[100%]")
    assert done.outlines[start + 4] == ""


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_a_header_says_what_tests_written_by_hand_will_run(bench: Bench, workers: str) -> None:
    bench.task()
    file = bench.pytester.makepyfile(
        """
        import pytest


        def test_before():
            pass


        @pytest.mark.benchflow_task("tasks/hello")
        def test_it(rollout):
            pass
        """
    )
    bench.ini("benchflow_agent = oracle")
    done = bench.run(file.name, "-n", workers)
    assert done.ret == 0
    heads = [line for line in done.outlines if line.startswith("benchflow: oracle · replay · local · ")]
    assert len(heads) == 1
    assert not [line for line in bench.run(file.name, "-n", workers, "-k", "before").outlines if "benchflow: " in line]


def test_the_line_of_a_rollout_that_a_test_asks_for_leaves_room_for_its_letter(bench: Bench) -> None:
    bench.task()
    bench.pytester.makepyfile(
        """
        import pytest


        @pytest.mark.benchflow_task("tasks/hello")
        def test_it(rollout):
            pass
        """
    )
    done = bench.run("test_the_line_of_a_rollout_that_a_test_asks_for_leaves_room_for_its_letter.py", BOTH[1])
    done.stdout.fnmatch_lines(
        ["*.py*", "hello · oracle: sandbox · agent · verifier · solved  * s", "*letter.py .*[[]100%]"], consecutive=True
    )


def test_verdicts_have_colours(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", "-m", "rollout", *BOTH[1:], "--color=yes")
    text = done.stdout.str()
    assert text.count("\x1b[32msolved") == text.count("\x1b[33munsolved") == 2


def test_steps_are_named(bench: Bench) -> None:
    task = bench.task(
        toml='schema_version = "1.4"\n[verifier]\nnetwork_mode = "no-network"\n'
        '[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n'
    )
    for step in ("first", "second"):
        bench.write(
            task / "steps" / step,
            {"instruction.md": "Write done into /app/out.txt.\n", "tests/test.sh": TEST, "solution/solve.sh": SOLVE},
        )
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle")
    done.stdout.fnmatch_lines(
        ["hello · oracle: sandbox · first: agent · verifier · second: agent ·", "  verifier · solved  * s*"],
        consecutive=True,
    )


def test_a_line_for_each_phase_when_verbose(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "-v")
    done.stdout.fnmatch_lines(
        [
            *(f"hello · oracle · {phase}…" for phase in PHASES),
            "hello · oracle: sandbox * s · agent * s · verifier * s · solved  * s",
            "  1/1 healthy · * · reward present · * s",
            "tasks/hello/task.toml::rollout* SOLVED *",
        ],
        consecutive=True,
    )


def test_phases_and_evidence_of_workers(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "-v", "-n", "2")
    done.stdout.fnmatch_lines(
        ["hello · oracle: sandbox * s · * · verifier * s · solved *", "  1/1 healthy · *", "*SOLVED*"], consecutive=True
    )


def test_an_agent_that_runs_out_of_time_is_a_category_of_its_own(bench: Bench) -> None:
    bench.task()
    bench.pytester.makeconftest(
        """
        import asyncio

        from pytest_benchflow.contracts import AgentOutcome


        class Slow:
            name, version, uses_model, api_dialect = "slow", "1", False, None

            def unsupported(self, task):
                return None

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
    done.stdout.fnmatch_lines(["*TIMEOUT*", "hello * slow * timeout * 0 * hello__slow__none__default__1"])


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_what_was_skipped_is_told_below_the_table(bench: Bench, workers: str) -> None:
    bench.task("fine")
    for name in ("first", "second"):
        bench.write(bench.task(name), {"environment/Dockerfile": "FROM golang:1.22\n"})
    done = bench.run("tasks", "--benchflow-agent=nop", "-n", workers)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["skipped: 2 of 3 rollouts, which cannot run here", "  needs docker: FROM golang:1.22"])
    assert sum(line.startswith("  needs docker: ") for line in done.outlines) == 1


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
