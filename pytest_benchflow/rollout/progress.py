"""Tell of the rollouts of one process while they are under way: phase, exchanges, tokens, cost, last tool call."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import BenchflowError, UnpricedError
from pytest_benchflow.pricing import Price
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.underway import UnderWay
from pytest_benchflow.records.values import integer, mapping, number
from pytest_benchflow.rollout.cell import task_of
from pytest_benchflow.training.account import costs
from pytest_benchflow.training.threads import classify_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytest_benchflow.rollout.cell import Cell
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.rollout.flights import Flight
    from pytest_benchflow.training.threads import Exchange

# What happens within that time is told at once.
_PAUSE_SEC = 0.2
_LONGEST_NAME = 200


class Progress:
    """Calls `tell` with what has changed, from a thread of its own: whoever runs rollouts only leaves notes.

    It is told {"planned": number}, {"rollout": `UnderWay` as plain values}, {"without": name} of a cell that leaves
    no rollout in this session, and once {"fault": what} where something could not be told.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._notes: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._known: dict[str, UnderWay] = {}
        self._changed: dict[str, None] = {}
        self._closing = threading.Event()
        self._said_fault = False
        self._thread: threading.Thread | None = None

    def planned(self, cells: Iterable[RolloutConfig]) -> None:
        """Tell how many rollouts the session has."""
        names = {cell.rollout_name(task_of(cell)) for cell in cells}
        self._note(lambda: self._say({"planned": len(names)}))

    def without(self, name: str) -> None:
        """Tell of a cell whose rollout stands since an earlier session, or cannot run or start."""
        self._note(lambda: self._say({"without": name}))

    @contextmanager
    def following(self, flight: Flight, cell: Cell) -> Iterator[Callable[[str], None]]:
        """Tell of a rollout while it lasts; what is returned is to hear its phases, and lets the flight hear them."""
        config, name = flight.config, flight.name
        begun = UnderWay(
            name=name,
            task=cell.task.name,
            agent=config.agent_name,
            model=config.model,
            skills=config.skills,
            trial=config.trial,
            calls_model=cell.route is not None,
            paid=cell.paid,
        )
        steps = [step.name for step in cell.task.steps]
        worked = 0
        self._note(partial(self._begin, begun))

        def watch(phase: str) -> None:
            nonlocal worked
            step = steps[worked % len(steps)] if phase == "agent_execution" else None
            # A further attempt begins with the first step again.
            worked = 0 if phase == "records" else worked + (phase == "agent_execution")
            self._note(partial(self._phase, name, phase, step))
            flight.phase(phase)

        try:
            yield watch
        finally:
            self._note(partial(self._end, name, Rollout(flight.rundir.path)))

    def hearing(self, name: str, price: Mapping[str, Any] | None) -> Callable[[bytes], None]:
        """Return what is to hear each exchange of a rollout: its line, as an endpoint tells it.

        `price` is as config.json holds it, None where nothing is paid.
        """
        known: list[Price] = []
        with suppress(UnpricedError):  # otherwise each exchange is one of unknown cost
            known += [Price.of_json(price)] if price is not None else []
        return lambda line: self._note(partial(self._exchange, name, line, next(iter(known), None)))

    def close(self) -> None:
        """Tell the rest, and end the thread; safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._closing.set()
            self._notes.put(None)
            thread.join()

    def _note(self, note: Callable[[], None]) -> None:
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._run, name="benchflow-progress", daemon=True)
            self._thread.start()
        self._notes.put(note)

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            note = self._notes.get()
            try:
                while note is not None:
                    self._try(note)
                    note = self._notes.get_nowait()
                goes_on = False
            except Empty:
                pass
            changed, self._changed = self._changed, {}
            for name in changed:
                self._try(partial(self._say_rollout, name))
            self._closing.wait(_PAUSE_SEC)

    def _try(self, step: Callable[[], None]) -> None:
        """Take a step; what goes wrong in one takes no other along, and is told once."""
        try:
            step()
        except Exception as error:
            if not self._said_fault:
                with suppress(Exception):  # then it is told of the next
                    self._tell({"fault": f"{type(error).__name__}: {error}"})
                    self._said_fault = True

    def _say_rollout(self, name: str) -> None:
        known = self._known[name]
        if known.ended:
            del self._known[name]
        self._say({"rollout": known.as_dict()})

    def _say(self, what: dict[str, Any]) -> None:
        with suppress(OSError):  # whoever listened is gone, as a process that was killed
            self._tell(what)

    def _begin(self, begun: UnderWay) -> None:
        self._known[begun.name] = begun
        self._changed[begun.name] = None

    def _phase(self, name: str, phase: str, step: str | None) -> None:
        self._known[name].phase, self._known[name].step = phase, step
        self._changed[name] = None

    def _exchange(self, name: str, line: bytes, price: Price | None) -> None:
        known = self._known.get(name)
        if known is None:
            return  # it came after the end of its rollout
        self._changed[name] = None
        try:
            self._count(known, classify_line(known.exchanges, line), price)
        except Exception:
            known.untold += 1
            known.unpriced += known.paid
            raise
        finally:
            known.exchanges += 1

    def _count(self, known: UnderWay, exchange: Exchange, price: Price | None) -> None:
        """Add an exchange to what a rollout has taken."""
        unpriced = bool(exchange.untold) or exchange.usage is not None
        told = costs([exchange], price) if known.paid and price else None
        tool = _tool(exchange)
        if exchange.usage is not None and exchange.tokens is not None:
            known.tokens += exchange.tokens
        elif exchange.usage is not None or exchange.untold:
            known.untold += 1
        if known.paid:
            known.cost += told["known_usd"] if told else 0.0
            known.unpriced += told["n_unpriced"] if told else unpriced
        known.tool = tool or known.tool

    def _end(self, name: str, rollout: Rollout) -> None:
        known = self._known[name]
        known.ended, known.phase = True, ""
        self._changed[name] = None
        try:
            result = rollout.result
            known.verdict, known.healthy = rollout.verdict, rollout.healthy
            known.category = category if isinstance(category := result.get("verdict_category"), str) else None
            known.seconds = number(mapping(result.get("timing")).get("total"))
            cost = mapping(result.get("cost"))
            if known.paid and cost.get("usd") is None:
                known.unpriced = max(known.unpriced, integer(cost.get("n_unpriced")) or 1)
        except (BenchflowError, OSError):
            known.verdict, known.unpriced = None, max(known.unpriced, int(known.paid))


def _tool(exchange: Exchange) -> str | None:
    """Return the last tool that an answer calls."""
    if exchange.dialect is None or exchange.outcome != "completed":
        return None
    try:
        answer = exchange.dialect.response_turn(exchange.response)
    except Exception:
        return None  # what no wire format can read is told by the records
    return answer.tool_calls[-1].name[:_LONGEST_NAME] if answer and answer.tool_calls else None
