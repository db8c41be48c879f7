"""Ask BenchFlow's own tools, as they are published, whether rollouts made here are healthy.

    python .ci/validator.py BENCHFLOW [SCRIPT]

BENCHFLOW is the command of PyPI's benchflow, in an environment of its own. SCRIPT, which no package holds, is
validate_run_artifacts.py of BenchFlow's public repository. A damaged copy of a rollout must be refused by both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout

TASKS = Path(__file__).parents[1] / "tasks"
# One that is solved, one that is not, one of two steps; all by recorded answers.
REPLAYED = {"csv-report": "pass", "cron-next": "fail", "stock-ledger": "pass"}
# An agent that is still at work when its time is up.
SLOW = [
    ScriptTurn(text="I look first.", calls=(Call("shell", {"command": "ls /app"}),)),
    ScriptTurn(text="Now I wait.", calls=(Call("shell", {"command": "sleep 600"}),)),
]
AGENT_SEC = 8.0


async def make_rollouts(jobs: Path) -> Path:
    """Run what is to be judged and return the job's directory."""

    async def make(task: str, verdict: str, **asked: Any) -> Path:
        rollout = await run_rollout(RolloutConfig(task=TASKS / task, jobs_dir=jobs, job_name="job", **asked))
        if rollout.verdict != verdict:
            sys.exit(f"{task} ended as {rollout.verdict}, not {verdict}: {rollout.result}")
        print(f"{rollout.path.name}: {rollout.verdict}")
        return rollout.path.parent

    for task, verdict in REPLAYED.items():
        await make(task, verdict)
    async with serving(ScriptedUpstream(SLOW)) as url:
        return await make("build-order", "normal_timeout", model=f"invented/slow@{url}", agent_timeout=AGENT_SEC)


def damaged(job: Path, place: Path) -> Path:
    """Return a copy of a job in which one rollout's exchanges end in the middle of a line."""
    shutil.copytree(job, place)
    exchanges = next(place.glob("csv-report__*/trajectory/llm_trajectory.jsonl"))
    exchanges.write_bytes(exchanges.read_bytes()[:2000])
    return place


def ask(*command: str | Path) -> tuple[int, str]:
    """Run a tool and return its exit code and what it printed."""
    # Its tables and JSON are cut to the width of a terminal.
    environment = {**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def expect(what: str, good: bool, said: str) -> None:
    """End with what a tool said when it is not what it should be."""
    if not good:
        sys.exit(f"{what}: not as it should be; it said:\n{said}")
    print(f"{what}: ok")


def judge_by_package(benchflow: str, job: Path, bad: Path, place: Path) -> None:
    """Convert, validate and count a job with the published command."""
    made = len(REPLAYED) + 1
    converted, rows = place / "converted.jsonl", place / "rows.jsonl"
    # Whoever trains on whole rollouts leaves out one that was cut off.
    code, said = ask(benchflow, "train", "convert", job, "--out", converted, "--expected-rows", str(len(REPLAYED)))
    expect("train convert", code == 0, said)
    audit = ["--source-jobs", str(job), "--require-llm-trajectory", "--require-tool-calls"]
    code, said = ask(benchflow, "train", "validate", converted, "--expected-rows", str(len(REPLAYED)), *audit)
    health = json.loads(said)["source_health"] if code == 0 else {}
    counted = {"total_rows", "scored_rows", "rows_with_tool_calls"}
    whole = {name for name, count in health.items() if count == made}
    expect("train validate, with its sources", whole == counted and sum(health.values()) == made * len(counted), said)
    rows.write_bytes(b"".join(path.read_bytes() for path in sorted(job.glob("*/results.jsonl"))))
    code, said = ask(benchflow, "train", "validate", rows, "--expected-rows", str(made), "--require-tool-calls")
    expect("train validate, of our own rows", code == 0, said)
    code, said = ask(benchflow, "eval", "metrics", job, "--json")
    counts = json.loads(said) if code == 0 else {}
    solved = list(REPLAYED.values()).count("pass")
    expect(
        "eval metrics", (counts.get("total"), counts.get("passed"), counts.get("errored")) == (made, solved, 0), said
    )
    audit[1] = str(bad)
    code, said = ask(benchflow, "train", "validate", converted, *audit)
    expect("train validate refuses a damaged rollout", code != 0 and "llm_trajectory" in said, said)


def judge_by_script(script: Path, job: Path, bad: Path) -> None:
    """Judge each rollout with the script of the public repository."""
    code, said = ask(sys.executable, script, job)
    expect(script.name, code == 0 and "unhealthy=0" in said, said)
    code, said = ask(sys.executable, script, bad)
    expect(f"{script.name} refuses a damaged rollout", code == 1 and "unhealthy=1" in said, said)


def main() -> None:
    """Make rollouts and have them judged."""
    parser = argparse.ArgumentParser(description="ask BenchFlow's own tools whether rollouts made here are healthy")
    parser.add_argument("benchflow", help="the command of PyPI's benchflow")
    parser.add_argument("script", nargs="?", type=Path, help="validate_run_artifacts.py of BenchFlow's repository")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        job = asyncio.run(make_rollouts(place / "jobs"))
        bad = damaged(job, place / "damaged")
        judge_by_package(asked.benchflow, job, bad, place)
        if asked.script is not None:
            judge_by_script(asked.script, job, bad)


if __name__ == "__main__":
    main()
