"""Several rollouts of a process in flight: what is reported, recorded, stopped and kept apart."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.bench import Bench

_LIMIT_SEC = 60.0
SCRIPTED = ("--benchflow-agent=nop", "--benchflow-sandbox=scripted", "-m", "rollout")
# An agent that waits as its task's name says: `slow` until four others have ended, `stuck` for ever.
CONFTEST = """
import asyncio
import logging
import os
import signal
import warnings
from pathlib import Path

from pytest_benchflow.agents.nop import Nop

JOBS = Path(__file__).parent / "jobs"


class Waits(Nop):
    name = "waits"

    async def run(self, context):
        logging.getLogger("of-an-agent").warning("said by %s", context.task.name)
        warnings.warn(f"warned of {context.task.name}", stacklevel=1)
        if "always" in context.task.name or ("kills" in context.task.name and not (JOBS / "killed").exists()):
            with (JOBS / "killed").open("a") as file:
                file.write(context.task.name)
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(1200):
            ended = len(list(JOBS.glob("*/*/result.json")))
            if "stuck" not in context.task.name and (ended >= 4 or "slow" not in context.task.name):
                return await super().run(context)
            await asyncio.sleep(0.05)
        raise TimeoutError("nobody else went on")


def pytest_benchflow_agents():
    return {"waits": lambda name: Waits()}
