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
from pathlib import Path


def cpu_of_pytest(directory: Path, *, with_plugin: bool) -> float:
    """Return the CPU milliseconds of one pytest session that finds nothing, with xdist and no other plugin."""
    plugins = ["-p", "xdist", *(["-p", "benchflow"] if with_plugin else [])]
    # Compiled modules are kept, whatever the machine's setting: an installed package has them.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPYCACHEPREFIX": str(directory / "compiled")}
    empty = directory / "empty"
    empty.mkdir(exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins],
        cwd=empty,
        env=environment,
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 5:
        sys.exit(f"pytest ended with {done.returncode} where there is nothing to run:\n{done.stderr.decode()}")
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        for _warm_up in range(2):
            cpu_of_pytest(directory, with_plugin=True)
        runs = [
            (cpu_of_pytest(directory, with_plugin=True), cpu_of_pytest(directory, with_plugin=False))
            for _ in range(pairs)
        ]
    added = [with_plugin - without for with_plugin, without in runs]
    print(f"{pairs} pairs, {os.cpu_count()} cores, Python {platform.python_version()}, milliseconds of CPU")
    print(f"pytest and xdist    {statistics.median(without for _, without in runs):7.1f}")
    print(f"and this plugin     {statistics.median(with_plugin for with_plugin, _ in runs):7.1f}")
    print(f"added (median)      {statistics.median(added):7.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure what the plugin adds to the start of pytest")
    parser.add_argument("pairs", nargs="?", type=int, default=20)
    main(parser.parse_args().pairs)
