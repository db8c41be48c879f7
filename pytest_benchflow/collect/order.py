"""Run the items of whichever rollout is finished first."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from pytest_benchflow.fixtures import Runs
    from pytest_benchflow.rollout.flights import Flight


def run_as_finished(session: pytest.Session, runs: Runs) -> bool:
    """Run the items of whichever rollout is finished first, then those of the next, as pytest runs them all.

    The last item of a rollout waits until it is known what follows it: pytest has to know what may be torn down.
    """
    assert runs.ahead is not None
    runs.ahead()
    current: pytest.Item | None = None
    for item in _in_order_of_ends(session.items, runs):
        if current is not None:
            _run_one(session, current, item)
        current = item
    if current is not None:
        _run_one(session, current, None)
    return True


def _run_one(session: pytest.Session, item: pytest.Item, nextitem: pytest.Item | None) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _in_order_of_ends(items: Sequence[pytest.Item], runs: Runs) -> Iterator[pytest.Item]:
    """Yield items: what needs no waiting as collected; where all that is left has to be waited for, what ends first.

    An item whose rollout begins only with it goes when nothing else can.
    """
    flying: dict[Flight, deque[pytest.Item]] = {}
    plain: deque[pytest.Item] = deque()
    blocking: deque[pytest.Item] = deque()
    place = {id(item): number for number, item in enumerate(items)}
    for item in items:
        cell = runs.planned_cell(item)
        flight = None if cell is None else runs.session().planned_flight(cell)
        if flight is not None:
            flying.setdefault(flight, deque()).append(item)
        else:
            (plain if cell is None else blocking).append(item)
    while flying or plain or blocking:
        ended = [flight for flight in flying if flight.landed.is_set()]
        landed = min(ended, key=lambda flight: flight.landed_as, default=None)
        if plain and (landed is None or place[id(plain[0])] < place[id(flying[landed][0])]):
            yield plain.popleft()
        elif landed is not None or not blocking:
            yield from flying.pop(landed or runs.session().first_landed(flying))
        else:
            yield blocking.popleft()