"""
WAITING = ("--benchflow-agent=waits", "--benchflow-sandbox=scripted", "-m", "rollout")


def tasks(bench: Bench, *names: str) -> None:
    (bench.path / "conftest.py").write_text(CONFTEST, "utf-8")
    for name in names:
        bench.task(name)


def told(done: pytest.RunResult) -> list[str]:
    """Return the tasks whose rollouts were told of, in order."""
    return re.findall(r"^(\S+) · \w+: .*(?:unsolved|error|idle|timeout)  ", done.stdout.str(), re.MULTILINE)


def without_times(value: Any) -> Any:
    """Return what must not depend on how many rollouts ran at once: all but when, how long and where by which process.

    Whole numbers and names stay; ids and fractions of seconds go.
    """
    moving = {"started_at", "finished_at", "timing", "session_id", "settings", "time", "seconds", "sandbox_id"}
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in moving}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def job_files(job: Path) -> dict[str, Any]:
    """Return a job's own files and its rollouts' results."""
    lines = [json.loads(line) for line in (job / "results.jsonl").read_text("utf-8").splitlines()]
    found: dict[str, Any] = {"results.jsonl": lines}
    for path in (job / "job.json", job / "summary.json", *sorted(job.glob("*/result.json"))):
        found[str(path.relative_to(job))] = json.loads(path.read_text("utf-8"))
    found["names"] = sorted(path.name for path in job.iterdir() if not path.name.startswith("."))
    found["job.json"].pop("job_name")
    return {name: without_times(value) for name, value in found.items()}


def test_nothing_depends_on_how_many_are_in_flight(bench: Bench) -> None:
    for number in range(5):
        bench.task(f"task-{number}")
    jobs = {}
    for name, how in {
        "one": (),
        "eight": ("--benchflow-concurrency=8",),
        "finished": ("--benchflow-concurrency=3", "--benchflow-order=finished"),
        "workers": ("-n", "2"),
        "both": ("-n", "2", "--benchflow-concurrency=4"),
    }.items():
        done = bench.run("tasks", *SCRIPTED, "--benchflow-trials=2", f"--benchflow-job-name={name}", *how)
        assert done.ret == 0, done.outlines
        assert done.parseoutcomes()["unsolved"] == 10
        jobs[name] = job_files(bench.path / "jobs" / name)
    assert all(job == jobs["one"] for job in jobs.values())
    result = jobs["one"]["task-0__nop__none__default__1/result.json"]
    assert (result["verdict"], result["rewards"]) == ("fail", {"reward": 0.0})


def test_others_go_on_while_one_is_waited_for_and_are_reported_in_order(bench: Bench) -> None:
    tasks(bench, "a-slow", "b", "c", "d", "e")
    done = bench.run("tasks", *WAITING, "--benchflow-concurrency=2")
    assert done.ret == 0, done.outlines
    assert told(done) == ["a-slow", "b", "c", "d", "e"]
    assert [line for line in done.outlines if line.count("%]") > 1] == []
    assert bench.result(bench.rollouts()[0])["error"] is None


def test_what_is_finished_first_may_be_reported_first(bench: Bench) -> None:
    tasks(bench, "a-slow", "b", "c", "d", "e")
    (bench.path / "test_plain.py").write_text("def test_of_something_else(): pass\n", "utf-8")
    how = ("--benchflow-concurrency=2", "--benchflow-order=finished", "--benchflow-progress=off")
    done = bench.run("tasks", "test_plain.py", *WAITING[:2], *how)
    assert done.ret == 0, done.outlines
    assert told(done).index("a-slow") >= 3
    assert sorted(told(done)) == ["a-slow", "b", "c", "d", "e"]
    assert done.parseoutcomes()["unsolved"] == 5
    # Each rollout's checks follow it, whatever comes first.
    heads = re.findall(r"^(?:tasks/)?([a-e](?:-slow)?)(?: · |/task.toml )", done.stdout.str(), re.MULTILINE)
    assert [name for number, name in enumerate(heads) if number % 2] == told(done)


def test_fixtures_of_modules_fit_what_runs_in_the_order_of_ends(bench: Bench) -> None:
    tasks(bench, "one", "two-slow", "three", "four", "five")
    for name in ("one", "two-slow", "three", "four", "five"):
        (bench.path / f"test_{name.replace('-', '_')}.py").write_text(
            "import pytest\n"
            "STATE = []\n"
            "@pytest.fixture(scope='module', autouse=True)\n"
            "def stage():\n"
            "    assert not STATE\n"
            "    STATE.append('up')\n"
            "    yield\n"
            "    assert STATE.pop() == 'up'\n"
            f"@pytest.mark.benchflow_task('tasks/{name}')\n"
            "def test_first(rollout): assert STATE == ['up'] and rollout.healthy\n"
            f"@pytest.mark.benchflow_task('tasks/{name}')\n"
            "def test_second(rollout): assert STATE == ['up'] and rollout.healthy\n",
            "utf-8",
        )
    files = sorted(path.name for path in bench.path.glob("test_*.py"))
    how = ("--benchflow-concurrency=3", "--benchflow-order=finished")
    done = bench.run(*files, "tasks", *WAITING[:2], *how, "-k", "test_ or rollout")
    assert done.ret == 0, done.outlines
    assert done.parseoutcomes()["passed"] >= 10
    assert len(bench.rollouts()) == 5


def test_x_begins_nothing_more_and_records_what_was_in_flight(bench: Bench) -> None:
    tasks(bench, "a", "b-stuck", "c-stuck", "d-stuck", "e", "f")
    done = bench.run("tasks", *WAITING, "--benchflow-concurrency=3", "--benchflow-gate=reward", "-x")
    assert done.ret == 1, done.outlines
    assert done.parseoutcomes()["failed"] == 1
    results = {path.name.partition("__")[0]: bench.result(path) for path in bench.rollouts()}
    assert results.pop("a")["verdict"] == "fail"
    assert set(results) <= {"b-stuck", "c-stuck", "d-stuck"}
    assert {result["error_category"] for result in results.values()} == {"interrupted"}
    lines = [line.partition(": jobs/")[0] for line in done.outlines if ": jobs/" in line and "__waits__" in line]
    assert lines == ["interrupted"] * len(results)
    # Each that was begun has its records.
    assert len(results) + 1 == len(list(bench.path.glob("jobs/*/*/config.json")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_an_interrupt_ends_all_that_are_in_flight(bench: Bench, number: signal.Signals) -> None:
    tasks(bench, "a-stuck", "b-stuck", "c-stuck", "d-stuck", "e-stuck")
    scratch = bench.path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pytest", "tasks", *WAITING, "--benchflow-concurrency=4"]
    environment = {**os.environ, "COLUMNS": "80", "TMPDIR": str(scratch)}
    with subprocess.Popen(command, cwd=bench.path, env=environment, stdout=subprocess.PIPE, text=True) as run:
        end = time.monotonic() + _LIMIT_SEC
        while len(list(bench.path.glob("jobs/*/*/prompts.json"))) < 4:
            assert time.monotonic() < end, "the rollouts did not start"
            time.sleep(0.1)
        run.send_signal(number)
        output, _ = run.communicate(timeout=_LIMIT_SEC)
    assert run.returncode == 2
    results = [bench.result(path) for path in bench.rollouts()]
    assert [result["error_category"] for result in results] == ["interrupted"] * 4
    assert output.count("interrupted: jobs/") == 4
    assert not list(scratch.glob("*/*"))


def test_what_rollouts_say_is_in_the_sections_of_their_own_items(bench: Bench) -> None:
    tasks(bench, "a-slow", "b", "c", "d", "e")
    done = bench.run("tasks", *WAITING, "--benchflow-concurrency=5", "--benchflow-gate=reward")
    assert done.parseoutcomes()["failed"] == 5
    failures = done.stdout.str().partition("= FAILURES =")[2].partition("= warnings summary =")
    sections = re.split(r"^_+ .*?(?=rollout\[)", failures[0], flags=re.MULTILINE)[1:]
    said = [re.findall(r"said by (\S+)", section) for section in sections]
    assert said == [[name] for name in ("a-slow", "b", "c", "d", "e")]
    # A warning is told with the item that it came in.
    warned = re.findall(r"tasks/(\S+?)/task.toml::rollout\S+\n(?:.*\n)*?.*warned of (\S+)", failures[2])
    assert warned
    assert all(item == of for item, of in warned)


def test_nothing_is_looked_ahead_that_may_be_skipped_or_changed(bench: Bench) -> None:
    tasks(bench, "a", "b-stuck", "c-stuck", "d")
    (bench.path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.benchflow_task('tasks/a')\n"
        "def test_first(rollout): assert rollout.healthy\n"
        "@pytest.mark.skipif(True, reason='not here')\n"
        "@pytest.mark.benchflow_task('tasks/b-stuck')\n"
        "def test_skipped(rollout): pass\n"
        "class TestOther:\n"
        "    @pytest.fixture\n"
        "    def agent(self): return 'nop'\n"
        "    @pytest.mark.benchflow_task('tasks/c-stuck')\n"
        "    def test_changed(self, rollout): assert rollout.healthy\n"
        "@pytest.fixture\n"
        "def guard(): pytest.skip('not today')\n"
        "@pytest.mark.benchflow_task('tasks/d')\n"
        "def test_guarded(guard, rollout): pass\n",
        "utf-8",
    )
    done = bench.run("test_some.py", *WAITING[:2], "--benchflow-concurrency=4")
    assert {**done.parseoutcomes(), "warnings": 1} == {"passed": 2, "skipped": 2, "warnings": 1}, done.outlines
    names = [path.name.partition("__")[::2] for path in bench.rollouts()]
    assert names == [("a", "waits__none__default__1"), ("c-stuck", "nop__none__default__1")]


def test_a_worker_that_dies_with_several_in_flight_loses_none(bench: Bench) -> None:
    tasks(bench, "a", "b-kills", "c", "d", "e", "f", "g", "h")
    done = bench.run("tasks", *WAITING, "-n", "2", "--benchflow-concurrency=3")
    assert done.ret == 1
    assert "crashed" in done.stdout.str()
    results = {path.name.partition("__")[0]: bench.result(path) for path in bench.rollouts()}
    healthy = {name for name, result in results.items() if result["verdict"] == "fail"}
    assert set(results) == {"a", "b-kills", "c", "d", "e", "f", "g", "h"}
    # Of the rollouts in flight in the dead worker only the one whose item ran is not run again.
    assert len(healthy) >= 7, results


def test_a_task_that_kills_its_worker_is_run_once_and_its_checks_say_what_happened(bench: Bench) -> None:
    tasks(bench, "always-kills", "b")
    done = bench.run("tasks", *WAITING[:2], "-n", "2", "-k", "rollout or reward_is_finite or config_readable", "-rfp")
    assert done.ret == 1
    assert (bench.path / "jobs/killed").read_text("utf-8") == "always-kills"
    result = bench.result(bench.rollouts()[0])
    assert (result["verdict"], result["error_category"]) == ("unhealthy", "interrupted")
    assert result["error"] == "the worker process that ran this rollout was killed"
    assert not (bench.rollouts()[0] / "attempts").exists()
    told = re.findall(r"^(FAILED|PASSED|SKIPPED) tasks/always-kills/task.toml::(\w+)", done.stdout.str(), re.MULTILINE)
    assert sorted(told) == [
        ("FAILED", "check_reward_is_finite"),
        ("FAILED", "rollout"),
        ("PASSED", "check_config_readable"),
    ], done.outlines
    assert "unhealthy (infra)" in done.stdout.str()
    # What a healthy rollout warns of is told too.
    assert "warning of 1 rollout: the scripted sandbox ran no command" in done.stdout.str()


def test_what_a_worker_ran_when_it_died_is_named_though_nothing_is_handed_on(bench: Bench) -> None:
    tasks(bench, "always-kills")
    done = bench.run("tasks", *WAITING, "-n", "1")
    assert done.ret == 1
    assert any(re.match(r"interrupted: jobs/.*/always-kills__waits__none__default__1", line) for line in done.outlines)


@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_a_number_of_rollouts_is_refused_that_is_none(bench: Bench, value: str) -> None:
    bench.task()
    says = f"--benchflow-concurrency is {value if value != 'many' else repr(value)}; it takes a whole number"
    bench.refused("tasks", *SCRIPTED, f"--benchflow-concurrency={value}", says=says)
