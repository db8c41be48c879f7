"""The program that runs inside: its tools, its reading of answers, and that it needs nothing newer than Python 3.8."""

from __future__ import annotations

import ast
import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.agents import _baseline_program as program
from pytest_benchflow.agents.baseline import PROGRAM

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> program.Workplace:
    return program.Workplace(str(tmp_path), threading.Event())


def run(place: program.Workplace, tool: str, **arguments: Any) -> str:
    return place.run(tool, json.dumps(arguments))


def test_the_program_is_python_3_8_and_imports_the_standard_library_only() -> None:
    tree = ast.parse(PROGRAM.read_text("utf-8"), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


def test_a_command_tells_its_output_and_exit_code(place: program.Workplace) -> None:
    assert run(place, "shell", command="echo out; echo err >&2; exit 3") == "out\nerr\n\n[exit code 3]"


def test_a_command_that_leaves_a_daemon_is_not_waited_for(place: program.Workplace) -> None:
    assert "[exit code 0]" in run(place, "shell", command="sleep 3 & echo started")


def test_a_command_that_takes_too_long_is_killed_with_what_it_said(place: program.Workplace) -> None:
    text = run(place, "shell", command="echo begun; sleep 60; echo never", timeout=0.3)
    assert text == "begun\n\n[killed: still running after 0.3 s]"


def test_a_command_that_never_stops_printing_is_killed(
    place: program.Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "OUTPUT_BYTES", 1_000_000)
    text = run(place, "shell", command="yes")
    assert "[killed: it printed more than 1000000 bytes]" in text
    assert len(text) < program.OUTPUT_CHARS + 200


def test_the_middle_of_a_long_output_is_left_out_and_said_to_be(place: program.Workplace) -> None:
    text = run(
        place, "shell", command="echo first; head -c 100000 /dev/zero | tr '\\0' x; echo; echo last; printf '\\377'"
    )
    assert text.startswith("first\nxxx")
    assert text.endswith("xxx\nlast\n\ufffd\n[exit code 0]")
    assert "[80013 bytes left out]" in text


def test_files_are_written_whole_and_changed_in_one_place(place: program.Workplace, tmp_path: Path) -> None:
    assert "Wrote" in run(place, "edit", path="new/a.txt", content="one\r\ntwo\n")
    assert "Changed" in run(place, "edit", path="new/a.txt", old="two", new="2")
    assert (tmp_path / "new/a.txt").read_bytes() == b"one\r\n2\n"
    run(place, "edit", path=str(tmp_path / "b.txt"), content="absolute")
    assert (tmp_path / "b.txt").read_text() == "absolute"


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("shell", '{"command": ""}', "shell takes command, a string"),
        ("shell", '{"command": "ls", "timeout": "long"}', "timeout is a number of seconds above 0"),
        ("shell", '{"command"', "the arguments are not JSON"),
        ("shell", "[]", "must be a JSON object"),
        ("edit", '{"content": "x"}', "edit takes path, a string"),
        ("edit", '{"path": "a", "content": "x", "old": "y", "new": "z"}', "either content, or old"),
        ("edit", '{"path": "gone", "old": "y", "new": "z"}', "No such file"),
        ("edit", '{"path": "aa", "old": "a", "new": "z"}', "old occurs 2 times; it must occur exactly once"),
        ("browse", "{}", "there is no tool named 'browse'; there are: shell, edit, finish"),
    ],
    ids=["empty", "timeout", "not-json", "list", "no-path", "both", "no-file", "twice", "no-tool"],
)
def test_a_wrong_call_gets_a_sentence_the_model_can_use(
    tool: str, arguments: str, says: str, place: program.Workplace, tmp_path: Path
) -> None:
    (tmp_path / "aa").write_text("aa")
    with pytest.raises(program.ToolError, match=says):
        place.run(tool, arguments)


def event(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def part(index: int, arguments: str, call: str | None = None, name: str | None = None) -> dict[str, Any]:
    begun = {"id": call, "function": {"name": name, "arguments": arguments}}
    return {"index": index, **(begun if call else {"function": {"arguments": arguments}})}


def test_a_stream_is_put_together_call_by_call() -> None:
    events = [
        event({"role": "assistant", "content": "Let me "}),
        event({"content": "look."}),
        event({"tool_calls": [part(0, '{"comm', "a", "shell"), part(1, "", "b", "edit")]}),
        event({"tool_calls": [part(0, 'and": "ls"}')]}),
        event({"tool_calls": [part(1, '{"path": "x"}')]}),
        event({}, "tool_calls"),
        {"choices": [], "usage": {"total_tokens": 3}},
    ]
    choice = program._joined(iter(events))
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    calls = choice["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("a", "shell", '{"command": "ls"}'),
        ("b", "edit", '{"path": "x"}'),
    ]


@pytest.mark.parametrize(
    "events", [[event({"content": "cut"})], [{"error": {"message": "overloaded"}}]], ids=["cut", "error"]
)
def test_a_stream_that_did_not_end_is_tried_again(events: list[dict[str, Any]]) -> None:
    with pytest.raises(program.Retry):
        program._joined(iter(events))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("---\nname: a\ndescription: 'b: c'\n---\nname: z\n", {"name": "a", "description": "b: c"}),
        ("---\nname: a\ndescription: >-\n  two\n  lines\n---\n", {"name": "a", "description": "two lines"}),
        ("# No front matter\nname: a\n", {}),
    ],
    ids=["quoted", "folded", "none"],
)
def test_front_matter_is_read_as_far_as_a_list_of_skills_needs(text: str, found: dict[str, str]) -> None:
    assert program._front_matter(text) == found


def test_a_directory_without_skills_adds_nothing_to_the_prompt(tmp_path: Path) -> None:
    assert program.skills_text(str(tmp_path)) == ""
