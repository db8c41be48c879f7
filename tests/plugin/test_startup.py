"""What the plugin costs a pytest that has nothing to do with it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from pytest_benchflow.checks import artifacts

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_SEC = 0.030
# On a busy machine the same work takes more CPU time: then the limit is a share of what pytest itself takes.
SHARE = 0.1
ROUNDS = 8
PROGRAM = """\
import sys, time, pytest
code = pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]])
print("CPU", time.process_time())
sys.exit(code)
"""


def cpu_of_pytest(directory: Path, *options: str) -> float:
    """Return the CPU seconds of a pytest process that finds nothing to collect."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-c", PROGRAM, *options]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stdout
    return float(done.stdout.rpartition("CPU")[2])


def test_an_empty_directory_costs_little_more(tmp_path: Path) -> None:
    # The least of several, as other processes only ever add to it; in turns, so that both meet the same load.
    with_plugin, without = [], []
    for _ in range(ROUNDS):
        with_plugin.append(cpu_of_pytest(tmp_path))
        without.append(cpu_of_pytest(tmp_path, "-p", "no:benchflow"))
    assert min(with_plugin) - min(without) < max(LIMIT_SEC, SHARE * min(without))


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
