"""Tell a rollout's exchanges with its model and its agent's tool calls, each thing once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import UnpricedError
from pytest_benchflow.pricing import Price
from pytest_benchflow.records.trajectory import Torn
from pytest_benchflow.records.values import integer, mapping, number
from pytest_benchflow.training.row import event_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_benchflow.contracts import Turn
    from pytest_benchflow.records.trajectory import Log
    from pytest_benchflow.report.html.cut import Cut
    from pytest_benchflow.training.threads import Exchange

_MOST_EVENTS = 5_000
_TOOLS = ("tool_call", "tool_call_update")


def exchange_facts(log: Log, exchanges: Sequence[Exchange], price: Any, cut: Cut) -> list[dict[str, Any]]:
    """Return the exchanges by the lines of their log, each with what its request says that none before it said.

    `price` is what config.json holds. A cost is null with a reason where it is not known.
    """
    priced, unpriced = _price(price)
    histories: dict[int, Sequence[Turn]] = {}
    found = []
    for exchange in sorted(exchanges, key=lambda each: each.order):
        record = log[exchange.index]
        known = _known(exchange, histories)
        histories[exchange.thread] = exchange.turns
        facts = _facts(exchange, {} if isinstance(record, Torn) else record)
        facts |= {"kept": known, "new": [_turn(turn, cut) for turn in exchange.turns[known:]]}
        facts |= _answer(exchange, cut) | _cost(exchange, priced, unpriced)
        found.append(facts)
    return sorted(found, key=lambda facts: facts["index"])


def _known(exchange: Exchange, histories: Mapping[int, Sequence[Turn]]) -> int:
    """Return how many turns an exchange shares with the one before it in its thread, or with another thread's last."""
    before = histories.get(exchange.thread)
    candidates = [before] if before is not None else list(histories.values())
    return max((_shared(exchange.turns, turns) for turns in candidates), default=0)


def _shared(first: Sequence[Turn], second: Sequence[Turn]) -> int:
    # Turns are kept once, so that equal ones are the same objects.
    count = 0
    for one, other in zip(first, second, strict=False):
        if one is not other:
            break
        count += 1
    return count


def _facts(exchange: Exchange, record: Mapping[str, Any]) -> dict[str, Any]:
    request, response = mapping(record.get("request")), mapping(record.get("response"))
    body, usage = mapping(request.get("body")), exchange.usage
    return {
        **exchange.public(),
        "thread": exchange.thread,
        "detail": exchange.detail,
        "notes": list(exchange.unsupported),
        "at": _text(request.get("timestamp")),
        "ms": number(record.get("duration_ms")),
        "status": integer(response.get("status_code")),
        "path": _text(request.get("path")),
        "model": _text(body.get("model")),
        "tools": list(exchange.offer.names),
        "usage": None
        if usage is None
        else {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_read": usage.cache_read_tokens,
            "cache_write": usage.cache_creation_tokens,
        },
    }


def _answer(exchange: Exchange, cut: Cut) -> dict[str, Any]:
    """Return the answer as a turn; also the body where it is none, as of an error."""
    turn = exchange.answer
    if turn is None and exchange.dialect is not None:
        try:
            turn = exchange.dialect.response_turn(exchange.response)
        except Exception:
            # What no format can read is shown as it is.
            turn = None
    if turn is not None and (turn.text or turn.tool_calls or exchange.outcome == "completed"):
        return {"answer": _turn(turn, cut), "body": None}
    return {"answer": None, "body": None if exchange.response is None else cut.text(exchange.response)}


def _turn(turn: Turn, cut: Cut) -> dict[str, Any]:
    told: dict[str, Any] = {"role": turn.role, "text": cut.text(turn.text)}
    if turn.tool_calls:
        told["calls"] = [
            {"id": call.id, "name": cut.text(call.name), "arguments": cut.text(call.arguments)}
            for call in turn.tool_calls
        ]
    if turn.tool_call_id is not None:
        told["call"] = turn.tool_call_id
    if turn.reasoning:
        told["reasoning"] = turn.reasoning
    return told


def _price(record: Any) -> tuple[Price | None, str | None]:
    if record is None:
        return None, None
    try:
        return Price.of_json(record), None
    except UnpricedError as error:
        return None, str(error)


def _cost(exchange: Exchange, price: Price | None, unpriced: str | None) -> dict[str, Any]:
    """Return what an exchange cost; no cost and no reason where no model is paid, or nothing was billed."""
    if price is None or exchange.untold or exchange.usage is None:
        return {"cost": None, "unpriced": unpriced if price is None else exchange.untold}
    try:
        return {"cost": price.cost(exchange.usage, exchange.response), "unpriced": None}
    except UnpricedError as error:
        return {"cost": None, "unpriced": str(error)}


def event_facts(log: Log, cut: Cut) -> dict[str, Any]:
    """Return the agent's events, and of each tool call its title, times, state and output."""
    events: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for number_, record in enumerate(log):
        if number_ >= _MOST_EVENTS:
            break
        if isinstance(record, Torn):
            events.append({"type": "torn", "at": None, "phase": None, "text": record.problem})
        elif record.get("type") in _TOOLS:
            _note_call(record, calls, cut)
        else:
            events.append(_event(record, cut))
    return {"events": events, "calls": list(calls.values()), "more_events": max(0, len(log) - _MOST_EVENTS)}


def _event(record: dict[str, Any], cut: Cut) -> dict[str, Any]:
    text = event_text(record)
    rest = {key: value for key, value in record.items() if key not in ("type", "phase", "timestamp", "text")}
    return {
        "type": str(record.get("type")),
        "at": _text(record.get("timestamp")),
        "phase": _text(record.get("phase")),
        "text": cut.text(text or (rest or "")),
    }


def _note_call(record: dict[str, Any], calls: dict[str, dict[str, Any]], cut: Cut) -> None:
    key, at = str(record.get("tool_call_id")), _text(record.get("timestamp"))
    call = calls.setdefault(
        key, {"id": key, "title": "", "kind": None, "begun": at, "ended": None, "status": None, "output": ""}
    )
    if record.get("title"):
        call["title"] = cut.text(record["title"])
    call["kind"] = _text(record.get("kind")) or call["kind"]
    status = _text(record.get("status"))
    if status is not None:
        call["status"] = status
        call["ended"] = at if status in ("completed", "failed", "cancelled") else None
    if output := "".join(_outputs(record.get("content"))):
        call["output"] = cut.text(output)


def _outputs(content: Any) -> Iterator[str]:
    """Yield the texts of a tool call's content blocks."""
    for block in content if isinstance(content, list) else ():
        inner = mapping(mapping(block).get("content")) or mapping(block)
        if isinstance(inner.get("text"), str):
            yield inner["text"]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
