"""Keep every distinct turn once, and every distinct history as a path in one tree of turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.contracts import ToolCall, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_benchflow.contracts import Dialect

# The node of the empty history.
ROOT = 0


def tool_name(tool: dict[str, Any]) -> str:
    """Return the name of a chat-style tool definition."""
    function = tool.get("function")
    return str(function.get("name") if isinstance(function, dict) else tool.get("name"))


class Offer:
    """The tools on offer in a request, as chat-style definitions, and their names, sorted."""

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        self.tools = tools
        self.names = tuple(sorted(tool_name(tool) for tool in tools))


NO_TOOLS = Offer([])


class TurnTree:
    """Every distinct turn once, and every distinct history as a path from `ROOT`."""

    def __init__(self) -> None:
        self._turns: dict[Any, tuple[int, Turn]] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._parents: list[int] = [ROOT]
        self._turn_at: list[Turn] = [Turn("system")]
        self._arguments: dict[str, str] = {}
        self._offers: dict[bytes, Offer] = {}
        self._offered: dict[int, tuple[Any, Offer]] = {}

    def extend(self, node: int, turn: Turn) -> tuple[int, Turn]:
        """Return the node reached from `node` by `turn`, and the one kept copy of the turn."""
        key = self._key(turn)
        number, kept = self._turns.setdefault(key, (len(self._turns), turn))
        edge = (node, number)
        child = self._nodes.get(edge)
        if child is None:
            child = self._nodes[edge] = len(self._parents)
            self._parents.append(node)
            self._turn_at.append(kept)
        return child, kept

    def turn(self, node: int) -> Turn:
        """Return the turn that a history ends with at `node`."""
        return self._turn_at[node]

    def path(self, node: int) -> Iterable[int]:
        """Yield the node and its ancestors, deepest first, `ROOT` left out."""
        while node != ROOT:
            yield node
            node = self._parents[node]

    def call_key(self, call: ToolCall) -> tuple[str, str, str]:
        """Return what makes two calls the same, whatever the spelling of their JSON."""
        return call.id, call.name, self._canonical(call.arguments)

    def offer(self, dialect: Dialect, body: Mapping[str, Any]) -> Offer:
        """Return the tools a request offers, equal lists of them once."""
        given = body.get("tools")
        made = self._offered.get(id(given)) if isinstance(given, list) and "functions" not in body else None
        if made is not None:
            return made[1]
        tools = dialect.tools(body)
        try:
            key = orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)
            offer = self._offers.setdefault(key, Offer(tools))
        except TypeError:  # nested deeper than the encoder goes; the row is refused when it is written
            offer = Offer(tools)
        if isinstance(given, list) and "functions" not in body:
            # The list is kept beside its offer, so that its id cannot be given to another.
            self._offered[id(given)] = (given, offer)
        return offer

    def _key(self, turn: Turn) -> Any:
        if turn.role != "assistant":
            return turn
        # Clients trim and re-serialise what a model wrote before they send it back.
        return "assistant", turn.text.strip(), tuple(self.call_key(call) for call in turn.tool_calls)

    def _canonical(self, arguments: str) -> str:
        known = self._arguments.get(arguments)
        if known is None:
            try:
                known = orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
            except (ValueError, TypeError):
                known = arguments.strip()
            self._arguments[arguments] = known
        return known

    def turns(self, nodes: Iterable[int]) -> Iterator[Turn]:
        """Yield each turn of the histories that end at `nodes`, those they share once."""
        seen: set[int] = set()
        for node in nodes:
            for step in self.path(node):
                if step in seen:
                    break
                seen.add(step)
                yield self._turn_at[step]
