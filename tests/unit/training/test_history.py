"""Histories that a request only names: chains of responses, item references, other wire formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.training.row import build_row
from tests.unit.rollouts import PROMPT, config, result, write_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_benchflow.training.row import Row

TOOL = {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}}


def asked(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def said(text: str, number: int) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}


def calls(call_id: str, number: int) -> dict[str, Any]:
    arguments = '{"cmd": "ls"}'
    return {"type": "function_call", "id": f"fc_{number}", "call_id": call_id, "name": "bash", "arguments": arguments}


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "parse.py"}


def response(number: int, items: Sequence[Any], answer: Sequence[Any], **body: Any) -> dict[str, Any]:
    usage = {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100}
    return {
        "request": {"path": "/v1/responses", "body": {"model": "m", "input": list(items), "tools": [TOOL], **body}},
        "response": {
            "status_code": 200,
            "body": {"id": f"resp_{number}", "status": "completed", "output": list(answer), "usage": usage},
        },
        "error": None,
        "metadata": {},
    }


def row_of(path: Path, records: Sequence[Any]) -> Row:
    return build_row(write_records(path, records), result=result([]), config=config())


def contents(row: Row) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in row.row["prompt"] + row.row["completion"]]


def test_chain_of_responses_is_one_history(tmp_path: Path) -> None:
    records = [
        response(0, [asked(PROMPT)], [calls("c1", 0)], instructions="Be brief."),
        response(1, [output("c1")], [said("Which field?", 1)], instructions="Be exact.", previous_response_id="resp_0"),
        response(2, [asked("The last.")], [said("Fixed.", 2)], previous_response_id="resp_1"),
    ]
    row = row_of(tmp_path, records)
    assert row.training_ready, row.row["error"]
    assert [each["role"] for each in row.exchanges] == ["policy"] * 3
    # Instructions belong to one request: the last had none.
    assert contents(row) == [
        ("user", PROMPT),
        ("assistant", ""),
        ("tool", "parse.py"),
        ("assistant", "Which field?"),
        ("user", "The last."),
        ("assistant", "Fixed."),
    ]
    assert [m["content"] for m in row.row["trajectory"][1]["prompt"] if m["role"] == "system"] == ["Be exact."]


def test_chain_that_begins_outside_the_record_refuses_the_row(tmp_path: Path) -> None:
    row = row_of(tmp_path, [response(0, [asked("Go on.")], [said("Done.", 0)], previous_response_id="resp_lost")])
    assert row.reason == "unsupported_item"
    assert "resp_lost" in row.row["error"]["message"]


def test_item_references_are_resolved_from_earlier_answers(tmp_path: Path) -> None:
    reference = {"type": "item_reference", "id": "fc_0"}
    records = [
        response(0, [asked(PROMPT)], [calls("c1", 0)]),
        response(1, [asked(PROMPT), reference, output("c1")], [said("Done.", 1)]),
    ]
    row = row_of(tmp_path, records)
    assert row.training_ready, row.row["error"]
    assert [role for role, _ in contents(row)] == ["user", "assistant", "tool", "assistant"]
    lost = [response(0, [asked(PROMPT), {"type": "item_reference", "id": "fc_9"}], [said("Done.", 0)])]
    assert "fc_9" in row_of(tmp_path / "lost", lost).row["error"]["message"]


def test_conversation_kept_by_the_provider_refuses_the_row(tmp_path: Path) -> None:
    row = row_of(tmp_path, [response(0, [asked(PROMPT)], [said("Done.", 0)], conversation="conv_1")])
    assert row.reason == "unsupported_item"


def test_messages_format_keeps_system_prompt_calls_and_cached_tokens(tmp_path: Path) -> None:
    def record(messages: list[Any], answer: list[Any], stop: str) -> dict[str, Any]:
        usage = {"input_tokens": 10, "cache_read_input_tokens": 80, "output_tokens": 10}
        tools = [{"name": "bash", "input_schema": {"type": "object", "properties": {"cmd": {"type": "string"}}}}]
        body = {"model": "m", "system": "You repair programs.", "messages": messages, "tools": tools}
        return {
            "request": {"path": "/v1/messages", "body": body},
            "response": {
                "status_code": 200,
                "body": {
                    "type": "message",
                    "role": "assistant",
                    "content": answer,
                    "stop_reason": stop,
                    "usage": usage,
                },
            },
            "error": None,
            "metadata": {},
        }

    opening = {"role": "user", "content": PROMPT}
    use = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"cmd": "ls"}}
    result_block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "parse.py"}
    records = [
        record([opening], [{"type": "text", "text": "I look."}, use], "tool_use"),
        record(
            [
                opening,
                {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
                {"role": "user", "content": [result_block]},
            ],
            [{"type": "text", "text": "Fixed."}],
            "end_turn",
        ),
    ]
    row = row_of(tmp_path, records)
    assert row.training_ready, row.row["error"]
    assert [role for role, _ in contents(row)] == ["system", "user", "assistant", "tool", "assistant"]
    assert row.tokens == {"billed": 200, "selected": 200, "excluded": 0}
    assert list(row.row["tool_defs"][0]["function"]["parameters"]["properties"]) == ["cmd"]
