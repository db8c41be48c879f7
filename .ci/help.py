"""Ask every command and subcommand for its help; each must answer on stdout with exit code 0."""

from __future__ import annotations

import re
import subprocess
import sys

COMMANDS = ["pytest-benchflow"]
# argparse marks a set of subcommands, unlike the choices of an option, by the dots after it.
_SUBCOMMANDS = re.compile(r"\{([\w,-]+)\}\s+\.\.\.")


def ask(command: list[str]) -> list[str]:
    """Print what came of one --help; return the names of its subcommands. Raises: SystemExit when it failed."""
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False, timeout=60)
    shown = " ".join(command)
    if done.returncode != 0 or not done.stdout.strip():
        sys.exit(f"{shown} --help: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"{shown} --help: ok")
    found = _SUBCOMMANDS.search(done.stdout)
    return found[1].split(",") if found else []


def walk(command: list[str]) -> None:
    """Ask a command and all below it."""
    for name in ask(command):
        walk([*command, name])


if __name__ == "__main__":
    for each in COMMANDS:
        walk([each])
    options = subprocess.run(["pytest", "--help"], capture_output=True, text=True, check=False, timeout=60)
    if options.returncode != 0 or "--benchflow-agent" not in options.stdout:
        sys.exit(f"pytest --help does not show --benchflow-agent (exit code {options.returncode})\n{options.stderr}")
    print("pytest --help: ok")
