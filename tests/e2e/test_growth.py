"""A long session takes no more than a short one: nothing is kept of a rollout that is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.sandboxes.local import backend

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import MakeTask

pytestmark = pytest.mark.skipif(backend.available() is not None, reason=str(backend.available()))

ROLLOUTS, WARM_UP, AT_ONCE = 500, 100, 4
# A descriptor or thread that each rollout leaves would be 400 more; of memory this is 20 KiB for each.
MOST_DESCRIPTORS, MOST_THREADS, MOST_BYTES = 8, 4, 8 << 20

PROGRAM = """
import asyncio, gc, json, os, sys, threading
from pathlib import Path
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.host import Host
from pytest_benchflow.rollout.run import run_rollout

task, jobs, rollouts, warm_up, at_once = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])

def held():
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    children = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
            "bytes": resident, "children": len(children)}

async def run(numbers, host):
    for number in numbers:
        config = RolloutConfig(task=task, agent="nop", model="none", jobs_dir=jobs, job_name="many", trial=number)
        rollout = await run_rollout(config, host=host)
        assert rollout.healthy, rollout.result

async def main():
    numbers = iter(range(1, rollouts + 1))
    async with Host() as host:
        before = None
        for amount in (warm_up, rollouts - warm_up):
            some = iter([next(numbers) for _ in range(amount)])
            await asyncio.gather(*(run(some, host) for _ in range(at_once)))
            before, after = before or held(), held()
    print(json.dumps([before, after]))

asyncio.run(main())
"""


def test_five_hundred_rollouts_in_one_process_leave_no_descriptor_thread_or_memory(
    make_task: MakeTask, tmp_path: Path
) -> None:
    task = make_task(verifier="#!/bin/sh\necho 0 >/logs/verifier/reward.txt\necho 1 test ran\n")
    numbers = [str(number) for number in (ROLLOUTS, WARM_UP, AT_ONCE)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(task), str(tmp_path / "jobs"), *numbers],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    grown = {name: after[name] - before[name] for name in before}
    assert grown["descriptors"] <= MOST_DESCRIPTORS, (before, after)
    assert grown["threads"] <= MOST_THREADS, (before, after)
    assert grown["children"] <= 0, (before, after)
    assert grown["bytes"] <= MOST_BYTES, (before, after)
    assert [path.name for path in tmp_path.glob("pytest-benchflow-*/*")] == []
