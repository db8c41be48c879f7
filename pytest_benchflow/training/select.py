"""Decide which exchanges count: those whose answer was used. Every other one gets a reason."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_benchflow.training.threads import Exchange
    from pytest_benchflow.training.tree import TurnTree

TERMINAL_TOOLS = frozenset({"finish"})
_REASONS = {"error": "provider_error"}


def select(exchanges: Sequence[Exchange], tree: TurnTree, terminal: Collection[str] = TERMINAL_TOOLS) -> None:
    """Set `selected` and `reason` of each exchange; `terminal` names the tools that end a task."""
    carried = _Carried(exchanges, tree)
    last = max((exchange.order for exchange in exchanges), default=(0.0, 0))
    groups: dict[object, list[Exchange]] = defaultdict(list)
    for exchange in exchanges:
        exchange.selected = False
        if exchange.outcome != "completed":
            unmapped = exchange.dialect is None and exchange.outcome != "error"
            exchange.reason = "unsupported_item" if unmapped else _REASONS.get(exchange.outcome, exchange.outcome)
        elif exchange.unsupported:
            exchange.reason = "unsupported_item"
        else:
            groups[exchange.request_key].append(exchange)
    for group in groups.values():
        _choose(group, carried, terminal, last)


def _choose(group: list[Exchange], carried: _Carried, terminal: Collection[str], last: tuple[float, int]) -> None:
    """Select at most one of several answers to the same request."""
    strengths = [carried.strength(exchange) for exchange in group]
    strongest = max(strengths)
    if strongest:
        candidates = [e for strength, e in zip(strengths, group, strict=True) if strength == strongest]
    else:
        candidates = [exchange for exchange in group if _safe(exchange, terminal, last)]
    # A client that had gone away never saw the answer.
    chosen = max(candidates, key=lambda e: (not e.metadata.get("client_gone"), e.order), default=None)
    for exchange in group:
        exchange.selected = exchange is chosen
        exchange.reason = (
            None if exchange is chosen else "unconsumed_tool_call" if chosen is None else "superseded_retry"
        )


def _safe(exchange: Exchange, terminal: Collection[str], last: tuple[float, int]) -> bool:
    """Tell whether an answer that no request carries may still have been used."""
    assert exchange.answer is not None
    calls = exchange.answer.tool_calls
    return all(call.name in terminal for call in calls) or exchange.order >= last


class _Carried:
    """What the histories of later requests carry."""

    def __init__(self, exchanges: Sequence[Exchange], tree: TurnTree) -> None:
        self._tree = tree
        self._nodes: dict[int, tuple[float, int]] = {}
        self._calls: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._ids: dict[str, tuple[float, int]] = {}
        owners: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
        for exchange in sorted(exchanges, key=lambda e: e.order, reverse=True):
            self._add(exchange)
            for call in exchange.answer.tool_calls if exchange.answer else ():
                owners[call.id].add(tree.call_key(call))
        self._shared = {call_id for call_id, keys in owners.items() if len(keys) > 1}

    def _add(self, exchange: Exchange) -> None:
        """Note what a request carries; requests come latest first, so the first note is the latest."""
        for node in self._tree.path(exchange.node):
            if node in self._nodes:
                break
            self._nodes[node] = exchange.order
            turn = self._tree.turn(node)
            if turn.tool_call_id is not None:
                self._ids.setdefault(turn.tool_call_id, exchange.order)
            for call in turn.tool_calls:
                self._ids.setdefault(call.id, exchange.order)
                self._calls.setdefault(self._tree.call_key(call), exchange.order)

    def strength(self, exchange: Exchange) -> int:
        """Return 3 when a later request continues this answer, 2 when it holds its calls, 1 only their ids, else 0."""
        assert exchange.answer is not None
        never = (-1.0, -1)
        if self._nodes.get(exchange.answered, never) > exchange.order:
            return 3
        calls = exchange.answer.tool_calls
        if any(self._calls.get(self._tree.call_key(call), never) > exchange.order for call in calls):
            return 2
        # An id that several different answers share proves nothing.
        return int(any(c.id not in self._shared and self._ids.get(c.id, never) > exchange.order for c in calls))
