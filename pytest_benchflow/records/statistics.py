"""Reckon with rewards: means with intervals, pass@k and pass^k, and differences between paired tasks.

An interval is a bootstrap over tasks: trials of one task are alike, and so are no independent evidence. It is drawn
from a fixed seed, so that the same rewards always give the same numbers.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIDENCE = 0.95
_RESAMPLES = 2000
_SEED = 20


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with what it rests on; `low` and `high` are None where fewer than two tasks could tell a spread."""

    mean: float | None
    low: float | None
    high: float | None
    tasks: int

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the estimate for a JSON file, with the confidence its interval has."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "confidence": CONFIDENCE, "tasks": self.tasks}


def estimate(by_task: Mapping[str, Sequence[float]]) -> Estimate:
    """Return the mean over tasks of the mean of each one's trials; tasks without a number are left out."""
    means = [math.fsum(values) / len(values) for _, values in sorted(by_task.items()) if values]
    if not means:
        return Estimate(None, None, None, 0)
    low, high = _interval(means)
    return Estimate(math.fsum(means) / len(means), low, high, len(means))


def difference(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> Estimate:
    """Return by how much the tasks' means differ, `after` minus `before`, over the tasks that both have numbers for."""
    shared = sorted(task for task in before if before[task] and after.get(task))
    return estimate({task: [_mean(after[task]) - _mean(before[task])] for task in shared})


def pass_at(k: int, trials: Mapping[str, tuple[int, int]]) -> tuple[float | None, int]:
    """Return the chance that one of k trials solves a task, and over how many tasks it is the mean.

    `trials` are (how many, how many solved) by task; the unbiased estimate of Chen et al. 2021, over the tasks with k
    trials or more.
    """
    chances = [1 - math.comb(n - solved, k) / math.comb(n, k) for n, solved in trials.values() if n >= k]
    return _mean(chances) if chances else None, len(chances)


def pass_all(k: int, trials: Mapping[str, tuple[int, int]]) -> tuple[float | None, int]:
    """Return the chance that all of k trials solve a task (pass^k, Yao et al. 2024), and over how many tasks."""
    chances = [math.comb(solved, k) / math.comb(n, k) for n, solved in trials.values() if n >= k]
    return _mean(chances) if chances else None, len(chances)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _interval(means: Sequence[float]) -> tuple[float | None, float | None]:
    if len(means) < 2:
        return None, None
    draw = random.Random(_SEED)  # noqa: S311 - statistics
    drawn = sorted(math.fsum(draw.choices(means, k=len(means))) / len(means) for _ in range(_RESAMPLES))
    cut = int(_RESAMPLES * (1 - CONFIDENCE) / 2)
    return drawn[cut], drawn[-1 - cut]
