"""Complete a request's history: chains of responses resolved, tool results paired with their calls by id."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.contracts import Dialect, Turn


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
        problems += [item for turn in turns for item in turn.unsupported]
        return turns, problems

    def remember(self, body: Mapping[str, Any], response: Any, history: list[Turn], answer: Turn | None) -> None:
        """Keep what a later request may refer to by id."""
        if not isinstance(response, dict):
            return
        output = response.get("output")
        for item in output if isinstance(output, list) else ():
            if isinstance(item, dict) and isinstance(item.get("id"), str):
                self._items[item["id"]] = item
        if isinstance(response.get("id"), str) and answer is not None:
            # Instructions belong to one request; the provider does not carry them to the next.
            head = 1 if body.get("instructions") and history and history[0].role == "system" else 0
            self._histories[response["id"]] = [*history[head:], answer]

    def _expand(self, body: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any]:
        items = body.get("input")
        if not isinstance(items, list) or not any(_is_reference(item) for item in items):
            return body
        whole = []
        for item in items:
            if not _is_reference(item):
                whole.append(item)
            elif item.get("id") in self._items:
                whole.append(self._items[item["id"]])
            else:
                problems.append(f"item_reference {item.get('id')} was not recorded")
        return {**body, "input": whole}


def _is_reference(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "item_reference"


def tidy(turns: list[Turn]) -> tuple[list[Turn], int, int, list[str]]:
    """Pair tool results with calls by id: join adjacent fragments, drop copies.

    Returns the turns, fragments joined, copies dropped, and what cannot be paired.
    """
    if not any(turn.role == "tool" for turn in turns):
        return turns, 0, 0, []
    kept: list[Turn] = []
    results: dict[str | None, list[str]] = {}
    called: set[str] = set()
    joined = dropped = 0
    problems: list[str] = []
    for turn in turns:
        called.update(call.id for call in turn.tool_calls)
        if turn.role != "tool":
            kept.append(turn)
            # An agent that reuses ids starts a new pair with each call.
            for call in turn.tool_calls:
                results.pop(call.id, None)
            continue
        parts = results.get(turn.tool_call_id)
        if turn.tool_call_id not in called:
            problems.append(f"tool result for the unknown call {turn.tool_call_id}")
        if parts is None:
            results[turn.tool_call_id] = [turn.text]
            kept.append(turn)
        elif turn.text in parts:
            dropped += 1
        elif kept[-1].role == "tool" and kept[-1].tool_call_id == turn.tool_call_id:
            parts.append(turn.text)
            kept[-1] = replace(kept[-1], text=f"{kept[-1].text}\n{turn.text}")
            joined += 1
        else:
            problems.append(f"two different results for the call {turn.tool_call_id}")
            kept.append(turn)
    return kept, joined, dropped, problems
