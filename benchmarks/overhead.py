"""Measure what a rollout costs beside its agent: nop, local sandbox, a verifier that writes a number.

    python benchmarks/overhead.py [ROLLOUTS]

Prints the median and the worst by phase, and whether the last third took longer than the first. Rollouts run one after
another in one process, as the items of a session do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

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


def write_task(directory: Path) -> Path:
    for name, text in TASK.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


async def measure(rollouts: int, place: Path) -> list[dict[str, float]]:
    """Return the milliseconds of each rollout by phase, and in all."""
    task = write_task(place / "trivial")
    rows = []
    async with Host() as host:
        # Not counted: what is imported and made once per process.
        for number in range(rollouts + 1):
            config = RolloutConfig(
                task=task, agent="nop", model="none", jobs_dir=place / "jobs", job_name="overhead", trial=number + 1
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


def report(rows: Sequence[dict[str, float]]) -> None:
    third = max(1, len(rows) // 3)
    print(f"{len(rows)} rollouts, {os.cpu_count()} cores, Python {platform.python_version()}, milliseconds")
    print(f"{'phase':<22}{'median':>9}{'worst':>9}{'first third':>13}{'last third':>12}")
    for phase in rows[0]:
        values = [row[phase] for row in rows]
        first, last = statistics.median(values[:third]), statistics.median(values[-third:])
        print(f"{phase:<22}{statistics.median(values):>9.1f}{max(values):>9.1f}{first:>13.1f}{last:>12.1f}")
    print(f"memory of this process at its highest: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure the overhead of a rollout")
    parser.add_argument("rollouts", nargs="?", type=int, default=30)
    with tempfile.TemporaryDirectory() as scratch:
        report(asyncio.run(measure(parser.parse_args().rollouts, Path(scratch))))
