"""Complete a request's history: chains of responses resolved, tool results paired with their calls by id.

A request mostly carries what the one before carried and a little more; only what is more is looked at.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.training.tree import ROOT, TurnTree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.contracts import Dialect, Turn

# Conversations that go on at the same time, such as an agent's and its sub-agents'.
_TIPS = 6


class Chain:
    """What earlier answers stand for when a later request only names them."""

    def __init__(self) -> None:
        self._histories: dict[str, list[Turn]] = {}
        self._items: dict[str, Any] = {}

    def history(self, dialect: Dialect, body: Mapping[str, Any]) -> tuple[list[Turn], list[str]]:
        """Return the whole history of a request and what of it could not be resolved."""
        problems: list[str] = []
        turns = dialect.request_turns(self._expand(body, problems))
        previous = body.get("previous_response_id")
        if previous:
            earlier = self._histories.get(str(previous))
            if earlier is None:
                problems.append(f"previous_response_id {previous} was not recorded")
            else:
                head = 1 if body.get("instructions") and turns and turns[0].role == "system" else 0
                turns = turns[:head] + earlier + turns[head:]
        if body.get("conversation"):
            problems.append("a conversation kept by the provider")
        return turns, problems

    def remember(self, body: Mapping[str, Any], response: Any, history: list[Turn], answer: Turn | None) -> None:
        """Keep what a later request may refer to by id."""
        if not isinstance(response, dict) or not isinstance(response.get("output"), list):
            return
        for item in response["output"]:
            if isinstance(item, dict) and isinstance(item.get("id"), str):
                self._items[item["id"]] = item
        if isinstance(response.get("id"), str) and answer is not None:
            # Instructions belong to one request; the provider does not carry them to the next.
            head = 1 if body.get("instructions") and history and history[0].role == "system" else 0
            self._histories[response["id"]] = [*history[head:], answer]

    def _expand(self, body: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any]:
        items = body.get("input")
        if not isinstance(items, list) or not any(is_reference(item) for item in items):
            return body
        whole = []
        for item in items:
            if not is_reference(item):
                whole.append(item)
            elif item.get("id") in self._items:
                whole.append(self._items[item["id"]])
            else:
                problems.append(f"item_reference {item.get('id')} was not recorded")
        return {**body, "input": whole}


def is_reference(item: Any) -> bool:
    """Tell an item that only names an earlier one."""
    return isinstance(item, dict) and item.get("type") == "item_reference"


def shared_ids(turn: Turn) -> list[str]:
    """Return what is wrong with a turn two of whose calls have one id: whose a result is cannot be told."""
    ids = Counter(call.id for call in turn.tool_calls if call.id) if len(turn.tool_calls) > 1 else {}
    return [f"two calls with the id {each}" for each, number in ids.items() if number > 1]


class Pairing:
    """Pair tool results with calls by id: join adjacent fragments, drop copies; turns are added one by one."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.joined = 0
        self.dropped = 0
        self.problems: list[str] = []
        self._results: dict[str | None, list[str]] = {}
        self._called: set[str] = set()

    def add(self, turn: Turn) -> None:
        """Add the next turn of the history."""
        self.problems += turn.unsupported
        if turn.role != "tool":
            self.turns.append(turn)
            self.problems += shared_ids(turn)
            for call in turn.tool_calls:
                self._called.add(call.id)
                # An agent that reuses ids starts a new pair with each call.
                self._results.pop(call.id, None)
            return
        kept, parts = self.turns, self._results.get(turn.tool_call_id)
        if turn.tool_call_id not in self._called:
            self.problems.append(f"tool result for the unknown call {turn.tool_call_id}")
        if parts is None:
            self._results[turn.tool_call_id] = [turn.text]
            kept.append(turn)
        elif turn.text in parts:
            self.dropped += 1
        elif kept[-1].role == "tool" and kept[-1].tool_call_id == turn.tool_call_id:
            parts.append(turn.text)
            kept[-1] = kept[-1]._replace(text=f"{kept[-1].text}\n{turn.text}")
            self.joined += 1
        else:
            self.problems.append(f"two different results for the call {turn.tool_call_id}")
            kept.append(turn)


@dataclass(slots=True)
class History:
    """The history of a request: its turns, each kept once in the tree, and the path they make there."""

    dialect: Dialect
    head: list[Turn]  # what the request says beside its list of items, such as a system prompt
    items: list[Any]
    pairing: Pairing = field(default_factory=Pairing)
    turns: list[Turn] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)

    @property
    def node(self) -> int:
        """Return where its path ends."""
        return self.nodes[-1] if self.nodes else ROOT

    @property
    def problems(self) -> list[str]:
        """Return what of it cannot be told for sure."""
        return [*self.unresolved, *self.pairing.problems]

    def add(self, turns: list[Turn], tree: TurnTree) -> None:
        """Add turns, and keep each in the tree."""
        before, joined = len(self.pairing.turns), self.pairing.joined
        for turn in turns:
            self.pairing.add(turn)
        # A fragment that came now may have changed the last result.
        kept = before if self.pairing.joined == joined else max(before - 1, 0)
        del self.turns[kept:], self.nodes[kept:]
        node = self.node
        for turn in self.pairing.turns[kept:]:
            node, own = tree.extend(node, turn)
            self.turns.append(own)
            self.nodes.append(node)


class Histories:
    """Read the histories of requests in the order they started."""

    def __init__(self, tree: TurnTree) -> None:
        self._tree = tree
        self._chain = Chain()
        self._tips: list[History] = []

    def of(self, dialect: Dialect, body: Mapping[str, Any]) -> History:
        """Return the history of a request; it may be extended in place by the next one, so copy what is to stay."""
        items = body.get(dialect.history)
        linked = body.get("previous_response_id") or body.get("conversation")
        if not isinstance(items, list) or linked:
            return self._whole(dialect, body, [])
        tip = self._tip(dialect, body, items)
        if tip is not None:
            tip.add(dialect.request_turns({dialect.history: items[len(tip.items) :]}), self._tree)
            tip.items = items
            self._keep(tip)
            return tip
        history = self._whole(dialect, body, items)
        if not any(is_reference(item) for item in items):
            self._keep(history)
        return history

    def remember(self, body: Mapping[str, Any], response: Any, history: History, answer: Turn | None) -> None:
        """Keep what a later request may refer to by id."""
        self._chain.remember(body, response, history.turns, answer)

    def _tip(self, dialect: Dialect, body: Mapping[str, Any], items: list[Any]) -> History | None:
        """Return the longest history that the request extends and that can be extended without looking back."""
        found = None
        head = dialect.request_turns({**body, dialect.history: []})
        for tip in self._tips:
            size = len(tip.items)
            if found is not None and size <= len(found.items):
                continue
            if tip.dialect is not dialect or items[:size] != tip.items or head != tip.head:
                continue
            closed = not size or size == len(items) or dialect.closes(items[size - 1])
            if closed and not any(is_reference(item) for item in items[size:]):
                found = tip
        return found

    def _whole(self, dialect: Dialect, body: Mapping[str, Any], items: list[Any]) -> History:
        turns, unresolved = self._chain.history(dialect, body)
        history = History(dialect, dialect.request_turns({**body, dialect.history: []}), items, unresolved=unresolved)
        history.add(turns, self._tree)
        return history

    def _keep(self, tip: History) -> None:
        self._tips = [tip, *(other for other in self._tips if other is not tip)][:_TIPS]
