"""Cut the selected exchanges of a rollout into branches: histories that no later selected request goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_benchflow.contracts import Turn
    from pytest_benchflow.training.threads import Exchange


@dataclass(frozen=True, slots=True)
class Branch:
    """Selected exchanges that each go on from the one before; the last one's history holds them all."""

    exchanges: tuple[Exchange, ...]

    @property
    def last(self) -> Exchange:
        """Return the exchange that the branch ends with."""
        return self.exchanges[-1]

    @property
    def turns(self) -> list[Turn]:
        """Return the whole conversation, the last answer included."""
        assert self.last.answer is not None
        return [*self.last.turns, self.last.answer]


def branches(exchanges: Iterable[Exchange], role: str) -> list[Branch]:
    """Return the branches of a role in the order they end."""
    chosen = sorted((e for e in exchanges if e.selected and e.role == role), key=lambda e: e.order)
    parents: dict[int, Exchange] = {}
    for place, exchange in enumerate(chosen):
        # The nearest one first: nearly always it is the exchange just before.
        parent = next((earlier for earlier in reversed(chosen[:place]) if _goes_on(exchange, earlier)), None)
        if parent is not None:
            parents[exchange.index] = parent
    inner = {parent.index for parent in parents.values()}
    return [Branch(_chain(exchange, parents)) for exchange in chosen if exchange.index not in inner]


def _chain(last: Exchange, parents: dict[int, Exchange]) -> tuple[Exchange, ...]:
    chain = [last]
    while chain[-1].index in parents:
        chain.append(parents[chain[-1].index])
    return tuple(reversed(chain))


def _goes_on(later: Exchange, earlier: Exchange) -> bool:
    """Tell whether a request holds an earlier one's whole history and then its answer."""
    size = len(earlier.turns)
    if len(later.turns) <= size or not _is_answer(later.turns[size], earlier.answer):
        return False
    return later.turns[:size] == earlier.turns


def _is_answer(turn: Turn, answer: Turn | None) -> bool:
    """Tell whether a turn is an answer as a client sends it back: text may be gone where there are calls."""
    if answer is None or turn.role != "assistant":
        return False
    if answer.tool_calls:
        return not {call.id for call in answer.tool_calls}.isdisjoint(call.id for call in turn.tool_calls)
    return not turn.tool_calls and turn.text.strip() == answer.text.strip()


def offering(branch: Branch, others: Sequence[Exchange]) -> list[Exchange]:
    """Return the exchanges whose tools a branch needs: its own, and those whose calls its history carries."""
    own = {exchange.index for exchange in branch.exchanges}
    carried = {call.id for turn in branch.last.turns for call in turn.tool_calls}
    return [
        exchange
        for exchange in sorted(others, key=lambda e: e.order)
        if exchange.index in own
        or (exchange.selected and exchange.answer and any(call.id in carried for call in exchange.answer.tool_calls))
    ]
