"""Tell how often the intervals of means hold the true mean, where each task is tried once and solved by chance.

    python -m benchmarks.intervals [CHANCE]

Nothing is drawn beside what the intervals draw themselves: every number of solved tasks counts with its probability.
"""

from __future__ import annotations

import argparse
import math

from pytest_benchflow.records.statistics import CONFIDENCE, estimate

TASKS = (3, 5, 10, 20, 50)


def coverage(tasks: int, chance: float) -> float:
    """Return the probability that the interval over so many tasks holds `chance`."""
    held = 0.0
    for solved in range(tasks + 1):
        found = estimate({f"{number:03}": [float(number < solved)] for number in range(tasks)})
        if found.low is not None and found.high is not None and found.low <= chance <= found.high:
            held += math.comb(tasks, solved) * chance**solved * (1 - chance) ** (tasks - solved)
    return held


def main(chance: float) -> None:
    """Print a line for each number of tasks."""
    print(f"each task solved with a chance of {chance:g}; an interval is to hold {CONFIDENCE:.0%}\n")
    for tasks in TASKS:
        print(f"{tasks:>5} tasks{coverage(tasks, chance):>8.0%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="tell how often the intervals of means hold the true mean")
    parser.add_argument("chance", type=float, nargs="?", default=0.8, help="of a task to be solved (default: 0.8)")
    main(parser.parse_args().chance)
