"""Stop starting rollouts once a session has spent what it may; its processes know by the job's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.errors import OverBudgetError, RecordError, UnpricedError, UsageError
from pytest_benchflow.records.job import rollouts_of
from pytest_benchflow.records.values import mapping, number

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.rollout.cell import Cell


class Budget:
    """US dollars that the session `session_id` may spend in a job; None: any amount.

    Rollouts that are under way when the limit is reached finish, so that a little more may be spent.
    """

    def __init__(self, job_dir: Path, session_id: str, limit: float | None) -> None:
        self._job_dir = job_dir
        self._session_id = session_id
        self._limit = limit
        self._finished: dict[str, float] = {}  # of this session: no longer looked into

    def check(self, cell: Cell) -> None:
        """Raise OverBudgetError when no further rollout may start, UsageError for a model whose price is unknown."""
        if self._limit is None or not cell.paid:
            return
        try:
            cell.config.prices.of(cell.model)
        except UnpricedError as error:
            raise UsageError(f"--benchflow-max-cost cannot hold: {error}") from None
        spent = self.spent()
        if spent >= self._limit:
            raise OverBudgetError(
                f"not started: this session has spent ${spent:.4f}, and --benchflow-max-cost is ${self._limit:g}"
            )

    def spent(self) -> float:
        """Return the US dollars that the session's finished rollouts are known to have cost."""
        for rollout in rollouts_of(self._job_dir):
            if rollout.path.name not in self._finished:
                cost = self._cost(rollout)
                if cost is not None:
                    self._finished[rollout.path.name] = cost
        return sum(self._finished.values())

    def _cost(self, rollout: Rollout) -> float | None:
        """Return what a finished rollout of this session is known to have cost, None for any other."""
        try:
            if rollout.config.get("session_id") != self._session_id or rollout.result.get("verdict") is None:
                return None
            return number(mapping(rollout.result.get("cost")).get("known_usd")) or 0.0
        except RecordError:
            return None
