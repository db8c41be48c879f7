"""`python -m benchmarks.corpus`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.corpus.plan import Options
from benchmarks.corpus.protocols import PROTOCOLS
from benchmarks.corpus.write import write_corpus


def _fraction(value: str) -> float:
    number = float(value)
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"not between 0 and 1: {value}")
    return number


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: {value}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description="write a corpus of rollouts")
    add, default = parser.add_argument, Options()
    add("out", type=Path, help="directory to write; must be absent or empty")
    add("--rollouts", type=_positive, default=default.rollouts)
    add("--exchanges", type=_positive, default=default.exchanges, help="per rollout, retries excluded")
    add("--tool-bytes", type=_positive, default=default.tool_bytes, help="mean tool output of a step")
    add("--system-bytes", type=_positive, default=default.system_bytes, help="size of the system prompt")
    add("--tools", type=_positive, default=default.tools, help="tools offered in every request")
    add("--protocol", choices=(*PROTOCOLS, "mixed"), default=default.protocol)
    add("--retry-fraction", type=_fraction, default=default.retry_fraction, help="of the exchanges")
    add("--incomplete-fraction", type=_fraction, default=default.incomplete_fraction, help="of the rollouts")
    add("--corrupt-fraction", type=_fraction, default=default.corrupt_fraction, help="of the rollouts")
    add("--results", choices=("builtin", "none"), default=default.results, help="who writes results.jsonl")
    add("--seed", type=int, default=default.seed)
    return parser


def main(argv: list[str] | None = None) -> None:
    arguments = vars(_parser().parse_args(argv))
    out: Path = arguments.pop("out")
    try:
        outcomes = write_corpus(out, Options(**arguments))
    except FileExistsError as error:
        sys.exit(str(error))
    size = sum(sum(outcome.bytes.values()) for outcome in outcomes)
    print(f"{len(outcomes)} rollouts, {size / 1e6:.1f} MB in {out}")


if __name__ == "__main__":
    main()
