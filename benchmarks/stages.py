"""Take a review apart: what its stages and each check cost."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_benchflow.checks._check import run_checks
from pytest_benchflow.checks._evidence import fresh_content, rebuilt, row_parts
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.report.review import checks_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.checks._check import Check


def stage_costs(roots: Sequence[Path], repeats: int) -> dict[str, float]:
    """Return the CPU seconds of each stage and check over all rollouts, the best of several.

    What checks share is a stage where it has a name here; otherwise the first check that needs it pays for it.
    """
    checks = checks_for()
    best: dict[str, float] = {}
    for _ in range(repeats):
        total: defaultdict[str, float] = defaultdict(float)
        for root in roots:
            for name, work in _stages(Rollout(root), checks).items():
                began = time.process_time()
                work()
                total[name] += time.process_time() - began
        best = {name: min(seconds, best.get(name, seconds)) for name, seconds in total.items()}
    return best


def _stages(rollout: Rollout, checks: Mapping[str, Check]) -> dict[str, Callable[[], object]]:
    """Return the stages of a review in their order; each finds what the ones before it have read."""
    shared: dict[str, Callable[[], object]] = {
        "(read llm_trajectory.jsonl)": lambda: rollout.exchanges,
        "(read results.jsonl)": lambda: rollout.rows,
        "(read acp_trajectory.jsonl)": lambda: rollout.events,
        "(rebuild the row)": lambda: rebuilt(rollout),
        "(what is new in each exchange)": lambda: fresh_content(rollout),
        "(what is new in each step)": lambda: row_parts(rollout),
    }
    return shared | {name: _running(rollout, name, check) for name, check in checks.items()}


def _running(rollout: Rollout, name: str, check: Check) -> Callable[[], object]:
    return lambda: run_checks(rollout, {name: check})
