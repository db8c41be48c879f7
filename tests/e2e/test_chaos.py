"""A job through faults and kills: resumed a few times it is complete, nothing is lost, and no number is made up."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e import recount
from tests.modelhost import Provider, Reply, providing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

    from tests.e2e.conftest import MakeTask

SEED = int(os.environ.get("BENCHFLOW_CHAOS_SEED", "7"))
TASKS, TRIALS = 5, 3
KILLS, SESSIONS = 4, 9
# A session is killed so many sandboxes after it began, whatever the machine's speed, and up to so long after that one.
FEWEST, MOST, LATEST_SEC = 1, 8, 0.8
HUNG_SEC = 300

# The local sandbox, of which each fifth cannot be made, and in which each tenth verifier dies. What strikes follows
# from how many sandboxes were begun, over all sessions: a file has a byte for each.
FAULTS = """
import os
import random

from pytest_benchflow.contracts import ExecResult
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes.local import LocalBackend

SEED, COUNT = {seed}, {count!r}


def draw():
    file = os.open(COUNT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b".")
    number = os.fstat(file).st_size
    os.close(file)
    return random.Random(f"{{SEED}}:{{number}}")


class Flaky(LocalBackend):
    name = "flaky"

    async def create(self, spec):
        chance = draw()
        if chance.random() < 0.2:
            raise SandboxError("an invented fault: no sandbox came up")
        sandbox = await super().create(spec)
        dies, run = chance.random() < 0.1, sandbox.exec

        async def exec(argv, **options):
            if dies and argv[-1].endswith("/test.sh"):
                return ExecResult(139, "", "Segmentation fault")
            return await run(argv, **options)

        sandbox.exec = exec
        return sandbox


def pytest_benchflow_sandboxes():
    return {{"flaky": Flaky()}}
"""


class Bank(Provider):
    """Has the agent write 42, or, by its task, something else, and bills each answer otherwise."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: who asked was killed."""

    def reply(self, body: dict[str, Any], request: BaseHTTPRequestHandler) -> Reply:
        del request
        done = any(message["role"] == "tool" for message in body["messages"])
        number = 42 if self.asked % 3 else 41
        call = ("finish", {"message": "Done."}) if done else ("shell", {"command": f"echo {number} > /app/answer"})
        tokens = {"prompt_tokens": 900 + 7 * self.asked, "completion_tokens": 40 + self.asked}
        usage = {**tokens, "total_tokens": sum(tokens.values()), "prompt_tokens_details": {"cached_tokens": 128}}
        return Reply(self.completion(body, call, text="" if "tools" in body else "done", usage=usage))


@pytest.fixture
def provider() -> Iterator[Provider]:
    with providing(Bank()) as made:
        yield made


