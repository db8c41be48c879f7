"""Run benchmark tasks for coding agents, and every check of what they leave, as pytest items.

from pytest_benchflow import RolloutConfig, run_rollout

rollout = await run_rollout(RolloutConfig(task="tasks/csv-report", agent="oracle"))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_benchflow.checks import check as check
    from pytest_benchflow.records.rollout import Rollout as Rollout
    from pytest_benchflow.rollout.config import RolloutConfig as RolloutConfig
    from pytest_benchflow.rollout.run import run_rollout as run_rollout

__version__ = "0.1.0"
__all__ = ["Rollout", "RolloutConfig", "check", "run_rollout"]

# Imported when first asked for: pytest loads this package at every start, and the command line works without pytest.
_HOMES = {
    "Rollout": "records.rollout",
    "RolloutConfig": "rollout.config",
    "check": "checks",
    "run_rollout": "rollout.run",
}


def __getattr__(name: str) -> Any:
    """Return a name of the public interface. Raises: AttributeError."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
