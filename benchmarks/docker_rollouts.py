"""Measure rollouts in containers that run side by side: start, two phases and removal, at a real Docker engine.

    python -m benchmarks.docker_rollouts [ROLLOUTS] [--concurrency N] [--image NAME] [--own-engine]

Each rollout is `nop` on a task whose verifier writes a number: what is left is what the container itself costs. The
engine is the one that DOCKER_HOST names, and has to have the image or to be able to pull it; `--own-engine` starts one
for the measurement, as the tests do (root, dockerd). Prints the time for all, the median and the worst by phase, what
this process holds before and after, and fails when a rollout is not healthy or the engine has anything of ours left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.overhead import held
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.host import Host
from pytest_benchflow.rollout.run import run_rollout
from pytest_benchflow.sandboxes.docker import backend
from tests import dockerhost

if TYPE_CHECKING:
    from collections.abc import Sequence

TASK = {
    "instruction.md": "Do nothing.\n",
    "tests/test.sh": "echo 0 > /logs/verifier/reward.txt\n",
}


def write_task(directory: Path, image: str) -> Path:
    """Write the task and return its directory."""
    task = directory / "trivial"
    config = f'[environment]\ndocker_image = "{image}"\n[verifier]\nnetwork_mode = "no-network"\n'
    for name, text in {"task.toml": config, **TASK}.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return task


async def measure(task: Path, place: Path, rollouts: int, concurrency: int) -> tuple[list[dict[str, float]], float]:
    """Return the seconds of each rollout by phase, and of all together."""
    turns = asyncio.Semaphore(concurrency)
    async with Host() as host:

        async def one(number: int) -> dict[str, float]:
            config = RolloutConfig(
                task=task, agent="nop", sandbox="docker", jobs_dir=place / "jobs", job_name="docker", trial=number + 1
            )
            async with turns:
                began = time.perf_counter()
                rollout = await run_rollout(config, host=host)
                total = time.perf_counter() - began
            if not rollout.healthy:
                sys.exit(f"rollout {number} is {rollout.verdict}: {rollout.result.get('error')}")
            phases = {k: v for k, v in rollout.result["timing"].items() if isinstance(v, float) and k != "total"}
            return {**phases, "total": total}

        # Not counted: the image, and what is imported and made once per process.
        await one(rollouts)
        print(f"before: {held()}")
        began = time.perf_counter()
        rows = await asyncio.gather(*map(one, range(rollouts)))
        passed = time.perf_counter() - began
        print(f"after: {held()}")
        if left := [each.about for each in await backend.remains()]:
            sys.exit(f"left at the engine: {', '.join(left)}")
    return rows, passed


def report(rows: Sequence[dict[str, float]]) -> None:
    """Print a table of phases."""
    print(f"{'phase':<22}{'median, s':>11}{'worst, s':>10}")
    for phase in rows[0]:
        values = [row[phase] for row in rows]
        print(f"{phase:<22}{statistics.median(values):>11.2f}{max(values):>10.2f}")


def main(rollouts: int, concurrency: int, image: str, *, own_engine: bool) -> None:
    """Measure and print."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if own_engine:
            dockerd = dockerhost.Dockerd(place / "dockerd.log")
            stack.callback(dockerd.remove)
            if (reason := dockerhost.why_no_dockerd()) or not dockerd.start():
                sys.exit(reason or (place / "dockerd.log").read_text(errors="replace"))
            image = dockerhost.IMAGE
            dockerhost.import_image(dockerd.address, place, image)
            os.environ["DOCKER_HOST"] = dockerd.address
        if reason := backend.available():
            sys.exit(reason)
        rows, passed = asyncio.run(measure(write_task(place, image), place, rollouts, concurrency))
    each = f"{passed / rollouts:.2f} s each"
    print(f"{rollouts} rollouts, {concurrency} at a time: {passed:.1f} s, {each}")
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}\n")
    report(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure rollouts in containers, side by side")
    parser.add_argument("rollouts", nargs="?", type=int, default=50)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--image", default="python:3.11-slim")
    parser.add_argument("--own-engine", action="store_true")
    asked = parser.parse_args()
    main(asked.rollouts, asked.concurrency, asked.image, own_engine=asked.own_engine)
