"""The command `export`: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow import registry

if TYPE_CHECKING:
    from collections import Counter

    from pytest_benchflow.exporters._base import Export

HELP = "write training rows and trajectories for other tools"
TEXT = """\
Write the training-ready rollouts at or below paths (a rollout, a job, a directory of jobs) in the format of a trainer
or of another tool. Rows are made from the raw exchanges; rollouts that are left out are counted by reason."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    formats = ", ".join(name.replace("_", "-") for name in registry.shipped("exporters"))
    parser.add_argument("format", help=f"{formats}, or one that an installed plug-in offers")
    parser.add_argument("path", nargs="+", type=Path, help="a rollout, a job or a directory of jobs")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="file to write, one row a line")
    parser.add_argument(
        "--min-reward", type=number, metavar="X", help="leave out rollouts with less, or with no reward at all"
    )
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="also write what was written and left out")
    parser.add_argument(
        "--side-calls", action="store_true", help="also rows of side calls: titles, summaries, sub-agents"
    )
    parser.add_argument(
        "--format-version", metavar="V", help="an older version of the format, such as 1.7 for atif (default: newest)"
    )


def run(options: argparse.Namespace) -> int:
    """Export and print what was done; 1 when nothing could be written."""
    from pytest_benchflow.exporters._base import export

    done = export(
        options.format,
        options.path,
        options.out,
        min_reward=options.min_reward,
        side_calls=options.side_calls,
        manifest=options.manifest,
        version=options.format_version,
    )
    for line in summary(done):
        sys.stdout.write(line + "\n")
    return 0 if done.rows else 1


def summary(done: Export) -> list[str]:
    """Return what an export did, in a few lines."""
    lines = [f"{done.out}: {_count(done.rows, 'row')} from {done.exported} of {_count(done.seen, 'rollout')}"]
    if done.skipped:
        lines.append(f"left out: {_reasons(done.skipped)}")
    if done.refused:
        lines.append(f"branches left out of exported rollouts: {_reasons(done.refused)}")
    if done.redactions:
        lines.append(
            f"redacted: {_count(done.redactions, 'secret')}; "
            f"{_count(done.trainable_redacted, 'row')} with changes in what the model wrote"
        )
    if done.tools_redefined:
        lines.append(f"{_count(done.tools_redefined, 'row')} with a tool whose definition changed on the way")
    if done.not_loaded_back:
        lines.append(f"note: {done.not_loaded_back}")
    return lines


def _reasons(counts: Counter[str]) -> str:
    return ", ".join(f"{reason} {number}" for reason, number in sorted(counts.items()))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def number(text: str) -> float:
    """Return a finite number."""
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is no finite number")
    return value
