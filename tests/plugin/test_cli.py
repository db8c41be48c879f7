"""The command pytest-benchflow: exit codes, meaning, and help; never a dependency's punctuation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import __version__, cli
from tests.plugin.bench import TASK_TOML

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

COMMANDS = [(), ("tasks",), ("tasks", "list"), ("tasks", "check"), ("new-task",), ("show",), ("doctor",)]
COMMANDS += [("review",), ("rebuild",), ("audit",), ("agents",)]
COMMANDS += [("publish",), ("compare",), ("coverage",), ("regrade",), ("report",)]
COMMANDS += [("agents", action) for action in ("list", "show", "export", "check")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "top")
def test_every_command_has_help_that_names_its_arguments(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: pytest-benchflow")
    assert len(text.splitlines()) > 4


@pytest.mark.parametrize("words", [[], ["fly"], ["tasks"], ["show"], ["new-task"]], ids=" ".join)
def test_wrong_use_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("pytest-benchflow")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["pytest-benchflow", __version__])


def test_tasks_list_says_what_each_needs(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    task = bench.task()
    bench.write(task / "recorded", {"baseline.jsonl": ""})
    assert cli.main(["tasks", "list", str(bench.path / "tasks")]) == 0
    text = capsys.readouterr().out
    assert str(task) in text
    assert "baseline" in text
    assert "local" in text


def test_tasks_check_names_file_and_key(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.task("fine")
    bench.task("odd", toml=TASK_TOML + "[extra]\nx = 1\n")
    assert cli.main(["tasks", "check", str(bench.path / "tasks")]) == 0
    text = capsys.readouterr().out
    assert "warning" in text
    assert "extra is ignored" in text
    assert "2 tasks, 0 with errors, 1 with warnings" in text
    assert cli.main(["tasks", "check", "--strict", str(bench.path / "tasks")]) == 1
    assert cli.main(["tasks", "check", "--strict", str(bench.path / "tasks" / "fine")]) == 0
    capsys.readouterr()
    bench.task("broken", toml='[verifier]\ntimeout_sec = "soon"\n')
    assert cli.main(["tasks", "check", str(bench.path / "tasks")]) == 1
    text = capsys.readouterr().out
    assert "timeout_sec" in text
    assert "3 tasks, 1 with errors" in text


@pytest.mark.parametrize("path", ["missing", "."], ids=["missing", "no-task-in-it"])
def test_a_path_without_tasks_is_wrong_use(bench: Bench, capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert cli.main(["tasks", "list", str(bench.path / path)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("pytest-benchflow: error: ")
    assert "Traceback" not in said.err
    assert said.out == ""


def test_a_new_task_is_solved_by_oracle_and_not_by_nop(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    place = bench.path / "tasks" / "brand-new"
    assert cli.main(["new-task", str(place)]) == 0
    assert str(place / "task.toml") in capsys.readouterr().out
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "--benchflow-agent=nop")
    assert done.ret == 0
    assert {name: done.parseoutcomes().get(name) for name in ("solved", "unsolved")} == {"solved": 1, "unsolved": 1}
    # A second time it would overwrite work.
    assert cli.main(["new-task", str(place)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_show_tells_a_rollout(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.task()
    bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle")
    (path,) = bench.rollouts()
    assert cli.main(["show", str(path)]) == 0
    text = capsys.readouterr().out
    for part in (
        "hello",
        "oracle",
        "solved",
        "1/1 healthy",
        "reward: 1",
        "files",
        "result.json",
        "verifier/reward.txt",
    ):
        assert part in text


def test_show_is_safe_and_goes_on_where_records_are_torn(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.task()
    bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop")
    (path,) = bench.rollouts()
    result = bench.result(path)
    result["error"] = "\x1b[2J\x9b2J\u202e and\x07 more"
    (path / "result.json").write_text(json.dumps(result))
    (path / "trajectory" / "llm_trajectory.jsonl").write_text("{torn\n")
    (path / "artifacts" / "\x1b[31mred").write_text("x")
    assert cli.main(["show", str(path)]) == 1
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(text)
    assert "llm_trajectory.jsonl" in said.out
    assert "cannot be read" in said.out
    assert "unsolved" in said.out


def test_show_of_another_directory_is_wrong_use(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(bench.path)]) == 2
    assert "is no rollout, and none is below" in capsys.readouterr().err


def test_show_of_a_job_lists_its_rollouts(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.task()
    bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "--benchflow-agent=nop", "--benchflow-job-name=one")
    bench.write(bench.path / "jobs" / "one", {"torn\x1b[2J__nop/config.json": '{"task_path": "x"}'})
    capsys.readouterr()
    for place in ("jobs/one", "jobs"):
        assert cli.main(["show", str(bench.path / place)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"{bench.path}/jobs/one/hello__nop__none__default__1: unsolved, reward 0"
        assert lines[1] == f"{bench.path}/jobs/one/hello__oracle__none__default__1: solved, reward 1"
        assert lines[2].startswith(f"{bench.path}/jobs/one/torn\\x1b[2J__nop: cannot be read: ")
        assert lines[4].startswith("2/2 healthy")


def test_show_lists_the_rollouts_near_what_is_not_there(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.write(bench.path / "jobs/one", {"job.json": "{}", "a__nop/config.json": "{}", "b__nop/config.json": "{}"})
    assert cli.main(["show", str(bench.path / "jobs/one/x__nop")]) == 2
    said = capsys.readouterr().err
    assert f"  {bench.path}/jobs/one/a__nop\n  {bench.path}/jobs/one/b__nop" in said
    assert "does not exist" in said


def test_show_counts_no_reward_of_an_unhealthy_rollout(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.task()
    bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle")
    (path,) = bench.rollouts()
    result = bench.result(path)
    (path / "result.json").write_text(json.dumps({**result, "verdict": "unhealthy", "verdict_category": "capture"}))
    assert cli.main(["show", str(path)]) == 0
    assert "reward: not counted: unhealthy (the verifier gave 1)" in capsys.readouterr().out


def test_doctor_names_every_part_and_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "invented-0123456789")
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path))
    code = cli.main(["doctor"])
    text = capsys.readouterr().out
    assert code == (0 if "local: available" in text else 1)
    for name in ("local", "oracle", "openhands", "litellm", "OPENAI_API_KEY: set"):
        assert name in text
    assert "openhands: " in text
    assert "baseline: ready (runs on the sandbox's python3)" in text
    assert "nop: ready (part of this package)" in text
    assert "extras (`docker`, `ssh` and `daytona` are for these sandboxes" in text
    assert "not installed yet" in text
    assert "invented" not in text


def test_a_reader_that_leaves_early_is_no_error(bench: Bench) -> None:
    for number in range(30):
        bench.task(f"task-{number}")
    command = [sys.executable, "-m", "pytest_benchflow.cli", "tasks", "list", str(bench.path / "tasks")]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.parametrize("words", [("tasks", "check"), ("gate",)], ids=["check", "gate"])
def test_a_verdict_that_no_reader_heard_is_not_fine(words: tuple[str, ...], bench: Bench) -> None:
    place = bench.task() if words[0] == "tasks" else bench.path / "tests.xml"
    bench.write(
        bench.path, {"tests.xml": '<testsuites><testsuite tests="1"><testcase name="a"/></testsuite></testsuites>'}
    )
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pytest_benchflow.cli", *words, str(place)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_publication_that_no_reader_heard_of_is_not_fine(bench: Bench) -> None:
    bench.write(bench.path, {"jobs/ramp/one/config.json": '{"task_path": "/t/task"}'})
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pytest_benchflow.cli", "publish", "jobs", "--repo", "org/name", "--dry-run"]
    done = subprocess.run(command, cwd=bench.path, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [b"reading jobs/ramp/one"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["agents", "list"], "No space left on device"),
        (["agents", "export", "d" * 5000], "File name too long"),
    ],
    ids=["full", "too-long"],
)
def test_what_the_machine_refuses_is_told_without_a_traceback(words: list[str], says: str) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "pytest_benchflow.cli", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("pytest-benchflow: error: ")
    assert done.stderr.endswith(f"{says}\n")


def test_tasks_check_notes_that_oracle_has_nothing_to_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    task = bench.task()
    (task / "solution/solve.sh").unlink()
    assert cli.main(["tasks", "check", "--strict", str(task)]) == 0
    text = capsys.readouterr().out
    assert f"{task}: note: hello has no solution; oracle runs solution/solve.sh" in text
    assert "1 task, 0 with errors\n" in text