class Session:
    """One pytest session over the job."""

    def __init__(self, root: Path, *arguments: str) -> None:
        with (root / "sessions.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "rollout", *arguments],
                cwd=root,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def end(self) -> int:
        """Wait for its own end and return the exit code."""
        return self.process.wait(HUNG_SEC)

    def kill(self, count: Path, chance: random.Random) -> bool:
        """Kill it at a moment that chance decides; False: it has ended before."""
        until, limit = made(count) + chance.randint(FEWEST, MOST), time.monotonic() + HUNG_SEC
        while made(count) < until and self.process.poll() is None:
            assert time.monotonic() < limit, "a session came to nothing"
            time.sleep(0.02)
        time.sleep(chance.uniform(0, LATEST_SEC))
        self.process.send_signal(signal.SIGKILL)
        return self.process.wait() == -signal.SIGKILL


def made(count: Path) -> int:
    return count.stat().st_size if count.exists() else 0


def coverage(root: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest_benchflow", "coverage", "jobs/chaos", "--json"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (not found["complete"])
    return found


def verdicts(job: Path) -> dict[str, tuple[str, float]]:
    """Return the healthy rollouts of a job, with when each was finished."""
    found = {}
    for file in job.glob("*/result.json"):
        result = json.loads(file.read_text())
        if result.get("verdict") in recount.HEALTHY:
            found[file.parent.name] = (result["verdict"], file.stat().st_mtime)
    return found


def test_a_job_through_faults_and_kills_is_complete_after_a_few_resumes(
    make_task: MakeTask, tmp_path: Path, provider: Provider
) -> None:
    for number in range(TASKS):
        make_task(f"task-{number}")
    count = tmp_path / "sandboxes.count"
    (tmp_path / "conftest.py").write_text(FAULTS.format(seed=SEED, count=str(count)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    chance = random.Random(SEED)  # noqa: S311 - of kills
    job = tmp_path / "jobs" / "chaos"
    asked = [
        *("tasks", "--benchflow-job-name=chaos", "--benchflow-sandbox=flaky", f"--benchflow-trials={TRIALS}"),
        *("--benchflow-agent=oracle", "--benchflow-agent=baseline", "--benchflow-retries=2"),
        *(f"--benchflow-model={provider.model}", f"--benchflow-price={provider.model}=3,15,0.3"),
        "--benchflow-concurrency=2",
    ]
    killed = sessions = 0
    kept: dict[str, tuple[str, float]] = {}
    while sessions < SESSIONS:
        resume = ["--benchflow-resume"] if (job / "job.json").is_file() else []
        sessions += 1
        session = Session(tmp_path, *asked, *resume)
        if killed < KILLS and session.kill(count, chance):
            killed += 1
        else:
            session.end()
        now = verdicts(job)
        # What was healthy once was not run again, and not lost.
        assert {name: now.get(name) for name in kept} == kept
        kept = now
        if killed == KILLS and coverage(tmp_path)["complete"]:
            break
    log = (tmp_path / "sessions.log").read_text()
    found = coverage(tmp_path)
    assert found["complete"], (found["counts"], log[-4000:])
    assert killed == KILLS
    assert found["counts"]["healthy"] == found["counts"]["expected"] == TASKS * 2 * TRIALS
    _nothing_is_lost(job, count, sessions)
    told = json.loads((job / "summary.json").read_text())
    assert recount.differences("summary", told, recount.recount(job)) == []
    assert told["reward"]["scored"] == TASKS * 2 * TRIALS
    assert told["earlier_attempts"]["count"] > 0


def _nothing_is_lost(job: Path, count: Path, sessions: int) -> None:
    """Each attempt that began is on disk, whole and numbered, and says why the one before was not kept."""
    attempts = 0
    for rollout in (path.parent for path in job.glob("*/config.json")):
        numbers = sorted(int(path.name) for path in rollout.glob("attempts/*"))
        assert numbers == list(range(1, len(numbers) + 1)), rollout.name
        places = [*(rollout / "attempts" / str(number) for number in numbers), rollout]
        attempts += len(places)
        for number, place in enumerate(places, 1):
            config = json.loads((place / "config.json").read_text())
            assert config["attempt"] == number, place
            assert config["rollout_name"] == rollout.name
            assert (config["earlier"] is None) is (number == 1)
            assert json.loads((place / "result.json").read_text())["verdict"] is not None, place
            assert not number > 1 or config["earlier"]["why"].startswith("it was unhealthy"), config["earlier"]
        asked = [line for place in places for line in recount.lines(place / "trajectory" / "llm_trajectory.jsonl")]
        ids = [line["request"]["request_id"] for line in asked]
        assert len(ids) == len(set(ids)), f"an exchange of {rollout.name} is there twice"
    # A kill between an attempt's first record and its sandbox: for each of the two in flight, once a session.
    assert 0 <= attempts - made(count) <= 2 * sessions
    rows = recount.lines(job / "results.jsonl")
    assert len(rows) == len({row["info"]["rollout_name"] for row in rows}) == TASKS * 2 * TRIALS
