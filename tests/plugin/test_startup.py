"""What the plugin costs a pytest that has nothing to do with it."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.startup import cpu_of_pytest
from pytest_benchflow.checks import artifacts

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_MS = 30.0
# What pytest alone takes on a machine that has time; beside others, all the same work takes more.
ALONE_MS = 250.0
PAIRS = 10
MOST_PAIRS = 60
PROGRAM = """\
import sys, pytest
code = pytest.main(["-p", "no:cacheprovider"])
sys.exit(code)
"""


def test_an_empty_directory_costs_little_more(tmp_path: Path) -> None:
    """What else the machine does falls on both sessions of a pair; where it hides the answer, more pairs are run."""
    cpu_of_pytest(tmp_path, with_plugin=True)  # compiles what it imports
    added, limit = [], LIMIT_MS
    both: list[tuple[float, float]] = []
    while len(both) < MOST_PAIRS:
        for _ in range(PAIRS):
            first = len(both) % 2 == 0
            one, other = (cpu_of_pytest(tmp_path, with_plugin=each) for each in (first, not first))
            both.append((one, other) if first else (other, one))
        typical = statistics.median(with_plugin - without for with_plugin, without in both)
        least = min(with_plugin for with_plugin, _ in both) - min(without for _, without in both)
        added = [typical, least]
        limit = LIMIT_MS * max(1.0, statistics.median(without for _, without in both) / ALONE_MS)
        if max(added) < limit:
            return
    raise AssertionError(f"the plugin adds {added} ms of CPU (median of pairs, least of all), the limit is {limit:.0f}")


def test_a_session_without_tasks_imports_only_what_every_session_needs(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_pass(): pass\n")
    listing = "print('OURS', sorted(name for name in sys.modules if name.startswith('pytest_benchflow')))\n"
    program = PROGRAM.replace("sys.exit", f"{listing}sys.exit")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    loaded = done.stdout.rpartition("OURS")[2]
    rooms = {name.strip(" '[]").partition(".")[2] for name in loaded.split(",")}
    assert {room.strip(" '[]\n") for room in rooms} == {"", "errors", "fixtures", "hookspecs", "plugin", "settings"}


def test_the_command_line_does_not_load_pytest(tmp_path: Path) -> None:
    program = "import sys, pytest_benchflow.cli, pytest_benchflow.report.review; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_asserts_of_the_shipped_checks_are_rewritten() -> None:
    spec = artifacts.__spec__
    assert spec is not None
    assert type(spec.loader).__name__ == "AssertionRewritingHook"
