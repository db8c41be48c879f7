"""Measure what writing a report costs, as a ratio to parsing the job that it tells of.

    python -m benchmarks.report [--rollouts N] [--exchanges N] [--repeats N]

CPU time is set against what `orjson.loads` alone takes for the same lines of llm_trajectory.jsonl and results.jsonl, by
turns in one process, the best of several. The peak of memory is that of a process which writes the report of one
rollout, and of one which writes that of all.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson

from benchmarks.corpus.plan import Options
from benchmarks.review import cpu_of, logs_of, parse_cpu, prepared, rollouts_in
from pytest_benchflow.report.html.write import write_report
from pytest_benchflow.report.review import checks_for

# What the ratio may be at most, and how much more memory a job may take than one rollout of it.
LIMIT = 6.0
GROWTH_MIB = 48
ALONE = """
import sys
from pathlib import Path
from pytest_benchflow.report.html.write import write_report
from pytest_benchflow.report.review import checks_for
write_report(Path(sys.argv[1]), Path(sys.argv[2]) / "report.html", checks_for())
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def peak(job: Path) -> float:
    """Return the peak memory in MiB of a process that writes a job's report."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-c", ALONE, str(job), scratch]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024


def judged(value: float, limit: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}{'' if value <= limit else ' OVER'} (limit {limit:g})"


def main(options: argparse.Namespace) -> int:
    """Measure and print; return 1 when a limit is not kept."""
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, orjson {orjson.__version__}\n")
    checks = checks_for()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        job = prepared(place, "many", Options(rollouts=options.rollouts, exchanges=options.exchanges))
        one = prepared(place, "one", Options(rollouts=1, exchanges=options.exchanges))
        roots = rollouts_in(job)
        parse = wrote = math.inf
        for _ in range(options.repeats):
            parse = min(parse, sum(map(parse_cpu, roots)))
            wrote = min(wrote, cpu_of(lambda: write_report(job, place / "report.html", checks)))
        size = sum(path.stat().st_size for root in roots for path in logs_of(root))
        html = (place / "report.html").stat().st_size
        growth = peak(job) - peak(one)
    print(f"{options.rollouts} rollouts x {options.exchanges} exchanges, {size / 1e6:,.0f} MB")
    print(f"parse    {1000 * parse:>10,.0f} ms")
    print(f"report   {1000 * wrote:>10,.0f} ms   {judged(wrote / parse, LIMIT)} times the parse")
    print(f"file     {html / 1e6:>10,.1f} MB   {100 * html / size:.1f} % of the logs")
    print(f"memory of all beyond that of one rollout: {judged(growth, GROWTH_MIB, 0)} MiB")
    return int(wrote / parse > LIMIT or growth > GROWTH_MIB)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure what writing a report costs")
    parser.add_argument("--rollouts", type=int, default=200, metavar="N", help="rollouts of the job (default: 200)")
    parser.add_argument("--exchanges", type=int, default=30, metavar="N", help="exchanges of each (default: 30)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="take the best of so many (default: 3)")
    sys.exit(main(parser.parse_args()))
