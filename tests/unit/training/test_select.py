from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.training.row import Row, build_row
from tests.unit.rollouts import (
    OPENING,
    PROMPT,
    TOOLS,
    Talk,
    assistant,
    call,
    config,
    exchange,
    result,
    result_of,
    system,
    three_steps,
    tool,
    user,
    write_records,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def row_of(path: Path, records: Sequence[Any], prompts: Sequence[str] = (PROMPT,), **changes: Any) -> Row:
    rundir = write_records(path, records, prompts)
    return build_row(rundir, result=result(records, **changes), config=config())


def selected(row: Row) -> list[int]:
    return [each["index"] for each in row.exchanges if each["selected"]]


def reasons(row: Row) -> dict[int, str]:
    return {each["index"]: each["reason"] for each in row.exchanges if not each["selected"]}


def roles(row: Row) -> list[str]:
    return [each["role"] for each in row.exchanges]


def test_plain_run_selects_every_exchange_in_order(tmp_path: Path) -> None:
    row = row_of(tmp_path, three_steps())
    assert selected(row) == [0, 1, 2]
    assert row.training_ready
    assert row.reason is None
    assert roles(row) == ["policy"] * 3


def test_retry_race_keeps_the_answer_that_was_used(tmp_path: Path) -> None:
    talk = Talk()
    for attempt in range(3):
        talk.ask(assistant("", call(f"lost{attempt}")), used=False)
    talk.ask(assistant("", call("kept")))
    talk.ask(assistant("Done."))
    row = row_of(tmp_path, talk.records)
    assert selected(row) == [3, 4]
    assert reasons(row) == dict.fromkeys(range(3), "superseded_retry")
    assert row.tokens == {"billed": 550, "selected": 220, "excluded": 330}
    assert row.training_ready


def test_retry_race_in_which_an_earlier_answer_was_used(tmp_path: Path) -> None:
    talk = Talk()
    first, late = assistant("", call("c1", cmd="ls")), assistant("", call("c2", cmd="rm -r build"))
    talk.ask(first, used=False)
    talk.ask(late, used=False)
    talk.use(first)
    talk.ask(assistant("Listed."))
    row = row_of(tmp_path, talk.records)
    assert selected(row) == [0, 2]
    assert reasons(row) == {1: "superseded_retry"}


def test_retried_text_answers_are_told_apart_by_their_text(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("Drop the slice."), used=False)
    talk.ask(assistant("Rewrite everything."), used=False)
    talk.history += [assistant("Drop the slice.  "), user("Do it.")]
    talk.ask(assistant("Done."))
    row = row_of(tmp_path, talk.records)
    assert selected(row) == [0, 2]


def test_retries_with_the_same_call_id_are_told_apart_by_their_content(tmp_path: Path) -> None:
    talk = Talk()
    used = assistant("", call("call_1", cmd="cat parse.py"))
    talk.ask(used, used=False)
    talk.ask(assistant("", call("call_1", cmd="rm parse.py")), used=False)
    talk.use(used)
    talk.ask(assistant("Read."))
    assert selected(row_of(tmp_path, talk.records)) == [0, 2]


def test_of_equal_answers_the_one_whose_client_had_not_left_is_used(tmp_path: Path) -> None:
    talk = Talk()
    answer = assistant("", call("call_1"))
    talk.ask(answer, used=False)
    talk.ask(answer, used=False, client_gone=True)
    talk.use(answer)
    talk.ask(assistant("Done."))
    assert selected(row_of(tmp_path, talk.records)) == [0, 2]


def test_late_completion_that_nobody_used_is_billed_and_dropped(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("", call("late", cmd="rm parse.py")), used=False, tokens=(263_400, 48))
    talk.say(user("The model did not answer. Continue."))
    talk.ask(assistant("", call("c2")))
    talk.ask(assistant("Fixed."))
    row = row_of(tmp_path, talk.records)
    assert selected(row) == [0, 2, 3]
    assert reasons(row) == {1: "unconsumed_tool_call"}
    assert row.tokens["excluded"] == 263_448
    assert row.training_ready
    assert "rm parse.py" not in row.line().decode()


def test_a_call_id_is_no_substring(tmp_path: Path) -> None:
    talk = Talk()
    used = assistant("", call("call_10"))
    talk.ask(used, used=False)
    talk.ask(assistant("", call("call_1")), used=False)
    talk.use(used)
    talk.ask(assistant("Done."))
    assert selected(row_of(tmp_path, talk.records)) == [0, 2]


def test_lines_are_ordered_by_start(tmp_path: Path) -> None:
    talk = Talk()
    for seq in range(3):
        talk.ask(assistant("", call(f"c{seq}")) if seq < 2 else assistant("Done."), started_seq=seq)
    first, second, third = talk.records
    row = row_of(tmp_path, [second, first, third])
    assert selected(row) == [0, 1, 2]
    assert row.row["completion"][-1]["content"] == "Done."
    assert row.training_ready


@pytest.mark.parametrize(
    ("finish", "outcome"), [("length", "truncated"), ("content_filter", "filtered"), (None, "partial")], ids=str
)
def test_answers_that_did_not_complete_are_no_steps(tmp_path: Path, finish: str | None, outcome: str) -> None:
    talk = Talk()
    talk.ask(assistant("Cut"), used=False, finish=finish)
    talk.ask(assistant("Whole."))
    row = row_of(tmp_path, talk.records)
    assert reasons(row) == {0: outcome}
    assert selected(row) == [1]
    assert row.training_ready


def test_refusal_is_no_step(tmp_path: Path) -> None:
    refused = assistant("") | {"refusal": "I will not."}
    row = row_of(tmp_path, [exchange(OPENING, refused)])
    assert reasons(row) == {0: "refused"}
    assert not row.training_ready
    assert row.reason == "refused"


def test_recovered_provider_error_is_excluded(tmp_path: Path) -> None:
    talk = Talk()
    talk.records.append(exchange(OPENING, None, status=500))
    talk.ask(assistant("Done."))
    row = row_of(tmp_path, talk.records)
    assert reasons(row) == {0: "provider_error"}
    assert row.training_ready


def test_rollout_whose_last_policy_request_failed_is_partial(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    row = row_of(tmp_path, [*talk.records, exchange(talk.history, None, status=500)])
    assert selected(row) == [0]
    assert row.reason == "partial_trajectory"
    assert row.row["error"]["error"] == "partial_trajectory"


def test_terminal_action_counts_though_nothing_answers_it(tmp_path: Path) -> None:
    records = three_steps()
    side = exchange([system("Write a commit message."), user("diff")], assistant("Keep the field"), tools=None)
    row = row_of(tmp_path, [*records, side])
    assert selected(row) == [0, 1, 2, 3]
    assert roles(row) == ["policy"] * 3 + ["side"]
    assert row.training_ready
    assert row.row["completion"][-1]["tool_calls"][0]["id"] == "c4"


def test_last_call_without_a_result_is_a_step_but_no_training_row(tmp_path: Path) -> None:
    row = row_of(tmp_path, [exchange(OPENING, assistant("", call("c1")))])
    assert selected(row) == [0]
    assert row.reason == "unanswered_tool_call"


def test_title_call_is_a_side_call_first_and_last(tmp_path: Path) -> None:
    title = exchange([system("Write a title."), user("Title this:"), user()], assistant("Parser fix"), tools=None)
    for number, records in enumerate(([title, *three_steps()], [*three_steps(), title])):
        row = row_of(tmp_path / str(number), records)
        assert [role for role, record in zip(roles(row), records, strict=True) if record is title] == ["side"]
        assert roles(row).count("policy") == 3
        assert row.row["prompt"][0]["content"] == system()["content"]


def test_question_about_the_history_is_a_side_call(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("Done."))
    talk.say(user("Give this conversation a title."))
    talk.ask(assistant("Parser fix"), tools=None)
    row = row_of(tmp_path, talk.records)
    assert roles(row) == ["policy", "policy", "side"]
    assert row.row["completion"][-1]["content"] == "Done."


def test_sub_agent_is_a_side_call_even_with_the_same_system_prompt(tmp_path: Path) -> None:
    main = Talk()
    main.ask(assistant("", call("c1", "bash", cmd="delegate")))
    helper = Talk(system(), user("Find out how split works."))
    helper.ask(assistant("", call("w1")))
    helper.ask(assistant("It splits."))
    records = [*main.records, *helper.records]
    main.ask(assistant("Removed the slice."))
    row = row_of(tmp_path, [*records, main.records[-1]])
    assert roles(row) == ["policy", "side", "side", "policy"]
    assert "It splits." not in str(row.row["completion"])
    assert row.training_ready


@pytest.mark.parametrize("asked", [PROMPT, f"<task>{PROMPT}</task>"], ids=["plain", "framed"])
@pytest.mark.parametrize("task", [PROMPT, f"For the goal '{PROMPT}' find out how split works."], ids=["same", "more"])
def test_a_task_that_the_model_has_written_is_a_sub_agents(tmp_path: Path, asked: str, task: str) -> None:
    main = Talk(system(), user(asked))
    main.ask(assistant("", call("t1", "task", prompt=task)))
    helper = Talk(system("You help."), user(task))
    for number in range(4):
        helper.ask(assistant("", call(f"w{number}")))
    records = [*main.records, *helper.records]
    main.ask(assistant("Removed the slice."))
    row = row_of(tmp_path, [*records, main.records[-1]])
    assert roles(row) == ["policy", *["side"] * 4, "policy"]
    assert row.training_ready


def test_compaction_starts_a_new_branch_of_the_policy(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("", call("c2")))
    condenser = exchange([system("Condense."), user("[events]")], assistant("c1 was run."), tools=None)
    after = Talk(system(), user(), user("Earlier: c1 was run."), *talk.history[-2:])
    after.ask(assistant("", call("c3")))
    after.ask(assistant("Done."))
    row = row_of(tmp_path, [*talk.records, condenser, *after.records])
    assert roles(row) == ["policy", "policy", "side", "policy", "policy"]
    assert selected(row) == [0, 1, 2, 3, 4]
    assert row.row["prompt"][2]["content"] == "Earlier: c1 was run."
    assert row.training_ready


def test_results_that_only_the_request_for_a_summary_carries_are_told(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("", call("c2")))
    summary = exchange(
        [system("You summarise."), *talk.history[1:], user("Sum up.")], assistant("c1, c2 ran."), tools=None
    )
    after = Talk(system(), user("Earlier: c1, c2 ran."))
    after.ask(assistant("Done."))
    row = row_of(tmp_path / "told", [*talk.records, summary, *after.records])
    assert roles(row) == ["policy", "policy", "side", "policy"]
    assert row.training_ready
    other = [system("You search."), user("x"), assistant("", call("c2", cmd="other")), result_of("c2")]
    row = row_of(tmp_path / "untold", [*talk.records, exchange(other, assistant("y"), tools=None), *after.records])
    assert row.reason == "unanswered_tool_call", "an id of someone else's call proves nothing"


SUMMARY = "parse.py was read; the slice drops the last field."


@pytest.mark.parametrize(
    ("said", "system_prompt"),
    [
        (SUMMARY, system()),
        (SUMMARY, system("You summarise.")),
        (f"<analysis>\nHm.\n</analysis>\n<summary>\n{SUMMARY}\n</summary>", system()),
    ],
    ids=["in-the-same-thread", "under-a-prompt-of-its-own", "in-an-element"],
)
def test_a_request_for_a_summary_may_offer_tools(tmp_path: Path, said: str, system_prompt: dict[str, Any]) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("", call("c2")))
    asked = [system_prompt, *talk.history[1:], user("Sum up for your successor.")]
    summaries = [exchange(asked, assistant("Cut of"), finish="length"), exchange(asked, assistant(said))]
    after = Talk(system(), user(f"Earlier: {SUMMARY} Go on."))
    after.ask(assistant("Done."))
    row = row_of(tmp_path, [*talk.records, *summaries, *after.records])
    assert roles(row) == ["policy", "policy", "side", "side", "policy"]
    assert row.training_ready


def test_an_answer_that_a_prompt_quotes_is_the_policys(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("I would drop the slice."))
    prompt = "You said: I would drop the slice. Do it."
    after = Talk(system(), user(prompt))
    after.ask(assistant("Done."))
    assert roles(row_of(tmp_path, [*talk.records, *after.records], (PROMPT, prompt))) == ["policy"] * 3


def test_compaction_that_leaves_only_a_summary_is_the_policy(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("Half done."))
    after = Talk(system(), user("Summary of the work: half done. Go on."))
    after.ask(assistant("All done."))
    assert roles(row_of(tmp_path, [*talk.records, *after.records])) == ["policy"] * 3


def test_each_prompt_of_a_task_with_steps_starts_a_policy_thread(tmp_path: Path) -> None:
    first, second = Talk(), Talk(system(), user("Now write a test."))
    first.ask(assistant("", call("c1")))
    first.ask(assistant("Fixed."))
    second.ask(assistant("", call("d1")))
    second.ask(assistant("Tested."))
    row = row_of(tmp_path, [*first.records, *second.records], (PROMPT, "Now write a test."))
    assert roles(row) == ["policy"] * 4
    assert row.row["prompt"][1]["content"] == "Now write a test."
    assert row.training_ready


@pytest.mark.parametrize("part", ["image_url", "input_audio", "hologram"])
def test_unsupported_item_refuses_the_row(tmp_path: Path, part: str) -> None:
    history = [system(), {"role": "user", "content": [{"type": "text", "text": PROMPT}, {"type": part, part: {}}]}]
    row = row_of(tmp_path, [exchange(history, assistant("A cat."))])
    assert reasons(row) == {0: "unsupported_item"}
    assert row.reason == "unsupported_item"
    assert part in row.row["error"]["message"]


def test_results_of_unknown_calls_are_never_paired_by_order(tmp_path: Path) -> None:
    history = [*OPENING, assistant("", call("fc_a"), call("fc_b")), result_of("call_a"), result_of("call_b")]
    row = row_of(tmp_path, [exchange(history, assistant("Compared."))])
    assert row.reason == "unsupported_item"
    assert "call_a" in row.row["error"]["message"]


def test_tools_of_the_row_are_the_union_with_the_last_schema(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")), tools=[tool("bash", "cmd")])
    talk.ask(assistant("", call("c2", "edit", path="x")), tools=[tool("bash", "cmd"), tool("edit", "path")])
    talk.ask(assistant("Done."), tools=[tool("bash", "command", "timeout")])
    row = row_of(tmp_path, talk.records)
    tools = {each["function"]["name"]: each["function"]["parameters"]["properties"] for each in row.row["tool_defs"]}
    assert set(tools) == {"bash", "edit"}
    assert set(tools["bash"]) == {"command", "timeout"}
    assert row.row["info"]["tool_conflicts"] == ["bash"]


def test_a_step_has_a_list_of_its_own_where_its_tools_are_not_the_rows(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")), tools=[tool("bash", "cmd")])
    talk.ask(assistant("", call("c2")), tools=[tool("bash", "cmd"), tool("edit", "path")])
    talk.ask(assistant("Done."), tools=[tool("bash", "cmd"), tool("edit", "path")])
    first, *rest = row_of(tmp_path, talk.records).row["trajectory"]
    assert [each["function"]["name"] for each in first["tool_defs"]] == ["bash"]
    assert not any("tool_defs" in step for step in rest)


def test_side_tools_stay_out_of_the_row(tmp_path: Path) -> None:
    side = exchange(
        [system("You search."), user("split")], assistant("", call("w", "web", q="split")), tools=[tool("web")]
    )
    row = row_of(tmp_path, [side, *three_steps()])
    assert [each["function"]["name"] for each in row.row["tool_defs"]] == [t["function"]["name"] for t in TOOLS]
