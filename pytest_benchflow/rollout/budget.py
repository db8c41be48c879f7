"""Stop starting rollouts once a session has spent what it may; its processes know by the job's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_benchflow.errors import OverBudgetError, RecordError, UnpricedError, UsageError
from pytest_benchflow.records.attempts import attempts_of
from pytest_benchflow.records.job import rollouts_of
from pytest_benchflow.records.values import integer, mapping, number

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.rollout.cell import Cell


class _Spent(NamedTuple):
    """What a finished rollout has cost in US dollars, the unknown exchanges each as its dearest known one."""

    usd: float
    reserved: int = 0  # exchanges of unknown cost that `usd` has an amount for
    blind: str | None = None  # why nothing can be said of the rest


class Budget:
    """US dollars that the session `session_id` may spend in a job; None: any amount.

    Rollouts that are under way when the limit is reached finish, so that a little more may be spent.
    """

    def __init__(self, job_dir: Path, session_id: str, limit: float | None) -> None:
        self._job_dir = job_dir
        self._session_id = session_id
        self._limit = limit
        # Attempts of this session, by rollout and time of the result: no longer looked into.
        self._finished: dict[tuple[str, int], _Spent] = {}

    def check(self, cell: Cell) -> None:
        """Raise OverBudgetError when no further rollout may start, UsageError for a model whose price is unknown."""
        if self._limit is None or not cell.paid:
            return
        try:
            cell.config.prices.of(cell.model)
        except UnpricedError as error:
            raise UsageError(f"--benchflow-max-cost cannot hold: {error}") from None
        self._look()
        for (name, _), each in self._finished.items():
            if each.blind:
                raise OverBudgetError(
                    f"not started: --benchflow-max-cost cannot hold, for what {name} cost is not known: {each.blind}"
                )
        spent = sum(each.usd for each in self._finished.values())
        reserved = sum(each.reserved for each in self._finished.values())
        if spent >= self._limit:
            how = f" ({reserved} of unknown cost counted as the dearest exchange of their rollout)" if reserved else ""
            raise OverBudgetError(
                f"not started: this session has spent ${spent:.4f}{how}, and --benchflow-max-cost is ${self._limit:g}"
            )

    def _look(self) -> None:
        for rollout in rollouts_of(self._job_dir):
            for attempt in (*attempts_of(rollout.dir), rollout):
                key = (rollout.path.name, _written(attempt))
                if key not in self._finished and (spent := self._spent(attempt)) is not None:
                    self._finished[key] = spent

    def _spent(self, rollout: Rollout) -> _Spent | None:
        """Return what a finished rollout of this session has cost, None for any other."""
        try:
            if rollout.config.get("session_id") != self._session_id or rollout.result.get("verdict") is None:
                return None
            if rollout.config.get("price") is None:
                return _Spent(0.0)  # recorded answers, or no model at all
            cost = mapping(rollout.result.get("cost"))
        except RecordError:
            return None
        known, dearest = number(cost.get("known_usd")), number(cost.get("dearest_usd"))
        unknown = integer(cost.get("n_unpriced"))
        if known is None or unknown is None or (unknown and dearest is None):
            return _Spent(known or 0.0, blind=str(cost.get("unpriced") or "it was not added up"))
        return _Spent(known + unknown * (dearest or 0.0), unknown)


def _written(attempt: Rollout) -> int:
    """Return when an attempt's result was written, which stays when it moves into attempts/; 0: not yet."""
    try:
        return attempt.dir.result.stat().st_mtime_ns
    except OSError:
        return 0
