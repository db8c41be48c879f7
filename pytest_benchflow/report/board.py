"""Know how the rollouts of a session stand, from what each of its processes tells, and say it in few words."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.underway import UnderWay
from pytest_benchflow.report.text import UNKNOWN, cost_text, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Fewer rollouts that have ended say nothing of those that are to come.
_BASIS = 2
_GAP = " · "
_TOLD: dict[str, type] = {"planned": int, "without": str, "rollout": dict, "fault": str}


@dataclass(slots=True)
class Seen:
    """A rollout under way, and when, by the clock of this process, what became of it."""

    rollout: UnderWay
    begun: float
    phase_begun: float
    active: float


@dataclass(frozen=True, slots=True)
class Standing:
    """How the rollouts of a session stand at one moment; None: not known. `left` are those that have not begun."""

    at: float
    under_way: tuple[Seen, ...]  # the most recently active first
    finished: int
    healthy: int
    left: int | None
    cost: str | None  # None: no rollout so far has cost anything, or may have
    eta: float | None  # seconds

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Return what is to be said in a line, each part with what it is about."""
        unhealthy = self.finished - self.healthy
        parts = [("under way", f"{len(self.under_way)} under way"), ("finished", f"{self.finished} finished")]
        parts += [("healthy", f"{self.healthy} healthy")] if self.finished else []
        parts += [("unhealthy", f"{unhealthy} unhealthy")] if unhealthy else []
        parts.append(("left", f"{UNKNOWN if self.left is None else self.left} left"))
        parts += [("cost", f"cost {self.cost}")] if self.cost is not None else []
        parts.append(("eta", f"time left {UNKNOWN if self.eta is None else f'about {span(self.eta)}'}"))
        return parts

    def __str__(self) -> str:
        return _GAP.join(text for _, text in self.parts)


class Board:
    """Takes what processes tell (`rollout.progress.Progress`), in any thread; `changed` is set whenever one has."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.changed = threading.Event()
        self.news: deque[UnderWay] = deque()  # each rollout as it began and as it ended, for who takes them off
        self.fault: str | None = None  # the first thing that was not told, or told as nobody can read it
        self._clock = clock
        self._lock = threading.Lock()
        self._planned: int | None = None
        self._under_way: dict[str, Seen] = {}
        self._source: dict[str, str] = {}
        self._ended: dict[str, UnderWay] = {}
        self._cut: list[UnderWay] = []  # what was under way in a process that is gone
        self._without: set[str] = set()

    def take(self, told: Mapping[str, Any], source: str = "") -> None:
        """Take what a process tells; `source` is its name. What cannot be read is a `fault`, and changes nothing."""
        with self._lock:
            try:
                self._take(told, source)
            except ValueError as error:
                self._note(str(error), source)
        self.changed.set()

    def _take(self, told: Any, source: str) -> None:
        """Take what a process tells. Raises: ValueError for what cannot be read."""
        if not isinstance(told, dict) or not told.keys() <= _TOLD.keys():
            raise ValueError(f"a process tells {one_line(repr(told))}, where {', '.join(_TOLD)} belong")
        for name, value in told.items():
            if type(value) is not _TOLD[name]:
                raise ValueError(f"a process tells {name} as a {type(value).__name__}")
        if "planned" in told:
            self._planned = told["planned"]
        if "without" in told:
            self._without.add(told["without"])
        if "rollout" in told:
            self._see(UnderWay.of_dict(told["rollout"]), source)
        if "fault" in told:
            self._note(told["fault"], source)

    def _note(self, fault: str, source: str) -> None:
        self.fault = self.fault or (f"{source}: {fault}" if source else fault)

    def gone(self, source: str) -> None:
        """Take note that a process is gone: what was under way there has not ended, and is not under way any more."""
        with self._lock:
            for name in [name for name, where in self._source.items() if where == source]:
                seen = self._under_way.pop(name, None)
                if seen is not None:
                    seen.rollout.unpriced += seen.rollout.paid
                    self._cut.append(seen.rollout)
                del self._source[name]
        self.changed.set()

    def _see(self, rollout: UnderWay, source: str) -> None:
        now, name = self._clock(), rollout.name
        before = self._under_way.get(name)
        if before is None:
            before = self._under_way[name] = Seen(rollout, now, now, now)
            self._source[name] = source
            if self._ended.pop(name, None):
                self._without.discard(name)
            self.news.append(_begun(rollout))
        if (before.rollout.phase, before.rollout.step) != (rollout.phase, rollout.step):
            before.phase_begun = now
        before.rollout, before.active = rollout, now
        if rollout.ended:
            del self._under_way[name], self._source[name]
            self._ended[name] = rollout
            self.news.append(rollout)

    def standing(self) -> Standing:
        """Return how the rollouts stand."""
        now = self._clock()
        with self._lock:
            under_way = sorted(self._under_way.values(), key=lambda seen: -seen.active)
            ended = list(self._ended.values())
            all_known = [*ended, *self._cut, *(seen.rollout for seen in under_way)]
            left = None
            if self._planned is not None:
                left = max(0, self._planned - len(ended) - len(under_way) - len(self._without - set(self._ended)))
            return Standing(
                at=now,
                under_way=tuple(Seen(seen.rollout, seen.begun, seen.phase_begun, seen.active) for seen in under_way),
                finished=len(ended),
                healthy=sum(each.healthy for each in ended),
                left=left,
                cost=money(all_known),
                eta=_eta([each.seconds for each in ended], [now - seen.begun for seen in under_way], left),
            )


def money(rollouts: Iterable[UnderWay]) -> str | None:
    """Return what rollouts have cost so far, as far as it is known; None where none is paid or has been answered."""
    paid = [each for each in rollouts if each.paid and (each.exchanges or each.unpriced)]
    if not paid:
        return None
    known, unknown = sum(each.cost for each in paid), sum(each.unpriced for each in paid)
    if not unknown:
        return cost_text(known)
    return f"{cost_text(known)} + {UNKNOWN}" if known else UNKNOWN


def span(seconds: float) -> str:
    """Return a duration as a person says it: 42 s, 3:05 min, 1:02:09 h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h"


def _begun(rollout: UnderWay) -> UnderWay:
    """Return a rollout as it began, which may be told together with its end."""
    return UnderWay(rollout.name, rollout.task, rollout.agent, rollout.model, rollout.skills, rollout.trial)


def _eta(took: Iterable[float | None], lasting: list[float], left: int | None) -> float | None:
    """Return in how many seconds all has ended, if each takes as long as those that have, as many at a time as now."""
    known = [seconds for seconds in took if seconds is not None]
    if left is None or len(known) < _BASIS:
        return None
    mean = sum(known) / len(known)
    work = mean * left + sum(max(0.0, mean - seconds) for seconds in lasting)
    return work / max(1, len(lasting))
