"""Name a rollout's verdict from what the checks found: a fault is never a score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._check import CATEGORIES
from pytest_benchflow.checks.execution import TIMEOUT_CATEGORIES
from pytest_benchflow.records.values import FULL_REWARD, reward_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_benchflow.checks._check import Finding


def verdict_of(findings: Iterable[Finding], result: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return (verdict, category): pass, fail, normal_timeout, or unhealthy with what is at fault."""
    faults = {finding.category for finding in findings if finding.severity == "error"}
    if faults:
        return "unhealthy", next(category for category in CATEGORIES if category in faults)
    reward = reward_of(result)
    if reward is None:
        return "unhealthy", "verifier"
    if result.get("error_category") in TIMEOUT_CATEGORIES:
        return "normal_timeout", None
    return ("pass" if reward >= FULL_REWARD else "fail"), None
