"""Measure the CPU time that the plugin adds to `pytest` in an empty directory.

    python benchmarks/startup.py [PAIRS]

Runs pytest with and without the plugin by turns, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile


def cpu_of_pytest(directory: str, *options: str) -> float:
    """Return the CPU milliseconds of one pytest session that finds nothing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options], cwd=directory, capture_output=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 5:
        sys.exit(f"pytest ended with {done.returncode} where there is nothing to run:\n{done.stdout.decode()}")
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for options in ([], ["-p", "no:benchflow"]):
            cpu_of_pytest(directory, *options)
        pairs_of_runs = [
            (cpu_of_pytest(directory), cpu_of_pytest(directory, "-p", "no:benchflow")) for _ in range(pairs)
        ]
    added = [with_plugin - without for with_plugin, without in pairs_of_runs]
    print(f"{pairs} pairs, {os.cpu_count()} cores, Python {platform.python_version()}, milliseconds of CPU")
    print(f"without the plugin  {statistics.median(without for _, without in pairs_of_runs):7.1f}")
    print(f"with the plugin     {statistics.median(with_plugin for with_plugin, _ in pairs_of_runs):7.1f}")
    print(f"added (median)      {statistics.median(added):7.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure what the plugin adds to the start of pytest")
    parser.add_argument("pairs", nargs="?", type=int, default=20)
    main(parser.parse_args().pairs)
