"""--benchflow-resume: what stands is kept, the rest is filled, and another experiment is refused before it begins."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.bench import Bench

WORKERS = pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
ASKED = ("tasks", "-m", "rollout", "--benchflow-agent=moody", "--benchflow-job-name=ramp")
RESUMED = (*ASKED, "--benchflow-resume")

# An agent that does as a file named for its task says, and that tells in `ran` of each time it works.
MOODY = """
import time
from pathlib import Path

from pytest_benchflow.contracts import AgentOutcome
from pytest_benchflow.errors import SandboxError

HERE = Path(__file__).parent


class Moody:
    name, uses_model, api_dialect = "moody", False, None

    @property
    def version(self):
        return (HERE / "version").read_text().strip() if (HERE / "version").exists() else "1.0"

    def unsupported(self, task):
        return None

    async def install(self, backend, task, log_dir):
        return ()

    async def run(self, context):
        name = context.task.path.name
        with (HERE / "ran").open("a") as ran:
            ran.write(name + "\\n")
        mood = (HERE / "moods" / name).read_text() if (HERE / "moods" / name).exists() else "fine"
        if mood == "waits":
            (HERE / "waiting").touch()
            time.sleep(600)
        if mood == "breaks":
            raise SandboxError("an invented fault")
        await context.sandbox.exec(["sh", "-c", "echo done > /app/out.txt"])
        if mood == "crashes":
            return AgentOutcome(stop="crashed", error="an invented crash")
        return AgentOutcome(stop="finished", stop_reason="end_turn")


def pytest_benchflow_agents():
    return {"moody": lambda name: Moody()}
