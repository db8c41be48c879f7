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
    print(f"{pairs} pairs, {os.cpu_count()} cores, Python {platform.python_version()}, milliseconds of CPU")
    print(f"{'':<18}{'median':>9}{'lowest':>9}")
    for name, values in (
        ("with the plugin", [with_it for with_it, _ in runs]),
        ("without", [bare for _, bare in runs]),
    ):
        print(f"{name:<18}{statistics.median(values):>9.1f}{min(values):>9.1f}")
    added = statistics.median(with_it - bare for with_it, bare in runs)
    lowest = min(with_it for with_it, _ in runs) - min(bare for _, bare in runs)
    print(f"{'added':<18}{added:>9.1f}{lowest:>9.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure what the plugin adds to the start of pytest")
    parser.add_argument("pairs", nargs="?", type=int, default=20)
    main(parser.parse_args().pairs)
