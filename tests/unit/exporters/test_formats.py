"""What each format makes of a conversation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.exporters._base import export
from tests.unit.rollouts import (
    PROMPT,
    SYSTEM,
    TOOLS,
    Talk,
    assistant,
    call,
    exchange,
    result_of,
    system,
    tool,
    user,
    write_rollout,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Json = dict[str, Any]


def exported(form: str, tmp_path: Path, records: Sequence[Json] | None = None, **options: Any) -> list[Json]:
    write_rollout(tmp_path / "job" / "one", records)
    export(form, [tmp_path / "job"], tmp_path / "out.jsonl", **options)
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").split("\n") if line]


def skipped(form: str, tmp_path: Path, records: Sequence[Json]) -> dict[str, int]:
    write_rollout(tmp_path / "job" / "one", records)
    return dict(export(form, [tmp_path / "job"], tmp_path / "out.jsonl").skipped)


def kept_first_answer() -> list[Json]:
    """Return a run that keeps its first answer when it compacts its history."""
    talk = Talk()
    talk.ask(assistant("I look.", call("c1", cmd="cat parse.py")))
    first = list(talk.history)
    talk.ask(assistant("", call("c2", cmd="cat tests.py")))
    talk.ask(assistant("What next?"))
    return [*talk.records, exchange([*first, user("Summary: go on.")], assistant("Repaired."))]


def compacted_before_an_answer() -> list[Json]:
    """Return a run whose second history holds an answer that no exchange gave."""
    example = [assistant("", call("x1", cmd="ls")), result_of("x1")]
    talk = Talk(system(), user("An example."), *example, user())
    talk.ask(assistant("Repaired."))
    return talk.records


def test_prime_sft_has_one_type_in_every_column(tmp_path: Path) -> None:
    [row] = exported("prime-sft", tmp_path)
    assert list(row) == ["messages", "tool_defs", "reward", "info"]
    assert {tuple(message) for message in row["messages"]} == {("role", "content", "tool_calls", "tool_call_id")}
    assert [message["role"] for message in row["messages"]] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "tool", "assistant")
    ]
    arguments = [c["function"]["arguments"] for m in row["messages"] for c in m["tool_calls"] or ()]
    assert json.loads(arguments[0]) == {"cmd": "cat parse.py"}
    assert json.loads(row["tool_defs"]) == TOOLS
    assert row["reward"] == 1.0
    assert {key: json.loads(row["info"])[key] for key in ("task", "rollout", "role", "branch", "exchanges")} == {
        "task": "fix-parser",
        "rollout": "one",
        "role": "policy",
        "branch": 0,
        "exchanges": [0, 1, 2],
    }


def test_arguments_stay_as_the_model_wrote_them(tmp_path: Path) -> None:
    talk = Talk()
    written = call("c1")
    written["function"]["arguments"] = '{ "cmd" : null,  "n": 1.50 }'
    talk.ask(assistant("", written))
    talk.ask(assistant("Done."))
    [row] = exported("prime-sft", tmp_path, talk.records)
    assert row["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{ "cmd" : null,  "n": 1.50 }'


def test_tools_of_a_branch_are_what_its_own_exchanges_offered(tmp_path: Path) -> None:
    before, after = Talk(tools=[tool("bash", "cmd")]), Talk(system(), user(), user("Summary."), tools=[])
    before.ask(assistant("", call("c1")))
    before.ask(assistant("What next?"), tools=[tool("bash", "cmd"), tool("edit", "path")])
    after.options["tools"] = [tool("bash", "cmd", "timeout"), tool("look", "path")]
    after.ask(assistant("", call("c2")))
    after.ask(assistant("Repaired."))
    rows = exported("prime-sft", tmp_path, before.records + after.records)
    named = [[each["function"]["name"] for each in json.loads(row["tool_defs"])] for row in rows]
    assert named == [["bash", "edit"], ["bash", "look"]]


def test_a_tool_that_changes_on_the_way_has_its_last_definition_and_is_counted(tmp_path: Path) -> None:
    talk = Talk(tools=[tool("bash", "cmd")])
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("Done."), tools=[tool("bash", "cmd", "timeout")])
    [row] = exported("prime-sft", tmp_path, talk.records, manifest=tmp_path / "manifest.json")
    assert list(json.loads(row["tool_defs"])[0]["function"]["parameters"]["properties"]) == ["cmd", "timeout"]
    assert json.loads(row["info"])["tools_redefined"] == ["bash"]
    assert json.loads((tmp_path / "manifest.json").read_text("utf-8"))["rows_with_redefined_tools"] == 1


def test_a_branch_that_carries_calls_of_another_has_their_tools(tmp_path: Path) -> None:
    talk = Talk(tools=[tool("bash", "cmd")])
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("", call("c2")))
    short = [system(), user(), user("Some turns are left out."), *talk.history[-2:]]
    rows = exported("prime-sft", tmp_path, [*talk.records, exchange(short, assistant("Done."), tools=[tool("bash2")])])
    assert [each["function"]["name"] for each in json.loads(rows[-1]["tool_defs"])] == ["bash", "bash2"]


def test_trl_has_arguments_as_objects_and_names_at_results(tmp_path: Path) -> None:
    [row] = exported("trl", tmp_path)
    assert row["messages"][2]["tool_calls"][0]["function"] == {"name": "bash", "arguments": {"cmd": "cat parse.py"}}
    assert row["messages"][3] == {
        "role": "tool",
        "content": "output of c1",
        "tool_call_id": "c1",
        "name": "bash",
    }
    assert json.loads(row["tools"]) == TOOLS


def test_openai_weighs_answers_that_another_example_has_or_no_model_gave_with_nothing(tmp_path: Path) -> None:
    first, second = exported("openai", tmp_path, kept_first_answer())
    assert [m.get("weight") for m in first["messages"] if m["role"] == "assistant"] == [None, None, None]
    assert [m.get("weight") for m in second["messages"] if m["role"] == "assistant"] == [0, None]
    [row] = exported("openai", tmp_path / "foreign", compacted_before_an_answer())
    assert [m.get("weight") for m in row["messages"] if m["role"] == "assistant"] == [0, None]


def test_openai_example_has_no_key_without_a_value(tmp_path: Path) -> None:
    [row] = exported("openai", tmp_path)
    assert row["messages"][4] == {"role": "assistant", "tool_calls": row["messages"][4]["tool_calls"]}
    assert row["messages"][:2] == [system(), user()]
    assert row["tools"] == TOOLS


def named(name: str) -> list[Json]:
    talk = Talk(tools=[tool(name, "cmd")])
    talk.ask(assistant("", call("c1", name)))
    talk.ask(assistant("Done."))
    return talk.records


def user_between() -> list[Json]:
    talk = Talk()
    talk.ask(assistant("", call("c1")), used=False)
    said = talk.records[0]["response"]["body"]["choices"][0]["message"]
    talk.history += [said, user("Are you there?"), result_of("c1")]
    talk.ask(assistant("Done."))
    return talk.records


@pytest.mark.parametrize(
    ("form", "records", "reason"),
    [
        ("openai", named("my.tool"), "tool_not_accepted"),
        ("openai", user_between(), "unanswered_tool_call"),
        ("adp", user_between(), "unanswered_tool_call"),
    ],
    ids=["openai: name of a tool", "openai: result apart", "adp: result apart"],
)
def test_what_a_format_cannot_hold_is_left_out_by_reason(
    form: str, records: list[Json], reason: str, tmp_path: Path
) -> None:
    assert skipped(form, tmp_path, records) == {reason: 1}


@pytest.mark.parametrize("version", ["1.7", "1.8"])
def test_atif_steps_are_numbered_and_hold_the_results_of_their_calls(version: str, tmp_path: Path) -> None:
    [document] = exported("atif", tmp_path, version=version)
    steps = document["steps"]
    assert document["schema_version"] == f"ATIF-v{version}"
    assert [(step["step_id"], step["source"]) for step in steps] == [
        (1, "system"),
        (2, "user"),
        (3, "agent"),
        (4, "agent"),
        (5, "agent"),
    ]
    assert [step["message"] for step in steps[:3]] == [SYSTEM, PROMPT, "I look."]
    assert steps[2]["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "bash", "arguments": {"cmd": "cat parse.py"}}
    ]
    assert [result["source_call_id"] for result in steps[3]["observation"]["results"]] == ["c2", "c3"]
    assert "observation" not in steps[4]
    assert steps[2]["metrics"] == {"prompt_tokens": 100, "completion_tokens": 10}
    assert document["final_metrics"] == {
        "total_prompt_tokens": 300,
        "total_completion_tokens": 30,
        "total_steps": 5,
    }
    assert document["agent"]["tool_definitions"] == TOOLS


def test_atif_marks_what_an_earlier_trajectory_has(tmp_path: Path) -> None:
    first, second = exported("atif", tmp_path, kept_first_answer())
    copied = [
        [step.get("is_copied_context") for step in doc["steps"] if step["source"] == "agent"] for doc in (first, second)
    ]
    assert copied == [[None, None, None], [True, None]]
    assert first["session_id"] == second["session_id"]
    assert first["trajectory_id"] != second["trajectory_id"]


def test_atif_leaves_out_a_sum_of_which_a_part_is_unknown(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")), tokens=None)
    talk.ask(assistant("Done."))
    [document] = exported("atif", tmp_path, talk.records)
    assert document["final_metrics"] == {"total_steps": 4}


def test_adp_links_observations_to_actions(tmp_path: Path) -> None:
    [trajectory] = exported("adp", tmp_path)
    assert [(item["class_"], item.get("tool_call_id")) for item in trajectory["content"]] == [
        ("text_observation", None),
        ("api_action", "c1"),
        ("text_observation", "c1"),
        ("api_action", "c2"),
        ("api_action", "c3"),
        ("text_observation", "c2"),
        ("text_observation", "c3"),
        ("api_action", None),
    ]
    action = trajectory["content"][1]
    assert (action["function"], action["kwargs"], action["description"]) == ("bash", {"cmd": "cat parse.py"}, "I look.")
    assert trajectory["details"]["system_prompt"] == SYSTEM
    assert trajectory["schema_version"] == "1.3.0"


def test_adp_tells_ids_apart_that_an_agent_uses_again(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("call_0")))
    talk.ask(assistant("", call("call_0", cmd="ls")))
    talk.ask(assistant("Done."))
    [trajectory] = exported("adp", tmp_path, talk.records)
    ids = [item.get("tool_call_id") for item in trajectory["content"]]
    assert ids == [None, "call_0", "call_0", "call_0#2", "call_0#2", None]
