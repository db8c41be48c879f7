"""What every wire format keeps, whatever is said in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_benchflow.records.jsontext import dumps, loads
from tests.contracts.dialectrig import ARRAY, RIGS, SAID, TEXTS, Rig, Said, Tokens

every_format = pytest.mark.parametrize("rig", RIGS.values(), ids=RIGS.keys())
every_stream = pytest.mark.parametrize("rig", [*RIGS.values(), ARRAY], ids=[*RIGS, "generateContent-array"])
KINDS = {"completed", "truncated", "filtered", "refused", "partial", "error"}
CUT = {"type": "incomplete_stream", "message": "cut"}
CALLED = Said("Both.", "hm", (("a", "f", {"x": 1}), ("b", "f", {})), Tokens(10, 70, 20, 9))


def streamed(rig: Rig, body: dict[str, Any]) -> bytes:
    return b"".join(rig.dialect.disassemble(body, rig.request(), rig.path))


@every_stream
@settings(deadline=None)
@given(said=SAID)
def test_a_stream_gives_the_body_it_was_made_from(rig: Rig, said: Said) -> None:
    body = rig.answer(said)
    assert rig.dialect.assemble(streamed(rig, body)) == (body, None)


@every_stream
@settings(deadline=None, max_examples=40)
@given(said=SAID, data=st.data())
def test_every_end_survives_the_stream_and_is_told_for_what_it_is(rig: Rig, said: Said, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(rig.endings)))
    body = rig.ended(rig.answer(said), kind)
    outcome = rig.dialect.outcome(200, body)
    assert (outcome.kind, outcome.reason is None) == (kind, kind == "completed")
    assert rig.dialect.outcome(503, body).kind == "error"
    assert rig.dialect.outcome(200, body, CUT).kind != "completed"
    if kind not in ("partial", "error"):
        assert rig.dialect.assemble(streamed(rig, body)) == (body, None)


@every_format
@settings(deadline=None, max_examples=60)
@given(said=SAID, outputs=st.lists(TEXTS, min_size=3, max_size=3))
def test_a_history_carries_the_answer_as_it_was_given(rig: Rig, said: Said, outputs: list[str]) -> None:
    body = rig.answer(said)
    answer = rig.dialect.response_turn(body)
    assert answer is not None
    assert (answer.role, answer.text, answer.unsupported) == ("assistant", said.text or "", ())
    assert answer.reasoning == (said.reasoning is not None)
    assert [(call.id, call.name, json.loads(call.arguments)) for call in answer.tool_calls] == list(said.calls)

    results = [rig.result(call[0], call[1], output) for call, output in zip(said.calls, outputs, strict=False)]
    turns = rig.dialect.request_turns(rig.request(rig.user("go"), *rig.carry(body), *results, rig.user("on")))
    assert turns[1] == answer
    assert [(turn.tool_call_id, turn.text) for turn in turns[2:-1]] == [
        (call[0], output) for call, output in zip(said.calls, outputs, strict=False)
    ]
    assert [(turn.role, turn.text) for turn in (turns[0], turns[-1])] == [("user", "go"), ("user", "on")]
    assert not any(turn.unsupported for turn in turns)


@every_format
@settings(deadline=None, max_examples=40)
@given(said=SAID, more=SAID)
def test_a_history_can_be_read_in_pieces_where_an_item_closes(rig: Rig, said: Said, more: Said) -> None:
    dialect = rig.dialect
    results = [rig.result(call[0], call[1], "out") for call in said.calls]
    items = [rig.user("go"), *rig.carry(rig.answer(said)), *results, rig.user("on"), *rig.carry(rig.answer(more))]
    whole = dialect.request_turns(rig.request(*items))
    closing = [number for number, item in enumerate(items, 1) if dialect.closes(item)]
    assert closing, "the user's own items at least"
    for number in closing:
        pieces = (
            dialect.request_turns(rig.request(*items[:number])),
            dialect.request_turns(rig.request(*items[number:])),
        )
        assert [*pieces[0], *pieces[1]] == whole


@every_format
@settings(deadline=None)
@given(said=SAID)
def test_usage_is_in_one_convention_and_is_never_made_up(rig: Rig, said: Said) -> None:
    usage = rig.dialect.usage(rig.answer(said))
    if said.tokens is None:
        assert usage is None
        return
    assert usage == rig.usage(said.tokens)
    assert usage.billed == sum((said.tokens.fresh, said.tokens.read, said.tokens.created, said.tokens.output))


@every_stream
@settings(deadline=None, max_examples=40)
@given(said=SAID, data=st.data())
def test_a_stream_cut_anywhere_is_never_complete(rig: Rig, said: Said, data: st.DataObject) -> None:
    dialect = rig.dialect
    raw = streamed(rig, rig.answer(said))
    size = data.draw(st.integers(0, len(raw.rstrip(b"\n")) - 1))
    cut, reason = dialect.assemble(raw[:size])
    assert reason is not None
    assert dialect.outcome(200, cut, {"type": "incomplete_stream", "message": reason}).kind in ("partial", "error")
    turn = dialect.response_turn(cut)
    assert turn is None or (said.text or "").startswith(turn.text), "nothing is said that was not"
    assert loads(dumps(cut)) == cut, "what is recorded can be read back"


@every_stream
def test_a_stream_cut_at_each_byte_is_never_complete(rig: Rig) -> None:
    dialect = rig.dialect
    body = rig.answer(CALLED)
    raw = streamed(rig, body)
    whole = len(raw.rstrip(b"\n"))
    for size in range(whole):
        cut, reason = dialect.assemble(raw[:size])
        assert reason is not None, f"complete after {size} of {whole} bytes"
        assert dialect.outcome(200, cut, {"type": "incomplete_stream", "message": reason}).kind in ("partial", "error")
    assert dialect.assemble(raw[:whole]) == (body, None)


# The words of all formats, so that what is made up looks like them.
WORDS = """
messages input output content contents choices message delta role assistant user system tool model type text
tool_calls function id call_id tool_call_id name arguments args tool_use tool_result tool_use_id index usage status
completed response item part parts error finish_reason stop stop_reason end_turn reasoning summary tools custom
thought message_start content_block_start content_block_delta content_block message_delta message_stop output_index
item_id response.output_text.delta response.completed response.output_item.added response.content_part.added
content_index input_json_delta signature_delta partial_json candidates finishReason STOP functionCall
functionResponse promptFeedback blockReason usageMetadata promptTokenCount systemInstruction generationConfig
thinkingConfig functionDeclarations parameters properties items namespace iterations compaction function_call
function_call_output input_tokens prompt_tokens prompt_tokens_details system_instruction inlineData refusal audio
logprobs citationMetadata
""".split()  # noqa: SIM905 - a list of one word a line is harder to read
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
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=14
)


def deep(depth: int) -> Any:
    value: Any = {}
    for number in range(depth):
        value = {"items": value, "arguments": "x"} if number % 2 else [value]
    return value


def read_all(rig: Rig, body: Any) -> None:
    """Call everything that reads a body, and hold what must hold for any."""
    dialect = rig.dialect
    for turn in dialect.request_turns(body):
        assert turn.role in ("system", "user", "assistant", "tool")
    answer = dialect.response_turn(body)
    assert answer is None or answer.role == "assistant"
    assert all(isinstance(tool, dict) for tool in [*dialect.tools(body), *dialect.tools({"tools": [body]})])
    dialect.effort(body)
    dialect.usage(body)
    dialect.streams(rig.path, body)
    dialect.closes(body)
    outcome = dialect.outcome(200, body)
    assert outcome.kind in KINDS
    assert outcome.kind != "completed" or answer is not None or body.get("output") == []
    assert dialect.outcome(500, body).kind == "error"
    raw = b"".join(dialect.disassemble(body, body, rig.path))
    dialect.assemble(raw)


@every_format
@settings(deadline=None, max_examples=100)
@given(body=JSON)
def test_no_json_value_breaks_a_format(rig: Rig, body: Any) -> None:
    read_all(rig, body)


@every_format
@settings(deadline=None, max_examples=60)
@given(items=st.lists(JSON, max_size=3))
def test_no_item_of_a_history_or_an_answer_breaks_a_format(rig: Rig, items: list[Any]) -> None:
    read_all(rig, rig.request(*items))
    for body in (
        {"output": items},
        {"content": items, "stop_reason": "end_turn"},
        {"choices": [{"message": {"content": items, "tool_calls": items}}]},
        {"candidates": [{"content": {"parts": items}, "finishReason": "STOP"}]},
    ):
        read_all(rig, body)


def paths_of(value: Any) -> list[tuple[Any, ...]]:
    """Return the way to each value inside a JSON value, its own first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key, each in inner for rest in paths_of(each))]