"""


class Moods:
    """What the agent does with each task, and which ones it has worked on since the last look."""

    def __init__(self, bench: Bench) -> None:
        self.path = bench.path
        bench.pytester.makeconftest(MOODY)
        (bench.path / "moods").mkdir()

    def set(self, **moods: str) -> None:
        for name, mood in moods.items():
            (self.path / "moods" / name).write_text(mood)

    def ran(self) -> list[str]:
        file = self.path / "ran"
        names = sorted(file.read_text().split()) if file.exists() else []
        file.unlink(missing_ok=True)
        return names


@pytest.fixture
def moods(bench: Bench) -> Moods:
    return Moods(bench)


def job(bench: Bench) -> Path:
    return bench.path / "jobs" / "ramp"


def rollout(bench: Bench, task: str) -> Path:
    return job(bench) / f"{task}__moody__none__default__1"


def summary(bench: Bench) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((job(bench) / "summary.json").read_text())
    return value


def test_each_mode_fills_what_it_says_and_keeps_the_rest(bench: Bench, moods: Moods) -> None:
    for name in ("fine", "gone", "unscored", "unhealthy"):
        bench.task(name)
    moods.set(unscored="breaks", unhealthy="crashes")
    assert bench.run(*ASKED).ret == 1
    assert len(moods.ran()) == 4
    shutil.rmtree(rollout(bench, "gone"))
    moods.set(unscored="fine", unhealthy="fine")
    kept = (rollout(bench, "fine") / "result.json").read_bytes()
    first = (rollout(bench, "unhealthy") / "result.json").read_bytes()
    for mode, filled, told in (
        ("=missing", ["gone"], "kept: 3 of 4 rollouts, of earlier sessions; 1 ran now"),
        ("=unscored", ["unscored"], "kept: 3 of 4 rollouts, of earlier sessions; 1 ran now"),
        ("", ["unhealthy"], "kept: 3 of 4 rollouts, of earlier sessions; 1 ran now"),
        ("", [], "kept: 4 of 4 rollouts, of earlier sessions; 0 ran now"),
    ):
        done = bench.run(*ASKED, f"--benchflow-resume{mode}")
        assert moods.ran() == filled, mode
        assert told in done.outlines
        # An unhealthy rollout that is kept is told as it is.
        assert done.ret == (1 if mode in ("=missing", "=unscored") else 0)
    assert (rollout(bench, "fine") / "result.json").read_bytes() == kept
    assert (rollout(bench, "unhealthy") / "attempts/1/result.json").read_bytes() == first
    config = bench.config(rollout(bench, "unhealthy"))
    assert (config["attempt"], config["earlier"]["attempt"]) == (2, 1)
    assert config["earlier"]["why"] == "it was unhealthy (infra: agent_crashed)"
    assert not (rollout(bench, "gone") / "attempts").exists()
    found = summary(bench)
    assert found["coverage"] == {"planned": 4, "healthy": 4, "unhealthy": 0, "skipped": 0, "missing": 0}
    assert found["reward"] == {"scored": 4, "asked": 4, "mean": 1.0}
    assert (found["earlier_attempts"]["count"], found["earlier_attempts"]["by_end"]) == (2, {"infra": 2})


@pytest.mark.parametrize("text", ["{", "{}"], ids=["torn", "empty"])
def test_a_result_that_does_not_tell_what_was_asked_is_not_kept(bench: Bench, moods: Moods, text: str) -> None:
    bench.task("one")
    assert bench.run(*ASKED).ret == 0
    moods.ran()
    (rollout(bench, "one") / "config.json").write_text(text)
    assert bench.run(*ASKED, "--benchflow-resume=missing").ret == 0
    assert moods.ran() == ["one"]
    assert (rollout(bench, "one") / "attempts/1/config.json").read_text() == text


@WORKERS
def test_kept_rollouts_are_reported_with_their_checks_and_not_as_run(bench: Bench, moods: Moods, workers: str) -> None:
    bench.task("one")
    bench.task("two")
    every = ("tasks", "--benchflow-agent=moody", "--benchflow-job-name=ramp", "-n", workers)
    first = bench.run(*every)
    assert first.ret == 0, first.outlines
    shutil.rmtree(rollout(bench, "two"))
    moods.ran()
    done = bench.run(*every, "--benchflow-resume", f"--junitxml={bench.path / 'junit.xml'}")
    assert done.ret == 0, done.outlines
    assert moods.ran() == ["two"]
    assert done.parseoutcomes() == first.parseoutcomes()
    assert any(line.startswith("one · moody: kept · solved") for line in done.outlines)
    assert any(line.startswith("two · moody: sandbox · agent · verifier · solved") for line in done.outlines)
    assert (bench.path / "junit.xml").read_text().count("benchflow_kept") == 1


def test_an_option_that_stands_alone_takes_no_path(bench: Bench, moods: Moods) -> None:
    bench.task("one")
    assert bench.run(*ASKED).ret == 0
    moods.ran()
    done = bench.run("--benchflow-resume", *ASKED)
    assert done.ret == 0, done.outlines
    assert moods.ran() == []
    bench.refused("--benchflow-resume=nothing", *ASKED, says="takes one of: unhealthy, unscored, missing")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--benchflow-agent=nop",), "agent moody nop pass the job's agents"),
        (("--benchflow-skills=without",), "skill_mode default without"),
        (("--benchflow-reasoning-effort=high",), "reasoning_effort not asked high"),
        (("--benchflow-agent-env=MOOD=good",), "agent_env of moody none MOOD=good"),
        (("--benchflow-agent-network=proxy",), "agent_network of moody declared proxy"),
        (("edit",), "task_digest of one"),
        (("add",), "tasks one two too"),
        (("copy",), "it holds one__moody__none__default__1"),
    ],
    ids=["agent", "skills", "effort", "env", "network", "task", "new-task", "copy"],
)
def test_another_experiment_is_refused_before_anything_runs(
    bench: Bench, moods: Moods, arguments: tuple[str, ...], says: str
) -> None:
    task = bench.task("one")
    done = bench.run(*ASKED, "--benchflow-trials=2")
    assert done.ret == 0, done.outlines
    before = (job(bench) / "job.json").read_bytes()
    moods.ran()
    options = [argument for argument in arguments if argument.startswith("-")]
    if arguments == ("edit",):
        (task / "instruction.md").write_text("Write something else.\n")
    elif arguments == ("add",):
        bench.task("two")
    elif arguments == ("copy",):
        second = job(bench) / "one__moody__none__default__2"
        shutil.rmtree(second)
        shutil.copytree(rollout(bench, "one"), second)
    # An agent that is named too would run beside the other.
    base = [each for each in RESUMED if each != "--benchflow-agent=moody" or "--benchflow-agent=nop" not in options]
    done = bench.run(*base, "--benchflow-trials=2", *options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    said = " ".join(done.stderr.str().split())
    assert "cannot be resumed so" in said
    assert says in said
    assert "Traceback" not in said
    assert moods.ran() == []
    assert (job(bench) / "job.json").read_bytes() == before


def test_under_n_a_changed_task_is_refused_before_anything_runs(bench: Bench, moods: Moods) -> None:
    bench.task("one")
    (bench.task("two") / "instruction.md").write_text("Write done.\n")
    assert bench.run(*ASKED).ret == 0
    shutil.rmtree(rollout(bench, "one"))
    moods.ran()
    (bench.path / "tasks/two/instruction.md").write_text("Write nothing.\n")
    done = bench.run(*RESUMED, "-n", "2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "task_digest of two" in done.stderr.str()
    assert moods.ran() == []


def test_further_trials_and_other_settings_of_the_run_are_no_change(bench: Bench, moods: Moods) -> None:
    bench.task("one")
    assert bench.run(*ASKED).ret == 0
    moods.ran()
    done = bench.run(*RESUMED, "--benchflow-trials=2", "--benchflow-agent-timeout=77")
    assert done.ret == 0, done.outlines
    assert moods.ran() == ["one"]
    assert bench.config(job(bench) / "one__moody__none__default__2")["timeout_sec"] == 77
    assert summary(bench)["coverage"]["healthy"] == 2


def test_another_version_is_mixed_in_when_that_is_accepted_and_the_split_is_shown(bench: Bench, moods: Moods) -> None:
    bench.task("one")
    assert bench.run(*ASKED).ret == 0
    (bench.path / "version").write_text("1.1")
    more = (*RESUMED, "--benchflow-trials=3")
    refused = bench.run(*more)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "agent_version of moody" in refused.stderr.str()
    assert "--benchflow-accept-change=agent_version" in refused.stderr.str()
    done = bench.run(*more, "--benchflow-accept-change=agent_version")
    assert done.ret == 0, done.outlines
    assert "versions of moody: 1 of 1.0, 2 of 1.1" in done.outlines
    (arm,) = summary(bench)["arms"]
    assert arm["agent_versions"] == [{"version": "1.0", "rollouts": 1}, {"version": "1.1", "rollouts": 2}]
    compared = bench.pytester.run(sys.executable, "-m", "pytest_benchflow", "compare", "jobs/ramp", "jobs/ramp")
    assert "  after: versions mixed, 1 of 1.0, 2 of 1.1" in compared.outlines
    # What was accepted is of the job from then on.
    assert bench.run(*more).ret == 0


def test_a_job_that_is_not_there_or_not_named_is_not_resumed(bench: Bench, moods: Moods) -> None:
    bench.task("one")
    assert bench.run(*ASKED).ret == 0
    unnamed = [each for each in RESUMED if "job-name" not in each]
    bench.refused(*unnamed, says="--benchflow-resume needs the job to go on with; pass --benchflow-job-name=NAME")
    done = bench.run(*unnamed, "--benchflow-job-name=rump")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "rump is no job that could be resumed" in done.stderr.str()
    assert "has ramp" in done.stderr.str()
    assert not (bench.path / "jobs" / "rump").exists()
    bench.refused(*ASKED, "--benchflow-accept-change=agent_version", says="pass --benchflow-resume too")
    bench.refused(*RESUMED, "--benchflow-accept-change=model", says="it takes agent_version, agent_env, agent_network")


def test_a_second_session_is_refused_with_the_holder_named_and_a_dead_one_is_taken_over(
    bench: Bench, moods: Moods
) -> None:
    bench.task("one")
    moods.set(one="waits")
    secret = "--benchflow-agent-env=PASSWORD=not-to-be-told"
    command = [sys.executable, "-m", "pytest", *ASKED, secret]
    with (bench.path / "first.log").open("wb") as log:
        first = subprocess.Popen(command, cwd=bench.path, stdout=log, stderr=log)
    try:
        _until((bench.path / "waiting").exists)
        refused = bench.run(*RESUMED, secret)
        assert refused.ret == pytest.ExitCode.USAGE_ERROR
        said = refused.stderr.str()
        assert f"in use by another session (process {first.pid} on {socket.gethostname()} since " in said
        assert "--benchflow-job-name=ramp" in said
        assert "not-to-be-told" not in said
        first.send_signal(signal.SIGKILL)
    finally:
        first.kill()
        first.wait()
    moods.set(one="fine")
    done = bench.run(*RESUMED, secret)
    assert done.ret == 0, done.outlines
    config = bench.config(rollout(bench, "one"))
    assert config["earlier"]["why"] == "it was unhealthy (infra: interrupted)"
    assert str(os.getpid()) not in (job(bench) / ".lock").read_text()


def _until(holds: Any) -> None:
    limit = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < limit, "the first session came to nothing"
        time.sleep(0.05)
