"""Keep several rollouts of a process in flight: one that ends makes room for the next, whichever is waited for."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import BenchflowError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from pytest_benchflow.contracts import Backend
    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.rollout.config import RolloutConfig

    Outcome = Rollout | BenchflowError

# So often what another process has come to is looked at, where a rollout waits for it.
_LOOK_SEC = 0.2
# Of what a rollout says by Python's logging and warnings, so much is kept for the item that asks for it.
_MOST_SAID = 1000

# The rollout that the running code belongs to; None outside of all of them.
FLIGHT: ContextVar[Flight | None] = ContextVar("benchflow_flight", default=None)


@dataclass(eq=False)
class Flight:
    """A rollout that was or will be run by this process, or waited for where another process runs it."""

    config: RolloutConfig  # settled
    asked: RolloutConfig  # what tells it from one with other settings
    rundir: RunDir
    phases: list[str] = field(default_factory=list)  # none: it was another process that ran it
    outcome: Outcome | None = None  # what every item that asks is given
    said: list[Any] = field(default_factory=list)  # what it said in Python, for the item that asks first
    unsaid: int = 0  # how much more there was
    told: bool = False  # somebody was told of its end
    watch: Callable[[str], None] | None = None
    work: asyncio.Task[Outcome] | None = None
    interrupted: asyncio.Task[Outcome] | None = None  # the work that was told to end
    landed: asyncio.Event = field(default_factory=asyncio.Event)
    landed_as: int = 0  # its place among those that have landed
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        """Return the name of the rollout's directory."""
        return self.rundir.path.name

    @property
    def has_ended(self) -> bool:
        """Tell whether this process has run it to its end."""
        work = self.work
        if not self.phases or work is None or not work.done() or not _ended_well(work):
            return False
        return not isinstance(work.result(), BenchflowError)

    def phase(self, name: str) -> None:
        """Take note of a phase, and tell who watches."""
        with self._lock:
            self.phases.append(name)
            watch = self.watch
        if watch:
            watch(name)

    def watched_by(self, watch: Callable[[str], None] | None) -> None:
        """Tell somebody of the phases from now on, and of those that were, where it is under way."""
        with self._lock:
            self.watch = watch
            before = tuple(self.phases)
        if watch and not self.landed.is_set():
            for name in before:
                watch(name)

    def interrupt(self) -> None:
        """Cancel it where it is under way; once, for a second time would cut short the removal of its sandbox."""
        if self.work is not None and self.interrupted is not self.work:
            self.interrupted = self.work
            self.work.cancel()

    def keep(self, said: Any) -> None:
        """Keep what was said for the item that asks for this rollout."""
        if len(self.said) < _MOST_SAID:
            self.said.append(said)
        else:
            self.unsaid += 1


class Flights:
    """Runs at most `limit` rollouts at a time by `fly`; all methods are for the loop's thread.

    A rollout that somebody waits for goes before those that are only planned. `before` names those of this process
    that have to end before one may begin, none where another process's is waited for; None: it may begin.
    """

    def __init__(
        self,
        limit: int,
        fly: Callable[[Flight], Awaitable[Outcome]],
        before: Callable[[Flight], list[Flight] | None] = lambda _: None,
    ) -> None:
        self._limit = limit
        self._fly = fly
        self._before = before
        self._looks_again: asyncio.TimerHandle | None = None
        self._numbers = count(1)
        self._waiting: dict[Flight, None] = {}  # in the order in which they begin
        self.under_way: dict[Flight, None] = {}

    def plan(self, flights: Iterable[Flight]) -> None:
        """Run these, too, in this order, each once."""
        for flight in flights:
            if flight.work is None:
                self._waiting.setdefault(flight)
        self._begin()

    async def land(self, flight: Flight, watch: Callable[[str], None] | None = None) -> Outcome:
        """Return how a rollout ended, which begins next when it has not yet; it is cancelled with its waiter.

        One that was cancelled, or met an error that is none of ours, is run anew when it is asked for again.
        """
        if flight.work is None or (flight.work.done() and not _ended_well(flight.work)):
            flight.work, flight.phases = None, []
            flight.landed.clear()
            self._waiting = {flight: None, **self._waiting}
            self._begin()
        flight.watched_by(watch)
        try:
            await flight.landed.wait()
        except asyncio.CancelledError:
            self._waiting.pop(flight, None)
            if flight.work is not None:
                flight.interrupt()
                await asyncio.wait([flight.work])
            raise
        finally:
            flight.watch = None
        if flight.work is None:
            raise asyncio.CancelledError
        return flight.work.result()

    async def first_landed(self, flights: Iterable[Flight]) -> Flight:
        """Wait until one of these has ended, and return the one that ended first."""
        waits = {asyncio.ensure_future(flight.landed.wait()): flight for flight in flights}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return min((waits[wait] for wait in done), key=lambda flight: flight.landed_as)
        finally:
            for wait in waits:
                wait.cancel()

    def cancel(self) -> None:
        """Begin no other rollout, and interrupt those under way."""
        waiting, self._waiting = self._waiting, {}
        for flight in waiting:
            flight.landed_as = next(self._numbers)
            flight.landed.set()
        for flight in self.under_way:
            flight.interrupt()

    async def stop(self) -> None:
        """Interrupt all, and return when their records are complete and their sandboxes gone."""
        self.cancel()
        while works := [flight.work for flight in self.under_way if flight.work is not None]:
            await asyncio.wait(works)

    def _begin(self) -> None:
        while len(self.under_way) < self._limit and (flight := self._next()) is not None:
            self._waiting.pop(flight, None)
            self.under_way[flight] = None
            flight.work = asyncio.get_running_loop().create_task(self._flown(flight), name=flight.name)
            flight.work.add_done_callback(lambda _, flight=flight: self._landed(flight))  # type: ignore[misc]

    def _next(self) -> Flight | None:
        """Return the rollout that begins next; one that may not begin yet lets those it waits for go before it."""
        for flight in self._waiting:
            first = self._before(flight)
            if first is None:
                return flight
            for each in first:
                if each.work is None:
                    return each
        if self._waiting and self._looks_again is None:
            # What another process does is seen by looking.
            self._looks_again = asyncio.get_running_loop().call_later(_LOOK_SEC, self._look_again)
        return None

    def _look_again(self) -> None:
        self._looks_again = None
        self._begin()

    async def _flown(self, flight: Flight) -> Outcome:
        FLIGHT.set(flight)
        return await self._fly(flight)

    def _landed(self, flight: Flight) -> None:
        del self.under_way[flight]
        if flight.work is not None and not flight.work.cancelled():
            flight.work.exception()  # whoever asks for the rollout is told
        flight.landed_as = next(self._numbers)
        flight.landed.set()
        self._begin()


class Rooms:
    """Lets no more rollouts to a kind of sandbox than it takes at a time (`at_once`, where it says so).

    Who waits here has begun nothing: no time limit runs, and nothing is held.
    """

    def __init__(self) -> None:
        self._taken: dict[int, int] = {}
        self._left = asyncio.Event()

    @asynccontextmanager
    async def of(self, backend: Backend) -> AsyncIterator[None]:
        """Wait for room, and take it."""
        key = id(backend)
        while self._taken.get(key, 0) >= _most(backend):
            self._left.clear()
            await self._left.wait()
        self._taken[key] = self._taken.get(key, 0) + 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            self._left.set()


def _most(backend: Backend) -> float:
    at_once: int | None = getattr(backend, "at_once", None)
    return float("inf") if at_once is None else max(1, at_once)


def _ended_well(work: asyncio.Task[Outcome]) -> bool:
    return not work.cancelled() and work.exception() is None
