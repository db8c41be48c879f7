"""job.json: what a run is going to do, written before anything does it; the same under -n."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import __version__
from pytest_benchflow.tasks.load import load_task, task_digest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

WORKERS = pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
BOTH = ("--benchflow-agent=oracle", "--benchflow-agent=nop")

# An agent that keeps what job.json holds while it runs.
LOOKER = """
import json
from pathlib import Path

from pytest_benchflow.contracts import AgentOutcome

HERE = Path(__file__).parent


class Looker:
    name, version, uses_model, api_dialect = "looker", "1", False, None

    def unsupported(self, task):
        return None

    async def install(self, backend, task, log_dir):
        return ()

    async def run(self, context):
        job = json.loads((HERE / "jobs/first/job.json").read_text())
        (HERE / f"seen-{context.task.path.name}").write_text(json.dumps(job))
        return AgentOutcome(stop="finished")


def pytest_benchflow_agents():
    return {"looker": lambda name: Looker()}
"""


def job(bench: Bench, name: str = "first") -> dict[str, Any]:
    value: dict[str, Any] = json.loads((bench.path / "jobs" / name / "job.json").read_text("utf-8"))
    return value


@WORKERS
def test_the_plan_is_there_before_anything_runs(bench: Bench, workers: str) -> None:
    bench.task("one")
    bench.task("two")
    bench.pytester.makeconftest(LOOKER)
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=looker", "--benchflow-job-name=first", "-n", workers)
    assert done.ret == 0, done.outlines
    after = job(bench)
    for name in ("one", "two"):
        seen = json.loads((bench.path / f"seen-{name}").read_text())
        assert seen == {**after, "finished_at": None}
    assert after["finished_at"] > after["started_at"]
    assert after["versions"]["pytest_benchflow"] == __version__
    assert after["settings"]["agents"] == ["looker"]


@WORKERS
def test_matrix_and_digests_follow_from_what_is_asked_for(bench: Bench, workers: str) -> None:
    tasks = {name: bench.task(name) for name in ("alpha", "beta", "gamma")}
    asked = ("-m", "rollout", "-k", "alpha or beta", *BOTH, "--benchflow-agent=baseline", "--benchflow-trials=2")
    assert bench.run("tasks", *asked, "--benchflow-job-name=first", "-n", workers).ret == 0
    found = job(bench)
    cells = [("baseline", "replay"), ("nop", "none"), ("oracle", "none")]
    assert found["matrix"] == [
        {
            "rollout": f"{task}__{agent}__{model}__default__{trial}",
            "task": task,
            "task_path": str(tasks[task]),
            "agent": agent,
            "model": model,
            "skills": "default",
            "reasoning_effort": None,
            "trial": trial,
            "canary": False,
        }
        for task in ("alpha", "beta")
        for agent, model in cells
        for trial in (1, 2)
    ]
    digests = {str(tasks[name]): task_digest(load_task(tasks[name])) for name in ("alpha", "beta")}
    assert found["digests"]["tasks"] == digests
    agents = found["digests"]["agents"]
    assert {name: digest is None for name, digest in agents.items()} == {"baseline": False, "nop": True, "oracle": True}
    (tasks["alpha"] / "instruction.md").write_text("Write done into /app/out.txt, please.\n")
    assert bench.run("tasks", *asked, "--benchflow-job-name=changed", "-n", workers).ret == 0
    changed = job(bench, "changed")["digests"]["tasks"]
    assert [name for name in digests if changed[name] != digests[name]] == [str(tasks["alpha"])]


@WORKERS
def test_a_further_run_is_added_to_the_first(bench: Bench, workers: str) -> None:
    bench.task()
    named = ("tasks", "-m", "rollout", "--benchflow-job-name=first", "-n", workers)
    assert bench.run(*named, "--benchflow-agent=oracle").ret == 0
    first = job(bench)
    assert bench.run(*named, "--benchflow-agent=nop", "--benchflow-trials=2").ret == 0
    both = job(bench)
    (further,) = both.pop("further_runs")
    assert both == {name: value for name, value in first.items() if name != "further_runs"}
    assert further["settings"]["trials"] == 2
    assert [cell["rollout"] for cell in further["matrix"]] == [f"hello__nop__none__default__{n}" for n in (1, 2)]
    assert further["finished_at"] > first["finished_at"]
    assert len({first["session_id"], further["session_id"]}) == 2


@WORKERS
def test_values_of_variables_for_agents_are_not_written(
    bench: Bench, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAINLY_NAMED", "host-value-271828")
    bench.task()
    variables = ("--benchflow-agent-env=PLAINLY_NAMED", "--benchflow-agent-env=JUDGE_KEY=given-value-314159")
    asked = ("tasks", "-m", "rollout", "--benchflow-agent=nop", "--benchflow-job-name=first", *variables)
    assert bench.run(*asked, "--benchflow-price=given-value-314159=1,2", "-n", workers).ret == 0
    written = (bench.path / "jobs" / "first" / "job.json").read_text()
    assert "host-value-271828" not in written
    assert "given-value-314159" not in written
    settings = json.loads(written)["settings"]
    assert settings["agent_env"] == ["PLAINLY_NAMED", "JUDGE_KEY"]
    assert settings["price"] == ["[REDACTED]=1,2"]


@WORKERS
def test_tests_written_by_hand_are_planned_too(bench: Bench, workers: str) -> None:
    bench.task()
    bench.pytester.makepyfile(
        """
        import pytest


        @pytest.mark.benchflow_task("tasks/hello")
        def test_it(rollout):
            pass


        @pytest.mark.benchflow_task("tasks/hello")
        def test_without_a_rollout(task):
            pass
        """
    )
    agents = ("--benchflow-agent=nop", "--benchflow-agent=oracle")
    file = next(bench.path.glob("test_*.py")).name
    done = bench.run(file, *agents, "--benchflow-job-name=first", "-n", workers)
    assert done.ret == 0, done.outlines
    found = job(bench)
    assert [cell["agent"] for cell in found["matrix"]] == ["nop", "oracle"]
    assert found["finished_at"]
    assert (bench.path / "jobs/first/summary.json").is_file()


def test_what_somebody_else_calls_job_json_is_left_alone(bench: Bench) -> None:
    bench.task()
    bench.write(bench.path / "jobs/first", {"job.json": '{"title": "clerk"}'})
    done = bench.run("tasks", "--benchflow-agent=nop", "--benchflow-job-name=first")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "is no file of this program" in done.stderr.str()
    assert job(bench) == {"title": "clerk"}


# At the end of a run something stands where one of the job's own files goes.
BLOCKER = """
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    Path("jobs/first/summary.json/x").mkdir(parents=True)
"""


def test_a_run_whose_own_files_cannot_be_written_fails(bench: Bench) -> None:
    bench.task()
    bench.pytester.makeconftest(BLOCKER)
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "--benchflow-job-name=first")
    done.stdout.fnmatch_lines(["*jobs/first is not complete: Is a directory; *", "*1 solved*"])
    assert done.ret == pytest.ExitCode.TESTS_FAILED
