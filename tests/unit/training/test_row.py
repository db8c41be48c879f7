from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from pytest_benchflow.training.row import build_row
from tests.unit.rollouts import (
    OPENING,
    PROMPT,
    Talk,
    assistant,
    call,
    config,
    exchange,
    result,
    result_of,
    system,
    three_steps,
    user,
    write_records,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import FrameType

    from pytest_benchflow.training.row import Row


def row_of(path: Path, records: Sequence[Any], **changes: Any) -> Row:
    return build_row(write_records(path, records), result=result(records, **changes), config=config())


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


def test_row_holds_the_conversation_and_a_step_for_each_exchange(tmp_path: Path) -> None:
    row = row_of(tmp_path, three_steps()).row
    assert roles(row["prompt"]) == ["system", "user"]
    assert roles(row["completion"]) == ["assistant", "tool", "assistant", "tool", "tool", "assistant"]
    assert [step["extras"]["exchange_index"] for step in row["trajectory"]] == [0, 1, 2]
    assert [len(step["prompt"]) for step in row["trajectory"]] == [2, 4, 7]
    assert all(roles(step["completion"]) == ["assistant"] for step in row["trajectory"])
    assert row["info"]["task_id"] == "fix-parser"
    assert row["token_usage"]["total_tokens"] == 330
    assert row["stop_condition"] == "agent_completed"
    assert row["metrics"] == {"reward": 1.0, "n_tool_calls": 3, "n_prompts": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"error": "Agent timed out after 900s", "error_category": "timeout"}, "agent_error"),
        ({"error_category": "sandbox"}, "agent_error"),
        ({"verifier_error": "crashed", "rewards": None}, "verifier_error"),
        ({"export_error": "disk full"}, "export_error"),
        ({"partial_trajectory": True}, "partial_trajectory"),
        ({"rewards": None}, "no_reward"),
        ({"rewards": {"reward": None}}, "no_reward"),
        ({"rewards": {"reward": float("nan")}}, "no_reward"),
        ({"rewards": {"reward": True}}, "no_reward"),
    ],
    ids=["timeout", "category-only", "verifier", "export", "partial", "no-rewards", "null", "nan", "bool"],
)
def test_a_rollout_that_did_not_end_well_is_not_ready(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    row = row_of(tmp_path, three_steps(), **changes)
    assert not row.training_ready
    assert row.reason == row.row["info"]["training_ready_reason"] == reason
    assert row.row["error"]["error_chain_str"]
    assert row.row["is_completed"] is False
    assert len(row.row["trajectory"]) == 3


def test_an_agent_without_a_model_still_has_a_row(tmp_path: Path) -> None:
    rundir = write_records(tmp_path, [])
    row = build_row(rundir, result=result([], agent="oracle", agent_name="oracle"), config=config(agent="oracle"))
    assert row.reason == "no model"
    assert row.row["prompt"] == [{"role": "user", "content": PROMPT}]
    assert row.row["trajectory"] == []
    assert json.loads(row.line())["reward"] == 1.0


def test_a_model_agent_without_exchanges_is_not_excused(tmp_path: Path) -> None:
    assert row_of(tmp_path, []).reason == "no_exchanges"


def test_nothing_at_all_still_gives_a_row(tmp_path: Path) -> None:
    from pytest_benchflow.records.rundir import RunDir

    row = build_row(RunDir(tmp_path), result={}, config={})
    assert not row.training_ready
    assert row.line()


@pytest.mark.parametrize(
    "damage",
    [b'{"request": {"path"', b"\xff\xfe", b"[1]", b"[" * 3000, b'{"request": {"body": NaN}}'],
    ids=["torn", "invalid-utf8", "list", "deep", "nan"],
)
def test_a_line_that_is_no_record_keeps_its_place_and_refuses_the_row(tmp_path: Path, damage: bytes) -> None:
    rundir = write_records(tmp_path, three_steps())
    lines = rundir.llm.read_bytes().splitlines()
    rundir.llm.write_bytes(b"\n".join([lines[0], damage, *lines[1:]]) + b"\n")
    row = build_row(rundir, result=result(three_steps()), config=config())
    assert [each["outcome"] for each in row.exchanges] == ["completed", "error", "completed", "completed"]
    assert row.reason == "unreadable_trajectory"
    assert "llm_trajectory.jsonl:2" in row.row["error"]["message"]


def test_line_separators_inside_strings_do_not_end_a_record(tmp_path: Path) -> None:
    row = row_of(tmp_path, [exchange(OPENING, assistant("one\u2028two\u0085three"))])
    assert row.training_ready
    assert row.row["completion"][0]["content"] == "one\u2028two\u0085three"


def test_lone_surrogates_in_tool_output_are_replaced(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")), used=False)
    talk.history += [assistant("", call("c1")), result_of("c1", "bytes \udce4 and \U0001f600")]
    talk.ask(assistant("Done."))
    row = row_of(tmp_path, talk.records)
    assert row.training_ready
    assert row.row["info"]["surrogates_replaced"] == 1
    assert "bytes \ufffd and \U0001f600" in orjson.loads(row.line())["completion"][1]["content"]


@pytest.mark.parametrize(("given", "kept"), [(10**25, 1e25), (10**400, None)], ids=["beyond_64_bits", "beyond_floats"])
def test_numbers_that_most_readers_cannot_hold_leave_a_row_that_can_be_written(
    tmp_path: Path, given: int, kept: float | None
) -> None:
    records = three_steps()
    records[1]["response"]["body"]["usage"]["total_tokens"] = given
    row = row_of(tmp_path, records)
    assert row.training_ready
    assert row.tokens["billed"] == 330
    step = orjson.loads(row.line())["trajectory"][1]
    assert step["response"]["usage"]["total_tokens"] == kept


@pytest.mark.parametrize(
    "answer",
    [assistant("odd \ud800"), assistant("", call("c1", "finish", message="\udfff"))],
    ids=["text", "arguments"],
)
def test_lone_surrogates_in_what_would_be_trained_refuse_the_row(tmp_path: Path, answer: dict[str, Any]) -> None:
    row = row_of(tmp_path, [exchange(OPENING, answer)])
    assert not row.training_ready
    assert "surrogate" in row.row["error"]["message"]
    orjson.loads(row.line())


@pytest.mark.parametrize("arguments", ['{"cmd": ', "[1]", '{"n": NaN}', "ls"], ids=["torn", "list", "nan", "no-json"])
def test_arguments_that_are_no_json_object_refuse_the_row(tmp_path: Path, arguments: str) -> None:
    bad = call("c1", "finish")
    bad["function"]["arguments"] = arguments
    row = row_of(tmp_path, [exchange(OPENING, assistant("", bad))])
    assert row.reason == "invalid_arguments"
    assert "c1" in row.row["error"]["message"]
    kept = row.row["completion"][0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(kept) == {"malformed": arguments.strip()}


def test_empty_arguments_are_an_empty_object(tmp_path: Path) -> None:
    bare = call("c1", "finish")
    bare["function"]["arguments"] = ""
    row = row_of(tmp_path, [exchange(OPENING, assistant("", bare))])
    assert row.training_ready
    assert row.row["completion"][0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_answers_nested_too_deeply_refuse_the_row_and_keep_it(tmp_path: Path) -> None:
    record = exchange(OPENING, assistant("Deep."))
    nest: Any = "end"
    for _ in range(600):
        nest = [nest]
    record["response"]["body"]["extra"] = nest
    row = row_of(tmp_path, [record])
    assert row.reason == "not_serialisable"
    assert json.loads(row.line())["info"]["training_ready"] is False


def test_reasoning_is_stripped_from_messages_and_answers(tmp_path: Path) -> None:
    answer = assistant("", call("c1", "finish", reasoning="said in the open"))
    thoughts = {"reasoning_content": "private", "reasoning": "private", "reasoning_details": [{"text": "private"}]}
    row = row_of(tmp_path, [exchange(OPENING, answer | thoughts)])
    assert "private" not in row.line().decode()
    assert row.line().decode().count("said in the open") == 3, "a call keeps its arguments"
    assert row.row["info"]["reasoning_parts_stripped"] == 3


def test_thoughts_of_gemini_are_stripped_and_its_calls_kept(tmp_path: Path) -> None:
    parts = [
        {"text": "private thought", "thought": True},
        {"text": "Done."},
        {"functionCall": {"id": "c1", "name": "finish", "args": {"message": "ok"}}},
    ]
    record = exchange(OPENING, assistant("Done."))
    record["request"]["path"] = "/v1beta/models/gemini-invented:streamGenerateContent"
    record["request"]["body"] = {"contents": [{"role": "user", "parts": [{"text": "Fix the tests."}]}]}
    record["response"]["body"] = {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11},
        "modelStatus": [{"type": ["of no shape that anyone expects"]}],
    }
    row = row_of(tmp_path, [record])
    assert "private thought" not in row.line().decode()
    assert row.row["info"]["reasoning_parts_stripped"] == 1
    (message,) = row.row["completion"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["finish"]


def test_later_system_messages_are_folded_into_the_first(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.say({"role": "developer", "content": "Keep answers short."})
    talk.ask(assistant("Done."))
    row = row_of(tmp_path, talk.records)
    whole = row.row["prompt"] + row.row["completion"]
    assert roles(whole) == ["system", "user", "assistant", "tool", "assistant"]
    assert "Keep answers short." in whole[0]["content"]
    assert row.row["info"]["system_messages_folded"] >= 1


def test_fragments_of_one_result_are_joined_and_copies_dropped(tmp_path: Path) -> None:
    history = [*OPENING, assistant("", call("c1")), result_of("c1", "part one"), result_of("c1", "part two")]
    history.append(result_of("c1", "part one"))
    row = row_of(tmp_path, [exchange(history, assistant("Done."))])
    assert row.row["completion"][1] == {"role": "tool", "content": "part one\npart two", "tool_call_id": "c1"}
    assert row.row["info"]["tool_results_joined"] == row.row["info"]["tool_results_dropped"] == 1


def test_two_results_apart_for_one_call_refuse_the_row(tmp_path: Path) -> None:
    history = [*OPENING, assistant("", call("c1")), result_of("c1", "one"), user("Well?"), result_of("c1", "two")]
    assert row_of(tmp_path, [exchange(history, assistant("Done."))]).reason == "unsupported_item"


def test_two_calls_of_one_answer_that_share_an_id_refuse_the_row(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1", cmd="ls"), call("c1", cmd="pwd")))
    talk.ask(assistant("Done."))
    row = row_of(tmp_path, talk.records)
    assert row.reason == "unsupported_item"
    assert "two calls with the id c1" in row.row["error"]["message"]


def test_an_id_used_again_by_a_later_call_is_a_new_pair(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("call_0", cmd="ls")), used=False)
    talk.history += [assistant("", call("call_0", cmd="ls")), result_of("call_0", "files")]
    talk.ask(assistant("", call("call_0", cmd="cat a")), used=False)
    talk.history += [assistant("", call("call_0", cmd="cat a")), result_of("call_0", "text")]
    talk.ask(assistant("Done."))
    row = row_of(tmp_path, talk.records)
    assert row.training_ready
    assert [m["content"] for m in row.row["completion"] if m["role"] == "tool"] == ["files", "text"]


def test_usage_that_reports_only_a_total_is_billed(tmp_path: Path) -> None:
    record = exchange(OPENING, assistant("Done."))
    record["response"]["body"]["usage"] = {"total_tokens": 77}
    row = row_of(tmp_path, [record])
    assert row.tokens == {"billed": 77, "selected": 77, "excluded": 0}
    assert row.usage["total_tokens"] == 77
    assert row.usage["n_input_tokens"] is None


def test_unknown_usage_is_not_zero(tmp_path: Path) -> None:
    row = row_of(tmp_path, [exchange(OPENING, assistant("Done."), tokens=None)])
    assert row.exchanges[0]["tokens"] is None
    assert row.usage["total_tokens"] is None
    assert row.row["token_usage"]["total_tokens"] is None
    assert row.summary["with_usage"] == 0


def test_excluded_exchanges_are_listed_with_their_tokens(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("Cut"), used=False, finish="length", tokens=(70, 7))
    talk.ask(assistant("Done."))
    row = row_of(tmp_path, talk.records)
    assert row.row["info"]["excluded_exchanges"] == [{"index": 0, "reason": "truncated", "tokens": 77}]
    assert row.summary["excluded_by_reason"] == {"truncated": 1}
    assert row.summary["truncated"] == 1


def test_requests_that_are_no_model_call_are_side_exchanges(tmp_path: Path) -> None:
    listing = {
        "request": {"method": "GET", "path": "/v1/models", "body": None},
        "response": {"status_code": 200, "body": {"data": []}},
        "error": None,
        "metadata": {},
    }
    row = row_of(tmp_path, [listing, *three_steps()])
    assert row.exchanges[0]["role"] == "side"
    assert row.exchanges[0]["reason"] == "unsupported_item"
    assert row.training_ready


@pytest.mark.parametrize("history", [{}, {"messages": []}, {"messages": ""}], ids=["missing", "empty", "blank"])
def test_a_completed_request_without_a_history_refuses_the_row(tmp_path: Path, history: dict[str, Any]) -> None:
    records = three_steps()
    del records[1]["request"]["body"]["messages"]
    records[1]["request"]["body"] |= history
    row = row_of(tmp_path, records)
    assert row.exchanges[1]["reason"] == "unsupported_item"
    assert row.reason == "unsupported_item"
    assert "without messages" in row.row["error"]["message"]


@pytest.mark.parametrize("status", ["500", "200", 200.5, True, []], ids=str)
def test_a_status_that_is_none_is_never_a_success(tmp_path: Path, status: Any) -> None:
    records = three_steps()
    records[1]["response"]["status_code"] = status
    assert row_of(tmp_path, records).exchanges[1]["outcome"] == "error"


def test_prompts_file_names_the_policy_where_no_event_does(tmp_path: Path) -> None:
    title = [exchange([system("Title."), user("Other text")], assistant("x")) for _ in range(1)]
    rundir = write_records(tmp_path, [*title, exchange(OPENING, assistant("Done."))])
    rundir.acp.unlink()
    rundir.prompts.write_text(json.dumps([{"step": None, "prompt": PROMPT}]))
    row = build_row(rundir, result=result([]), config=config())
    assert [each["role"] for each in row.exchanges] == ["side", "policy"]


def test_histories_are_read_in_work_that_grows_with_their_bytes(tmp_path: Path) -> None:
    """Count what is called, not the time, which another process on the machine changes."""

    def work(steps: int) -> float:
        talk = Talk()
        for number in range(steps):
            talk.ask(assistant("", call(f"c{number}", cmd=f"echo {number}" + "x" * 2000)))
        talk.ask(assistant("Done."))
        rundir = write_records(tmp_path / str(steps), talk.records)
        calls = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            row = build_row(rundir, result=result(talk.records), config=config())
        finally:
            sys.setprofile(before)
        assert row.training_ready
        return calls / rundir.llm.stat().st_size

    assert work(160) < 1.5 * work(40)