def put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return the value with another one at the end of a path."""
    if not path:
        return other
    if isinstance(value, dict):
        return {**value, path[0]: put(value[path[0]], path[1:], other)}
    return [*value[: path[0]], put(value[path[0]], path[1:], other), *value[path[0] + 1 :]]


@every_format
@settings(deadline=None, max_examples=150)
@given(other=JSON, data=st.data())
def test_no_single_wrong_value_breaks_a_format(rig: Rig, other: Any, data: st.DataObject) -> None:
    body = rig.answer(CALLED)
    results = [rig.result(call[0], call[1], "out") for call in CALLED.calls]
    for right in (body, rig.request(rig.user("go"), *rig.carry(body), *results)):
        read_all(rig, put(right, data.draw(st.sampled_from(paths_of(right))), other))


@every_format
@pytest.mark.parametrize("depth", [100, 300, 900])
def test_no_depth_breaks_a_format(rig: Rig, depth: int) -> None:
    value = deep(depth)
    call = {"type": "tool_use", "id": "a", "name": "f", "input": value}
    part = {"functionCall": {"id": "a", "name": "f", "args": value}}
    custom = {"id": "a", "type": "function", "function": {"name": "f", "arguments": value}}
    item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": value}
    items = {
        "messages": [{"role": "assistant", "content": [call]}, {"role": "assistant", "tool_calls": [custom]}],
        "input": [item],
        "contents": [{"role": "model", "parts": [part]}],
    }
    dialect = rig.dialect
    turns = dialect.request_turns({dialect.history: items[dialect.history]})
    assert any(turn.tool_calls for turn in turns)
    dialect.tools({"tools": [{"functionDeclarations": [{"name": "f", "parameters": value}]}]})


@every_stream
@settings(deadline=None, max_examples=60)
@given(events=st.lists(JSON, max_size=5), cut=st.integers(0, 200))
def test_any_stream_is_put_together(rig: Rig, events: list[Any], cut: int) -> None:
    array = b"[" + b",".join(map(dumps, events)) + b"]"
    for whole in (b"".join(b"data: " + dumps(event) + b"\n\n" for event in events), array):
        for raw in (whole, whole[: len(whole) - cut], whole[cut:]):
            body, reason = rig.dialect.assemble(raw)
            assert loads(dumps(body)) == body, "the record can be written and read back"
            ends = (b"response.completed", b"message_stop", b"finishReason", b"blockReason")
            assert reason is not None or any(end in raw for end in ends), "nothing else here ends a stream"


@every_stream
@settings(deadline=None, max_examples=60)
@given(raw=st.binary(max_size=300))
def test_any_bytes_are_no_complete_stream(rig: Rig, raw: bytes) -> None:
    _, reason = rig.dialect.assemble(raw)
    assert reason is not None
