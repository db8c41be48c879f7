from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.agents._events import EventLog
from pytest_benchflow.records.journal import Journal, read_records

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "acp_trajectory.jsonl")


def update(what: str, meta: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    params = {"sessionId": "s", "update": {"sessionUpdate": what, **fields}}
    return {"method": "session/update", "params": params | ({"_meta": meta} if meta else {})}


def text(what: str, said: str, **fields: Any) -> dict[str, Any]:
    return update(what, content={"type": "text", "text": said}, **fields)


def seen(journal: Journal, *messages: dict[str, Any]) -> tuple[EventLog, list[dict[str, Any]]]:
    log = EventLog(journal)
    for message in messages:
        log.see(message)
    log.flush()
    journal.close()
    return log, list(read_records(journal.path)) if journal.count else []


def test_chunks_of_one_message_become_one_event(journal: Journal) -> None:
    _, events = seen(
        journal,
        text("agent_thought_chunk", "Let me "),
        text("agent_thought_chunk", "see."),
        text("agent_message_chunk", "Here", messageId="1"),
        text("agent_message_chunk", " it is.", messageId="1"),
        text("agent_message_chunk", "More.", messageId="2"),
    )
    assert [(event["type"], event["text"]) for event in events] == [
        ("agent_thought", "Let me see."),
        ("agent_message", "Here it is."),
        ("agent_message", "More."),
    ]


def test_chunks_around_a_tool_call_stay_apart_and_in_order(journal: Journal) -> None:
    _, events = seen(
        journal,
        text("agent_message_chunk", "before"),
        update("tool_call", toolCallId="c", title="ls", rawInput={"a": 1}),
        text("agent_message_chunk", "after"),
    )
    assert [event["type"] for event in events] == ["agent_message", "tool_call", "agent_message"]
    assert events[1] == {
        "type": "tool_call",
        "tool_call_id": "c",
        "kind": "other",
        "title": "ls",
        "status": "pending",
        "content": [],
        "raw_input": {"a": 1},
    }


def test_metadata_that_changes_parts_two_messages(journal: Journal) -> None:
    metrics = [{"field_meta": {"openhands.dev/metrics": {"input_tokens": n, "output_tokens": 1}}} for n in (10, 20)]
    log, events = seen(
        journal,
        text("agent_thought_chunk", "one") | {},
        update("agent_thought_chunk", metrics[0], content={"type": "text", "text": "two "}),
        update("agent_thought_chunk", metrics[0], content={"type": "text", "text": "three"}),
        update("agent_thought_chunk", metrics[1], content={"type": "text", "text": "four"}),
    )
    assert [event["text"] for event in events] == ["one", "two three", "four"]
    assert log.usage == {"input_tokens": 20, "output_tokens": 1}


def test_the_cost_so_far_stays_beside_metrics_that_tell_none(journal: Journal) -> None:
    metrics = {"field_meta": {"openhands.dev/metrics": {"input_tokens": 20, "output_tokens": 1}}}
    cost = {"amount": 0.25, "currency": "USD"}
    log, _ = seen(
        journal,
        update("usage_update", used=10, size=100, cost=cost),
        update("agent_message_chunk", metrics, content={"type": "text", "text": "on"}),
    )
    assert log.usage == {"cost": cost, "input_tokens": 20, "output_tokens": 1}


def test_calls_in_flight_are_those_begun_and_not_ended(journal: Journal) -> None:
    log, _ = seen(
        journal,
        update("tool_call", toolCallId="a", title="make", status="in_progress"),
        update("tool_call", toolCallId="b", title="test"),
        update("tool_call_update", toolCallId="a", status="failed"),
        update("tool_call_update", toolCallId="b", title="test again"),
    )
    assert log.in_flight() == ["b"]
    assert log.describe_in_flight() == "b (test again)"
    assert list(log.tool_calls) == ["a", "b"]


def test_other_updates_keep_their_own_fields_and_odd_ones_are_survived(journal: Journal) -> None:
    _, events = seen(
        journal,
        update("plan", entries=[{"content": "look", "status": "pending"}]),
        update("current_mode_update", currentModeId="ask"),
        update("agent_message_chunk", content={"type": "image", "data": "AAAA"}),
        {"method": "session/update", "params": [1]},
        {"method": "session/update", "params": {"update": {"sessionUpdate": 7}}},
        {"id": 1, "result": {}},
    )
    assert events == [
        {"type": "plan", "entries": [{"content": "look", "status": "pending"}]},
        {"type": "current_mode_update", "current_mode_id": "ask"},
        {"type": "agent_message", "content": {"type": "image", "data": "AAAA"}},
    ]
