"""Whatever JSON or bytes come, a dialect answers: it neither crashes nor calls the unknown completed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_benchflow.dialects.chat import dialect as chat
from pytest_benchflow.dialects.messages import dialect as messages
from pytest_benchflow.dialects.responses import dialect as responses
from pytest_benchflow.records.jsontext import dumps, loads

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Dialect

WORDS = [
    "messages",
    "input",
    "output",
    "content",
    "choices",
    "message",
    "delta",
    "role",
    "assistant",
    "user",
    "system",
    "tool",
    "type",
    "text",
    "tool_calls",
    "function",
    "id",
    "call_id",
    "name",
    "arguments",
    "tool_use",
    "tool_result",
    "index",
    "usage",
    "status",
    "completed",
    "response",
    "item",
    "part",
    "error",
    "finish_reason",
    "stop",
    "stop_reason",
    "end_turn",
    "reasoning",
    "summary",
    "tools",
    "custom",
    "message_start",
    "content_block_delta",
    "output_index",
    "item_id",
    "response.output_text.delta",
    "response.completed",
    "response.output_item.added",
    "content_index",
    "input_json_delta",
    "partial_json",
]
KEYS = st.sampled_from(WORDS)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | KEYS
    | st.just("\ud800")
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)
BODIES = st.dictionaries(KEYS, JSON, max_size=6)
DIALECTS = [chat, responses, messages]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(deadline=None, max_examples=40)
@given(body=BODIES)
def test_any_body_is_read(dialect: Dialect, body: dict[str, Any]) -> None:
    dialect.request_turns(body)
    dialect.response_turn(body)
    dialect.tools(body)
    dialect.effort(body)
    dialect.usage(body)
    dialect.streams("/", body)
    outcome = dialect.outcome(200, body)
    assert outcome.kind in ("completed", "truncated", "filtered", "refused", "partial", "error")
    assert outcome.kind != "completed" or dialect.response_turn(body) is not None or body.get("output") == []
    assert dialect.outcome(500, body).kind == "error"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(deadline=None, max_examples=40)
@given(events=st.lists(BODIES, max_size=5), cut=st.integers(0, 200))
def test_any_stream_is_put_together(dialect: Dialect, events: list[dict[str, Any]], cut: int) -> None:
    raw = b"".join(b"data: " + dumps(event) + b"\n\n" for event in events)
    for each in (raw, raw[: len(raw) - cut], raw[cut:]):
        body, reason = dialect.assemble(each)
        assert loads(dumps(body)) == body, "the record can be written and read back"
        assert reason is not None or b"response.completed" in each, "nothing here ends a stream but that"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(deadline=None, max_examples=40)
@given(raw=st.binary(max_size=300))
def test_any_bytes_are_no_complete_stream(dialect: Dialect, raw: bytes) -> None:
    _, reason = dialect.assemble(raw)
    assert reason is not None
