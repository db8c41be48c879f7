"""Measure what a rollout costs beside its agent: local sandbox, a verifier that writes a number.

    python benchmarks/overhead.py [ROLLOUTS]

Measures `nop`, which leaves nothing but the overhead, `baseline` on two recorded answers, which adds the gateway, the
exchanges and the start of an agent's own program, and, as root, `nop` on a task with a RUN, whose root is laid over
layers that are there already. The task lies in a git checkout, as tasks do. Prints the median and the worst by phase,
whether the last third took longer than the first, and what this process holds when each series begins. Rollouts run
one after another in one process, as the items of a session do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.host import Host
from pytest_benchflow.rollout.run import run_rollout

if TYPE_CHECKING:
    from collections.abc import Sequence

TASK = {
    "task.toml": '[verifier]\nnetwork_mode = "no-network"\n',
    "instruction.md": "Do nothing.\n",
    "tests/test.sh": "echo 0 > /logs/verifier/reward.txt\n",
}
# What the timings of a rollout leave over: writing its records, the row and the checks.
RECORDS = "records and checks"


# What is recorded for baseline: one command, and the end.
ANSWERS = [
    ScriptTurn(calls=(Call("shell", {"command": "true"}),)),
    ScriptTurn(calls=(Call("finish", {"message": "Nothing to do."}),)),
]
AGENTS = {"nop": "none", "baseline": "replay"}
LAYERED = "FROM debian:12\nRUN true\n"


def write_task(directory: Path) -> Path:
    """Write the task into a checkout of its own and return its directory."""
    task = directory / "trivial"
    for name, text in TASK.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    author = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid")
    for arguments in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "--message=Add a task")):
        subprocess.run(["git", "-C", str(directory), *arguments], check=True)
    return task


async def record(task: Path, place: Path) -> None:
    """Record what baseline is answered on the task."""
    async with serving(ScriptedUpstream(ANSWERS)) as url:
        rollout = await run_rollout(
            RolloutConfig(task=task, model=f"invented/scripted@{url}", jobs_dir=place / "recording", record=True)
        )
    if not rollout.healthy:
        sys.exit(f"nothing could be recorded, the rollout is {rollout.verdict}: {rollout.result.get('error')}")


async def measure(agent: str, rollouts: int, task: Path, place: Path) -> list[dict[str, float]]:
    """Return the milliseconds of each rollout of an agent by phase, and in all."""
    rows = []
    async with Host() as host:
        # Not counted: what is imported and made once per process.
        for number in range(rollouts + 1):
            config = RolloutConfig(
                task=task,
                agent=agent,
                model=AGENTS[agent],
                jobs_dir=place / "jobs",
                job_name=f"overhead-{agent}",
                trial=number + 1,
            )
            began = time.perf_counter()
            rollout = await run_rollout(config, host=host)
            total = time.perf_counter() - began
            if not rollout.healthy:
                sys.exit(f"rollout {number} is {rollout.verdict}: {rollout.result.get('error')}")
            phases = {k: v for k, v in rollout.result["timing"].items() if isinstance(v, float) and k != "total"}
            row = {name: seconds * 1000 for name, seconds in phases.items()}
            rows.append({**row, RECORDS: total * 1000 - sum(row.values()), "total": total * 1000})
    return rows[1:]


async def measure_all(rollouts: int, place: Path) -> dict[str, list[dict[str, float]]]:
    """Return the rows of each series."""
    task = write_task(place / "checkout")
    await record(task, place)
    series = {}
    for agent, model in AGENTS.items():
        series[f"{agent}, model {model}; {held()}"] = await measure(agent, rollouts, task, place)
    if os.geteuid() == 0:
        (task / "environment").mkdir()
        (task / "environment" / "Dockerfile").write_text(LAYERED, encoding="utf-8")
        series[f"nop over layers; {held()}"] = await measure("nop", rollouts, task, place / "layered")
    print(f"at the end {held()}\n")
    return series


def held() -> str:
    """Return what this process has open and takes now."""
    resident = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads = len(list(Path("/proc/self/task").iterdir()))
    return f"{descriptors} descriptors, {threads} threads, {resident >> 20} MiB"


def report(rows: Sequence[dict[str, float]]) -> None:
    """Print a table of phases."""
    third = max(1, len(rows) // 3)
    print(f"{'phase':<22}{'median':>9}{'worst':>9}{'first third':>13}{'last third':>12}")
    for phase in rows[0]:
        values = [row[phase] for row in rows]
        first, last = statistics.median(values[:third]), statistics.median(values[-third:])
        print(f"{phase:<22}{statistics.median(values):>9.1f}{max(values):>9.1f}{first:>13.1f}{last:>12.1f}")


def main(rollouts: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as scratch:
        measured = asyncio.run(measure_all(rollouts, Path(scratch)))
    print(f"{rollouts} rollouts each, {os.cpu_count()} cores, Python {platform.python_version()}, milliseconds")
    for name, rows in measured.items():
        print(f"\n{name}")
        report(rows)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nmemory of this process at its highest: {memory:.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure the overhead of a rollout")
    parser.add_argument("rollouts", nargs="?", type=int, default=30)
    main(parser.parse_args().rollouts)
