"""--benchflow-jobs-dir and --benchflow-job-name: where rollouts go, and that nothing there is ever collected."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

import pytest

from tests.plugin.bench import TRAP

if TYPE_CHECKING:
    from tests.plugin.bench import Bench


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_rollouts_and_job_files_go_where_they_are_told(bench: Bench, workers: str) -> None:
    bench.task()
    done = bench.run(
        "tasks", "--benchflow-agent=nop", "--benchflow-jobs-dir=out", "--benchflow-job-name=first", "-n", workers
    )
    assert done.ret == 0
    job = bench.path / "out" / "first"
    assert {path.name for path in job.iterdir() if path.is_file()} >= {"job.json", "summary.json", "results.jsonl"}
    assert [path.name for path in bench.rollouts("out")] == ["hello__nop__none__default__1"]
    assert not (bench.path / "jobs").exists()


def test_a_relative_ini_value_is_relative_to_the_root(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.task()
    bench.ini("benchflow_jobs_dir = out", "benchflow_job_name = first")
    monkeypatch.chdir(bench.path / "tasks")
    assert bench.run("hello", "-m", "rollout", "--benchflow-agent=nop").ret == 0
    assert len(bench.rollouts("out")) == 1


def test_a_jobs_directory_inside_a_task_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.task())
    done = bench.run(".", "--benchflow-agent=nop")
    assert done.ret == 4
    assert "lies inside the task" in done.stderr.str()
    assert not (bench.path / "tasks" / "hello" / "jobs").exists()


def test_every_run_has_a_job_of_its_own(bench: Bench) -> None:
    bench.task()
    for _ in range(2):
        assert bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop").ret == 0
    assert len(bench.rollouts()) == 2
    assert len({path.parent for path in bench.rollouts()}) == 2


def test_a_job_is_never_collected(bench: Bench) -> None:
    bench.task()
    assert bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop").ret == 0
    (path,) = bench.rollouts()
    (path / "artifacts" / "test_trap.py").write_text(TRAP)
    (path / "artifacts" / "conftest.py").write_text(TRAP)
    bench.pytester.makepyfile("def test_pass(): pass")
    bench.look().assert_outcomes(passed=1)
    assert bench.look("jobs").ret in (4, 5)
    assert bench.look(str(path / "artifacts")).ret == 4
    # A job that was moved elsewhere is one still.
    path.parent.rename(bench.path / "kept")
    bench.look(".").assert_outcomes(passed=1)


def test_a_package_that_is_called_jobs_is_left_alone(bench: Bench) -> None:
    bench.write(bench.path / "jobs", {"job.json": '{"title": "clerk"}', "test_clerk.py": "def test_pass(): pass\n"})
    bench.look().assert_outcomes(passed=1)


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_a_job_that_another_session_works_on_is_refused(bench: Bench, workers: str) -> None:
    bench.task()
    job = bench.path / "jobs" / "shared"
    job.mkdir(parents=True)
    with (job / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = bench.run("tasks", "--benchflow-agent=nop", "--benchflow-job-name=shared", "-n", workers)
    assert done.ret == 4
    assert "in use by another session" in done.stderr.str() + done.stdout.str()


def test_a_jobs_directory_that_cannot_be_one_is_refused_in_a_sentence(bench: Bench) -> None:
    bench.task("one")
    bench.write(bench.path, {"taken": "a file"})
    run = bench.run("tasks", "--benchflow-agent=nop", "--benchflow-jobs-dir=taken")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["ERROR: the jobs directory *taken cannot be used: *"])
    run.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_a_rollout_of_another_tool_is_never_collected_by_accident(bench: Bench) -> None:
    rollout = bench.path / "tests" / "data" / "r1"
    bench.write(rollout, {"trajectory/llm_trajectory.jsonl": "{}\n", "test_trap.py": TRAP, "conftest.py": TRAP})
    bench.write(rollout / "artifacts", {"test_trap.py": TRAP})
    bench.pytester.makepyfile("def test_pass(): pass")
    for arguments in ([], ["."], ["tests"]):
        done = bench.look(*arguments)
        assert done.ret == (5 if arguments == ["tests"] else 0)


def test_a_job_that_is_removed_in_mid_run_is_told_of_as_gone_and_fails_the_run(bench: Bench) -> None:
    for name in ("a", "b-removes", "c"):
        bench.task(name)
    (bench.path / "conftest.py").write_text(
        "import shutil\n"
        "import pytest\n"
        "@pytest.fixture\n"
        "def agent(task):\n"
        "    if 'removes' in task.name:\n"
        "        shutil.rmtree('jobs/gone')\n"
        "    return 'nop'\n",
        "utf-8",
    )
    asked = ("--benchflow-sandbox=scripted", "--benchflow-job-name=gone", "-m", "rollout")
    done = bench.run("tasks", "--benchflow-agent=nop", *asked)
    assert done.ret == 1, done.outlines
    lines = done.outlines
    assert "gone: jobs/gone/a__nop__none__default__1, which was removed while this run went on: it fails" in lines
    assert [line for line in lines if line.startswith(f"{bench.path}/jobs/gone: its job.json was removed")]
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
