"""Take a review apart: what its stages and each check cost."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_benchflow.checks._evidence import NEEDS, fresh_content, rebuilt, row_parts
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.report.review import checks_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.checks._check import Check


def stage_costs(roots: Sequence[Path], repeats: int) -> dict[str, float]:
    """Return the CPU seconds of each stage and check over all rollouts: of each rollout the best of several.

    What checks share is a stage where it has a name here; otherwise the first check that needs it pays for it.
    """
    checks = checks_for()
    total: defaultdict[str, float] = defaultdict(float)
    for root in roots:
        rounds = [_costs(Rollout(root), checks) for _ in range(repeats)]
        for name in rounds[0]:
            total[name] += min(costs[name] for costs in rounds)
    return total


def _costs(rollout: Rollout, checks: Mapping[str, Check]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, work in _stages(rollout, checks).items():
        began = time.process_time()
        # A claim that does not hold, or has nothing to look at, costs what it costs.
        with contextlib.suppress(Exception):
            work()
        found[name] = time.process_time() - began
    return found


def _stages(rollout: Rollout, checks: Mapping[str, Check]) -> dict[str, Callable[[], object]]:
    """Return the stages of a review in their order; each finds what the ones before it have read."""
    shared: dict[str, Callable[[], object]] = {
        "(read llm_trajectory.jsonl)": lambda: rollout.exchanges,
        "(read results.jsonl)": lambda: rollout.rows,
        "(read acp_trajectory.jsonl)": lambda: rollout.events,
        "(rebuild the row)": lambda: rebuilt(rollout),
        "(what is new in each exchange)": lambda: fresh_content(rollout),
        "(what is new in each step)": lambda: row_parts(rollout),
        "(which evidence is there)": lambda: [need(rollout) for need in NEEDS.values()],
    }
    return shared | {name: _running(rollout, check) for name, check in checks.items()}


def _running(rollout: Rollout, check: Check) -> Callable[[], object]:
    return lambda: check(rollout)
