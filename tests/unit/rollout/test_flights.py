"""Several rollouts in flight: how many, which next, and what an interrupt does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_benchflow.errors import TaskError
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.flights import FLIGHT, Flight, Flights, Rooms

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Backend
    from pytest_benchflow.rollout.flights import Outcome

_LIMIT_SEC = 30.0


def make(name: str) -> Flight:
    config = RolloutConfig(task=name, agent="nop")
    return Flight(config, config, RunDir(Path("job") / name))


class Field:
    """Flies by waiting for a word, and notes what begins and how it ends."""

    def __init__(self, limit: int) -> None:
        self.begun: list[str] = []
        self.interrupted: list[str] = []
        self.may_end: dict[str, asyncio.Event] = {}
        self.flights = Flights(limit, self.fly)

    async def fly(self, flight: Flight) -> Outcome:
        assert FLIGHT.get() is flight
        self.begun.append(flight.name)
        flight.phase("environment_setup")
        try:
            await self.may_end.setdefault(flight.name, asyncio.Event()).wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # as records are completed
            self.interrupted.append(flight.name)
            raise
        return TaskError(flight.name)  # of two kinds of outcome the one that needs no files

    def end(self, name: str) -> None:
        self.may_end.setdefault(name, asyncio.Event()).set()

    async def until_begun(self, *names: str) -> None:
        async with asyncio.timeout(_LIMIT_SEC):
            while set(self.begun) != set(names):  # noqa: ASYNC110 - what begins is what is looked for
                await asyncio.sleep(0)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_one_that_ends_makes_room_though_another_is_waited_for() -> None:
    async def play() -> None:
        field = Field(2)
        slow, *others = map(make, ("slow", "a", "b", "c"))
        field.flights.plan([slow, *others])
        waiting = asyncio.create_task(field.flights.land(slow))
        for name, also in (("a", ["b"]), ("b", ["c"]), ("c", [])):
            await settle()
            assert len(field.flights.under_way) == 2
            field.end(name)
            await settle()
            assert field.begun[-1] == (also or ["c"])[0]
        assert not waiting.done()
        field.end("slow")
        assert str(await waiting) == "slow"
        assert [str(await field.flights.land(each)) for each in others] == ["a", "b", "c"]
        assert field.begun == ["slow", "a", "b", "c"]

    asyncio.run(play())


def test_what_is_waited_for_goes_before_what_is_planned() -> None:
    async def play() -> None:
        field = Field(1)
        first, *planned = map(make, ("first", "planned-1", "planned-2"))
        field.flights.plan([first, *planned])
        wanted = asyncio.create_task(field.flights.land(make("wanted")))
        await settle()
        assert field.begun == ["first"]
        for name in ("first", "wanted", "planned-1", "planned-2"):
            field.end(name)
        assert str(await wanted) == "wanted"
        await field.until_begun("first", "wanted", "planned-1", "planned-2")
        assert field.begun == ["first", "wanted", "planned-1", "planned-2"]

    asyncio.run(play())


def test_stopping_begins_nothing_and_waits_for_records() -> None:
    async def play() -> None:
        field = Field(2)
        flights = [make(str(number)) for number in range(5)]
        field.flights.plan(flights)
        await field.until_begun("0", "1")
        waiting = asyncio.create_task(field.flights.land(flights[4]))
        await settle()
        await field.flights.stop()
        assert sorted(field.interrupted) == ["0", "1"] == sorted(field.begun)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(play())


def test_a_waiter_that_gives_up_interrupts_its_own_only() -> None:
    async def play() -> None:
        field = Field(2)
        flights = [make("mine"), make("other")]
        field.flights.plan(flights)
        waiting = asyncio.create_task(field.flights.land(flights[0]))
        await field.until_begun("mine", "other")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert field.interrupted == ["mine"]
        field.end("mine")
        assert str(await field.flights.land(flights[0])) == "mine"
        assert field.begun == ["mine", "other", "mine"]
        await field.flights.stop()

    asyncio.run(play())


def test_what_was_interrupted_is_not_interrupted_again_while_it_cleans_up() -> None:
    async def play() -> None:
        cleaned: list[str] = []
        goes_on = asyncio.Event()

        async def fly(flight: Flight) -> Outcome:
            try:
                await asyncio.Event().wait()
            finally:
                await goes_on.wait()
                cleaned.append(flight.name)
            raise AssertionError

        flights, mine = Flights(2, fly), make("mine")
        waiting = asyncio.create_task(flights.land(mine))
        await settle()
        flights.cancel()  # as Ctrl-C does, which ends the waiting item, too
        await settle()
        waiting.cancel()
        await settle()
        stopping = asyncio.create_task(flights.stop())
        await settle()
        assert not waiting.done()
        goes_on.set()
        await stopping
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert cleaned == ["mine"]

    asyncio.run(play())


def test_an_error_of_our_own_is_raised_for_who_asks_and_forgotten() -> None:
    async def play() -> None:
        tries: list[str] = []

        async def fly(flight: Flight) -> Outcome:
            tries.append(flight.name)
            if len(tries) == 1:
                raise LookupError("gone")
            return TaskError("fine")

        flights, flight = Flights(1, fly), make("odd")
        with pytest.raises(LookupError, match="gone"):
            await flights.land(flight)
        assert str(await flights.land(flight)) == "fine"
        assert str(await flights.land(flight)) == "fine"
        assert tries == ["odd", "odd"]

    asyncio.run(play())


def test_who_comes_late_hears_of_the_phases_that_were() -> None:
    async def play() -> list[str]:
        field, flight = Field(1), make("a")
        heard: list[str] = []
        field.flights.plan([flight])
        await field.until_begun("a")
        landing = asyncio.create_task(field.flights.land(flight, heard.append))
        await settle()
        flight.phase("verifier")
        field.end("a")
        await landing
        await field.flights.land(flight, heard.append)  # of one that has ended nothing is told again
        return heard

    assert asyncio.run(play()) == ["environment_setup", "verifier"]


def test_the_first_to_end_is_found() -> None:
    async def play() -> str:
        field = Field(3)
        flights = [make(name) for name in "abc"]
        field.flights.plan(flights)
        await field.until_begun(*"abc")
        field.end("b")
        found = await field.flights.first_landed(flights)
        await field.flights.stop()
        return found.name

    assert asyncio.run(play()) == "b"


@pytest.mark.parametrize(("at_once", "most"), [(2, 2), (None, 5), (0, 1)], ids=["two", "any-number", "at-least-one"])
def test_a_kind_of_sandbox_takes_as_many_as_it_says(at_once: int | None, most: int) -> None:
    async def play() -> int:
        rooms, inside, seen = Rooms(), 0, 0
        backend = cast("Backend", SimpleNamespace(at_once=at_once))

        async def use() -> None:
            nonlocal inside, seen
            async with rooms.of(backend):
                inside += 1
                seen = max(seen, inside)
                await settle()
                inside -= 1

        async def give_up() -> None:
            task = asyncio.create_task(use())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        await asyncio.gather(*(use() for _ in range(5)), give_up())
        return seen

    assert asyncio.run(play()) in (most, most + (at_once is None))


def test_what_a_rollout_says_is_kept_up_to_a_limit() -> None:
    flight = make("talkative")
    said: list[Any] = [object() for _ in range(1005)]
    for each in said:
        flight.keep(each)
    assert flight.said == said[:1000]
    assert flight.unsaid == 5
