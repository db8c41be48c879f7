"""Stop starting rollouts once a session has spent what it may; its processes know by the job's files."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_benchflow.errors import OverBudgetError, RecordError, UnpricedError, UsageError
from pytest_benchflow.pricing import Price
from pytest_benchflow.records.attempts import attempts_of
from pytest_benchflow.records.coverage import runs_of
from pytest_benchflow.records.job import rollouts_of
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.values import integer, mapping, number
from pytest_benchflow.training.account import costs
from pytest_benchflow.training.threads import classify_line

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.rollout.cell import Cell


# File systems tell times that are that much older than the clock's at most.
_COARSE_SEC = 1.0


class _Spent(NamedTuple):
    """What a rollout has cost in US dollars, beside `unknown` exchanges of which nobody can tell."""

    known: float
    dearest: float | None = None  # the most that one exchange is known to have cost
    unknown: int = 0
    blind: str | None = None  # why nothing can be said of those


class _UnderWay:
    """What a rollout without a verdict has cost; of its log only what is new is read."""

    def __init__(self) -> None:
        self._read = 0  # bytes of the log
        self._lines = 0
        self.spent = _Spent(0.0)  # as it was seen last

    def look(self, log: Path, price: Price) -> _Spent:
        """Return what the exchanges recorded so far cost. Raises: OSError."""
        with log.open("rb") as file:
            file.seek(self._read)
            exchanges = []
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                exchanges.append(classify_line(self._lines, line))
                self._read += len(line)
                self._lines += 1
        told, before = costs(exchanges, price), self.spent
        self.spent = _Spent(
            before.known + told["known_usd"],
            max(before.dearest or 0.0, told["dearest_usd"] or 0.0) or None,
            before.unknown + told["n_unpriced"],
            before.blind or told["unpriced"],
        )
        return self.spent


class Budget:
    """US dollars that the session `session_id` may spend in a job; None: any amount.

    Rollouts that are under way count with what they have recorded. When the limit is reached they finish, so that a
    little more may be spent.
    """

    def __init__(self, job_dir: Path, session_id: str, limit: float | None) -> None:
        self._job_dir = job_dir
        self._session_id = session_id
        self._limit = limit
        # Attempts of this session, by rollout and time of the result: no longer looked into.
        self._finished: dict[tuple[str, int], _Spent] = {}
        # By name and start, which stay when an attempt moves.
        self._under_way: dict[tuple[Any, Any], _UnderWay] = {}
        self._began: float | None = None  # when the session did, in seconds since the epoch, once it is known

    def check(self, cell: Cell) -> None:
        """Raise OverBudgetError when no further rollout may start, UsageError for a model whose price is unknown."""
        if self._limit is None or not cell.paid:
            return
        try:
            cell.config.prices.of(cell.model)
        except UnpricedError as error:
            raise UsageError(f"--benchflow-max-cost cannot hold: {error}") from None
        found = self._look()
        dearest = max((each.dearest or 0.0 for _, each in found), default=0.0)
        spent = reserved = 0.0
        for name, each in found:
            most = each.dearest or dearest
            if each.blind and not (each.unknown and most):
                raise OverBudgetError(
                    f"not started: --benchflow-max-cost cannot hold, for what {name} cost is not known: {each.blind}"
                )
            spent += each.known + each.unknown * most
            reserved += each.unknown
        if spent >= self._limit:
            how = f" ({reserved:g} of unknown cost counted as the dearest exchange of their rollout)"
            raise OverBudgetError(
                f"not started: this session has spent ${spent:.4f}{how if reserved else ''}, and --benchflow-max-cost "
                f"is ${self._limit:g}"
            )

    def _look(self) -> list[tuple[str, _Spent]]:
        """Return what each attempt of this session has cost so far."""
        under_way = []
        for rollout in rollouts_of(self._job_dir):
            for attempt in (*attempts_of(rollout.dir), rollout):
                key = (rollout.path.name, _written(attempt))
                if key in self._finished:
                    continue
                if (spent := self._spent(attempt)) is not None:
                    self._finished[key] = spent
                elif (so_far := self._so_far(attempt)) is not None:
                    under_way.append((rollout.path.name, so_far))
        return [*((name, each) for (name, _), each in self._finished.items()), *under_way]

    def _so_far(self, attempt: Rollout) -> _Spent | None:
        """Return what an attempt of this session without a verdict has cost, None for any other."""
        try:
            config = attempt.config
        except RecordError as error:
            return self._unread(attempt, error)
        if config.get("session_id") != self._session_id or config.get("price") is None:
            return None
        known = self._under_way.setdefault((config.get("rollout_name"), config.get("started_at")), _UnderWay())
        try:
            return known.look(attempt.dir.llm, Price.of_json(config["price"]))
        except UnpricedError as error:
            return _Spent(0.0, blind=str(error))
        except FileNotFoundError:
            return known.spent  # nothing is recorded yet, or it has just been moved
        except OSError as error:
            return _Spent(0.0, blind=f"{attempt.dir.llm.name} cannot be read ({error.strerror})")

    def _unread(self, attempt: Rollout, error: RecordError) -> _Spent | None:
        """Return that nobody knows what an attempt has cost; None where it has not begun, or was before this session.

        Of which session it is cannot be read; what was written since this one began counts as its own.
        """
        try:
            written = attempt.dir.config.lstat().st_mtime
        except FileNotFoundError:
            return None
        if self._began is None:
            self._began = _began(self._job_dir, self._session_id)
        if self._began is not None and written < self._began - _COARSE_SEC:
            return None
        return _Spent(
            0.0, blind=f"{error}; put it right, or pass another --benchflow-job-name and what is left of the limit"
        )

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
        return _Spent(known, dearest, unknown)


def _began(job_dir: Path, session_id: str) -> float | None:
    """Return when a session began, in seconds since the epoch; None where its job does not say."""
    try:
        runs = runs_of(read_json(job_dir / "job.json"))
        started = next(run.get("started_at") for run in runs if run.get("session_id") == session_id)
        return datetime.fromisoformat(str(started)).timestamp()
    except (RecordError, StopIteration, ValueError):
        return None


def _written(attempt: Rollout) -> int:
    """Return when an attempt's result was written, which stays when it moves into attempts/; 0: not yet."""
    try:
        return attempt.dir.result.stat().st_mtime_ns
    except OSError:
        return 0
