"""Write docs/run.svg, the picture in the README: what a real run prints.

    python docs/make_picture.py

Runs some of the bundled tasks, as a user would, in a directory that holds nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
TASKS = ("cron-next", "csv-report", "log-triage", "patch-recovery")
OPTIONS = ("--benchflow-agent=baseline", "--benchflow-agent=nop", "--benchflow-job-name=demo")
WIDTH = 96


def run(place: Path) -> str:
    """Return what pytest prints, with its colours."""
    for name in TASKS:
        shutil.copytree(ROOT / "tasks" / name, place / "tasks" / name)
    (place / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "tasks", *OPTIONS, "--no-header", "--color=yes"]
    environment = {**os.environ, "COLUMNS": str(WIDTH)}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the run ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def draw(output: str, target: Path) -> None:
    """Write the output as a picture of a terminal."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text(f"$ pytest tasks {' '.join(OPTIONS[:2])}", style="bold"))
        console.print(Text.from_ansi(output))
        picture = console.export_svg(title="pytest tasks", unique_id="run")
    target.write_text("".join(line.rstrip() + "\n" for line in picture.splitlines()), encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        draw(run(Path(scratch)), ROOT / "docs" / "run.svg")
