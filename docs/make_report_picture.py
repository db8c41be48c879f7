"""Write docs/report.png, the picture of a report: the bundled tasks, as Chromium shows their job.

    python docs/make_report_picture.py

Runs all bundled tasks as a user would, in a directory that holds nothing else; needs chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
AGENTS = ("baseline", "oracle", "nop")
SIZE = "1180,870"


def run(place: Path) -> Path:
    """Run the bundled tasks and return the report of their job."""
    shutil.copytree(ROOT / "tasks", place / "tasks")
    (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    agents = [f"--benchflow-agent={name}" for name in AGENTS]
    program = [sys.executable, "-m"]
    named = ["--benchflow-job-name=demo", "--benchflow-trials=2", "-m", "rollout", "-q"]
    for command in (["pytest", "tasks", *agents, *named], ["pytest_benchflow", "report", "jobs/demo"]):
        done = subprocess.run([*program, *command], cwd=place, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{command[0]} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return place / "jobs" / "demo" / "report.html"


def take_picture(report: Path, target: Path) -> None:
    """Write what Chromium shows of a report."""
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = ["chromium", "--headless=new", *root, "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
    command += ["--virtual-time-budget=4000", f"--screenshot={target}", report.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        take_picture(run(Path(scratch)), ROOT / "docs" / "report.png")
