"""Plain pytest launches nothing and says nothing; a task's own files are never collected or imported on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.bench import SOLVED, UNSOLVED

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

NOT_OURS = ("benchflow:", "rollout", "task.toml")


def test_five_hundred_tasks_are_passed_over_in_silence(bench: Bench) -> None:
    for number in range(500):
        bench.write(
            bench.path / "tasks" / f"task-{number}",
            {"task.toml": 'version = "1.0"\n', "tests/test_outputs.py": "def test_hidden(): pass\n"},
        )
    bench.pytester.makepyfile("def test_pass(): pass")
    done = bench.run()
    assert done.ret == 0
    done.assert_outcomes(passed=1)
    text = "\n".join(line for line in done.outlines if not line.startswith(("plugins:", "rootdir:")))
    assert not any(word in text for word in NOT_OURS), text
    assert not (bench.path / "jobs").exists()


@pytest.mark.parametrize("argument", [".", "tests"], ids=["dot", "another-directory"])
def test_paths_that_name_no_task_launch_nothing(bench: Bench, argument: str) -> None:
    bench.task()
    bench.write(bench.path / "tests", {"test_one.py": "def test_pass(): pass\n"})
    done = bench.look(argument)
    assert done.ret == 0
    done.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "argument",
    ["tasks", "tasks/hello", "tasks/hello/task.toml", f"tasks/hello/task.toml::{UNSOLVED}"],
    ids=["parent", "task", "file", "node-id"],
)
def test_a_path_on_the_command_line_asks(bench: Bench, argument: str) -> None:
    bench.task()
    bench.ini("benchflow_agent = nop")
    assert f"tasks/hello/task.toml::{UNSOLVED}" in bench.ids(argument)


def test_a_directory_of_tasks_without_an_ini_file_may_be_the_current_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.task("hello", under=".")
    assert any("rollout[baseline" in line for line in bench.ids("."))
    assert bench.ids() == []


def test_the_ini_value_asks_for_plain_pytest_too(bench: Bench) -> None:
    bench.task()
    bench.task("elsewhere", under="other")
    bench.ini("benchflow_tasks = tasks", "benchflow_agent = oracle")
    ids = bench.ids()
    assert f"tasks/hello/task.toml::{SOLVED}" in ids
    assert not any("other" in line for line in ids)


@pytest.mark.parametrize("place", ["tasks/hello", "tasks/hello/tests"], ids=["in-the-task", "in-its-tests"])
def test_standing_in_a_task_collects_nothing_and_imports_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    bench.task()
    bench.ini()
    monkeypatch.chdir(bench.path / place)
    done = bench.look()
    assert done.ret in (4, 5)
    assert "imported on the host" not in done.stdout.str() + done.stderr.str()


@pytest.mark.parametrize(
    "argument",
    ["tasks/hello/tests", "tasks/hello/tests/test_outputs.py", "tasks/hello/solution/test_solution.py"],
    ids=["tests", "test-file", "solution-file"],
)
def test_files_inside_a_task_cannot_be_named(bench: Bench, argument: str) -> None:
    bench.task()
    done = bench.look(argument)
    assert done.ret == 4
    assert "not found" in done.stderr.str()


def test_a_directory_of_jobs_is_not_passed_over_in_silence(bench: Bench) -> None:
    job = {"job.json": '{"versions": {"pytest_benchflow": "0.1.0"}}', "a__nop/config.json": "{}"}
    bench.write(bench.path / "jobs" / "one", job)
    done = bench.run("jobs")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    done.stdout.fnmatch_lines(["benchflow: jobs holds rollouts; review them with --benchflow-review=jobs"])
    assert "holds rollouts" not in bench.run("--benchflow-review=jobs").stdout.str()
    bench.write(bench.path / "empty", {"note.txt": ""})
    assert "holds rollouts" not in bench.run("empty").stdout.str()


def test_a_conftest_of_a_tasks_tests_is_never_imported(bench: Bench) -> None:
    bench.task("test-named-so")
    assert bench.ids("tasks", "--benchflow-agent=nop")
    assert bench.ids("tasks/test-named-so", "--benchflow-agent=nop")


def test_notes_that_are_called_task_md_are_left_alone(bench: Bench) -> None:
    bench.write(bench.path / "notes", {"task.md": "# Things to do\n", "test_notes.py": "def test_pass(): pass\n"})
    bench.look().assert_outcomes(passed=1)
