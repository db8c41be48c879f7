"""Ask every command and subcommand for its help; each must answer on stdout with exit code 0."""

from __future__ import annotations

import argparse
import subprocess
import sys

from pytest_benchflow import cli


def commands(parser: argparse.ArgumentParser, path: list[str]) -> list[list[str]]:
    """Return the command of a parser and those of all below it."""
    found = [path]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                found += commands(below, [*path, name])
    return found


def ask(command: list[str], expected: str) -> bool:
    """Run one command with --help and say how it went."""
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False, timeout=60)
    good = done.returncode == 0 and expected in done.stdout
    print(f"{' '.join(command)} --help: {'ok' if good else f'FAILED with exit code {done.returncode}'}")
    if not good:
        print(done.stdout, done.stderr, sep="\n")
    return good


if __name__ == "__main__":
    answers = [ask(command, "usage:") for command in commands(cli.parser(), ["pytest-benchflow"])]
    answers.append(ask(["pytest"], "--benchflow-agent"))
    sys.exit(0 if all(answers) else 1)
