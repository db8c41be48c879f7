"""Measure many rollouts in one process: how late its loop gets, what it holds, and how many it does in a second.

    python -m benchmarks.concurrency [--in-flight N] [--rollouts N] [--inspect DIRECTORY]

First N rollouts of `nop` (default: 200) are in flight at once in a sandbox that only answers: each waits there until
all have begun. A coroutine asks every few milliseconds how late the loop comes back to it; what it finds while all wait
is not counted, as it would hide how late the loop is while they begin and end. Then the rollouts per second at 1, 8 and
64 in flight, in that sandbox and in the local one, and the CPU that each costs, children included; with --inspect also
samples of Inspect AI, which `benchmarks.inspect_samples` describes. Each figure is of a process of its own. Fails when
a rollout is not healthy, and when one of the limits is missed; beside the lateness stands that of a loop in another
process that has nothing to do meanwhile, which is the machine's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import inspect_samples
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.session import RolloutSession
from pytest_benchflow.settings import Settings
from pytest_benchflow.tasks.load import load_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TASK = {
    "task.toml": '[verifier]\nnetwork_mode = "no-network"\n',
    "instruction.md": "Do nothing.\n",
    "tests/test.sh": "echo 0 > /logs/verifier/reward.txt\n",
}
# How long each verifier takes where as many rollouts as possible are to be in flight.
WAITING = '[[answer]]\nphase = "verifier"\nseconds = {seconds}\n'
MOST_MIB = 300
LATEST_SEC = 0.005
ASKED_EACH_SEC = 0.005
# So many samples are looked at together. The process is at work in them where it used this share of the time that they
# take when none is late.
TOGETHER = 20
AT_WORK = 0.15
WIDTHS = (1, 8, 64)
# What is measured, and how many rollouts of it at most where they are few a second.
ROLLOUTS = {"scripted": 400, "local": 64}


class Lateness:
    """How late a loop comes back to a coroutine that sleeps."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.used: list[float] = []  # the CPU seconds that the process had used when each sample was taken

    async def sample(self) -> None:
        """Ask until cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(ASKED_EACH_SEC)
            self.seconds.append(time.perf_counter() - before - ASKED_EACH_SEC)
            self.used.append(time.process_time())

    def at_work(self) -> Lateness:
        """Return what was found while the process was at work and did not only wait; all where it never was.

        Whether it was follows from the CPU time that it used: that is the same however long it waited for a core.
        """
        found = Lateness()
        for start in range(0, len(self.seconds), TOGETHER):
            used = self.used[start : start + TOGETHER]
            if used[-1] - used[0] >= AT_WORK * ASKED_EACH_SEC * (len(used) - 1) > 0:
                found.seconds += self.seconds[start : start + TOGETHER]
        return found if found.seconds else self

    def at(self, share: float) -> float:
        """Return the seconds that this share of the samples keeps below."""
        ordered = sorted(self.seconds)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def write_task(directory: Path, seconds: float) -> Path:
    """Write the task and return its directory."""
    files = {**TASK, "environment/scripted.toml": WAITING.format(seconds=seconds)}
    for name, text in files.items():
        path = directory / "trivial" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory / "trivial"


def measure(sandbox: str, width: int, rollouts: int, seconds: float) -> dict[str, Any]:
    """Run rollouts as a session does and return what it took."""
    with tempfile.TemporaryDirectory() as place:
        task = load_task(write_task(Path(place), seconds))
        settings = Settings(
            agents=("nop",), sandbox=sandbox, jobs_dir=Path(place) / "jobs", job_name="wide", concurrency=width
        )
        configs = [
            RolloutConfig(
                task=task,
                agent="nop",
                model="none",
                sandbox=sandbox,
                jobs_dir=settings.jobs_dir,
                job_name=settings.job_name,
                trial=trial,
            )
            for trial in range(1, rollouts + 2)
        ]
        session = RolloutSession(settings, session_id="concurrency")
        late, most, ended = Lateness(), 0, threading.Event()

        def look() -> None:
            nonlocal most
            while not ended.wait(0.05):
                most = max(most, len(session.flights.under_way))

        # Not counted: what is imported and made once per process.
        session.get(configs.pop())
        asking = session.pool.run(_start(late.sample))
        looking = threading.Thread(target=look)
        looking.start()
        began, before = time.perf_counter(), inspect_samples.cpu_seconds()
        session.look_ahead(configs)
        unhealthy = [config.trial for config in configs if not session.get(config).healthy]
        ended.set()
        looking.join()
        session.pool.run(_end(asking))
        session.close()
        passed, used = time.perf_counter() - began, inspect_samples.cpu_seconds() - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if unhealthy:
        sys.exit(f"not healthy: trials {unhealthy}")
    return {
        "per_second": rollouts / passed,
        "cpu_ms": 1000 * used / rollouts,
        "seconds": passed,
        "most": most,
        "mib": peak,
        "late": {str(share): late.at_work().at(share) for share in (0.5, 0.99, 1.0)},
    }


async def _start(work: Callable[[], Any]) -> asyncio.Task[None]:
    return asyncio.create_task(work())


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def measure_apart(*arguments: object) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.concurrency", "--one", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


async def sleep_only() -> float:
    """Return how late a loop with nothing to do is at p99, until the standard input ends."""
    late = Lateness()
    asking = asyncio.create_task(late.sample())
    await asyncio.to_thread(sys.stdin.read)
    await _end(asking)
    return late.at(0.99)


def report_wide(in_flight: int) -> list[str]:
    """Print what many rollouts at once cost their process; return the limits that were missed."""
    idle = [sys.executable, "-m", "benchmarks.concurrency", "--idle"]
    with subprocess.Popen(
        idle, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    ) as beside:
        # Long enough for all to have begun, also where a core does no more than ten a second.
        found = measure_apart("scripted", in_flight, in_flight, in_flight / 10)
        machine = float(beside.communicate()[0])
    late = found["late"]
    print(f"{in_flight} rollouts, {found['most']} of them in flight at once, in {found['seconds']:.1f} s:")
    print(f"  memory at its peak: {found['mib']:.0f} MiB (limit {MOST_MIB})")
    print(
        f"  at work, the loop was late by {late['0.5'] * 1000:.2f} ms at the median, "
        f"{late['0.99'] * 1000:.2f} ms at p99 (limit {LATEST_SEC * 1000:g}), {late['1.0'] * 1000:.1f} ms at worst; "
        f"one with nothing to do by {machine * 1000:.2f} ms at p99"
    )
    missed = []
    if found["most"] < in_flight:
        missed.append(f"only {found['most']} were in flight at once")
    if found["mib"] >= MOST_MIB:
        missed.append("memory")
    if late["0.99"] >= LATEST_SEC:
        busy = " (this machine is too busy to tell)" if machine >= LATEST_SEC / 2 else ""
        missed.append(f"lateness{busy}")
    return missed


def report_rates(rollouts: int | None, inspect: Path | None) -> None:
    """Measure rollouts of nop, and samples of Inspect AI where it is asked for, by turns at each width; print both."""
    program = inspect_samples.install(inspect.absolute()) if inspect else None
    found: dict[str, list[dict[str, Any]]] = {}
    for width in WIDTHS:
        for sandbox, usual in ROLLOUTS.items():
            measured = measure_apart(sandbox, width, rollouts or usual, 0)
            found.setdefault(f"nop, {sandbox}", []).append(measured)
        if program:
            for sandbox, usual in inspect_samples.SAMPLES.items():
                measured = inspect_samples.measure(program, sandbox, width, rollouts or usual)
                found.setdefault(f"Inspect AI {measured['version']}, {sandbox}", []).append(measured)
    print("\n".join(rates_table(found)))


def rates_table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the lines of a table: rollouts per second, and the CPU milliseconds of each, at every width."""
    lines = ["", f"{'per second (CPU ms)':<28}" + "".join(f"{f'{width} in flight':>18}" for width in WIDTHS)]
    for name, measured in found.items():
        cells = (f"{each['per_second']:.1f} ({each['cpu_ms']:.1f})" for each in measured)
        lines.append(f"  {name:<26}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=200, metavar="N")
    parser.add_argument("--rollouts", type=int, metavar="N", help="for each rate")
    parser.add_argument(
        "--inspect", type=Path, metavar="DIRECTORY", help="measure samples of Inspect AI too, installed there"
    )
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.idle:
        print(asyncio.run(sleep_only()))
        return
    if given.one:
        sandbox, width, rollouts, seconds = given.one
        print(json.dumps(measure(sandbox, int(width), int(rollouts), float(seconds))))
        return
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores")
    missed = report_wide(given.in_flight)
    report_rates(given.rollouts, given.inspect)
    if missed:
        sys.exit(f"\nmissed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
