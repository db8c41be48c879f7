"""Measure what a check costs as a pytest item, beside the checks themselves and beside an item that does nothing.

    python benchmarks/review_items.py [ROLLOUTS] [--case DIR] [--junit] [--workers N]

Reviews copies of one small rollout with `pytest -q --benchflow-review` and alone with the engine, each in a process of
its own, and runs as many items that do nothing.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CASE = Path(__file__).parents[1] / "tests" / "cases" / "c01_clean_pass" / "rollout"
ENGINE = """
import sys
from pathlib import Path
from pytest_benchflow.report.review import checks_for, review_rollout, rollouts_at
checks = checks_for()
reviews = [review_rollout(root, checks).healthy for root in rollouts_at([Path(sys.argv[1])])]
print(len(reviews), len(checks))
"""
BARE = """
import os, pytest
class Nothing(pytest.Item):
    def runtest(self): pass
    def reportinfo(self): return self.path, None, self.name
class Nothings(pytest.File):
    def collect(self):
        for number in range(int(os.environ["ITEMS"])):
            yield Nothing.from_parent(self, name=f"check_{number}")
def pytest_collect_file(file_path, parent):
    return Nothings.from_parent(parent, path=file_path) if file_path.suffix == ".bare" else None
"""


@dataclass(frozen=True)
class Cost:
    """CPU seconds and peak memory in KiB of a process and its children."""

    cpu: float
    peak: int
    said: str


def cost_of(arguments: list[str], place: Path, **variables: str) -> Cost:
    """Run Python with arguments and return what it cost; any failure ends the benchmark."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    with (place / "said").open("w+") as said:
        process = subprocess.Popen([sys.executable, *arguments], cwd=place, env=environment, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    if process.returncode:
        sys.exit(f"{arguments} ended with {process.returncode}:\n{text[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, text)


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        for number in range(options.rollouts):
            shutil.copytree(options.case, place / "jobs" / f"rollout-{number:04}")
        shutil.copytree(options.case, place / "one" / "rollout")
        (place / "items.bare").touch()
        (place / "bare.py").write_text(BARE)
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "-c/dev/null"]
        ours = [*pytest, "-p", "xdist", "-p", "benchflow"]
        more = [
            *(["--junitxml=out.xml"] if options.junit else []),
            *(["-n", options.workers] if options.workers else []),
        ]
        engine, engine_of_one = (cost_of(["-c", ENGINE, name], place) for name in ("jobs", "one"))
        reviewed, checks = map(int, engine.said.split())
        items = (reviewed - 1) * checks
        review, review_of_one = (
            cost_of([*ours, f"--benchflow-review={name}", *more], place) for name in ("jobs", "one")
        )
        bare, bare_of_one = (
            cost_of([*pytest, "-p", "bare", "items.bare"], place, ITEMS=str(count), PYTHONPATH=scratch)
            for count in (reviewed * checks, checks)
        )
    judged = engine.cpu - engine_of_one.cpu
    print(f"{reviewed} rollouts, {checks} checks each, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"the checks themselves: {1000 * judged / (reviewed - 1):.2f} ms of CPU a rollout")
    print(f"{'':<26}{'ms of CPU an item':>20}{'KiB an item':>14}")
    for name, cost in (
        ("a check as an item", (review.cpu - review_of_one.cpu - judged, review.peak - review_of_one.peak)),
        ("an item that does nothing", (bare.cpu - bare_of_one.cpu, bare.peak - bare_of_one.peak)),
    ):
        print(f"{name:<26}{1000 * cost[0] / items:>20.2f}{cost[1] / items:>14.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure what a check costs as a pytest item")
    parser.add_argument("rollouts", nargs="?", type=int, default=1000)
    parser.add_argument("--case", type=Path, default=CASE, help="rollout to copy (default: one of the case library)")
    parser.add_argument("--junit", action="store_true", help="write a JUnit file too")
    parser.add_argument("--workers", metavar="N", help="distribute over so many workers")
    main(parser.parse_args())
