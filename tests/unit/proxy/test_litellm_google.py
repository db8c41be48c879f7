"""Calls of one turn and their results stay together where Google's format is translated, and nothing is guessed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pytest_benchflow.proxy._litellm_google import PairingError, in_order_of_calls, paired

LS, PWD = {"command": "ls"}, {"command": "pwd"}


def model(*ids: str | None, names: tuple[str, ...] = ("shell", "shell")) -> dict[str, Any]:
    calls = zip(ids, names, (LS, PWD), strict=True)
    return {"role": "model", "parts": [{"functionCall": with_id(own, name=name, args=a)} for own, name, a in calls]}


def results(*told: tuple[str | None, str], name: str = "shell", role: str = "user") -> dict[str, Any]:
    parts = [{"functionResponse": with_id(own, name=name, response={"output": said})} for own, said in told]
    return {"role": role, "parts": parts}


def with_id(own: str | None, **more: Any) -> dict[str, Any]:
    return {"id": own, **more} if own else more


def said_of(contents: list[Any]) -> dict[str, str]:
    """Return what the result of each call says, by the command that was called."""
    parts = [part for content in contents for part in content["parts"]]
    asked = {
        part["functionCall"]["id"]: part["functionCall"]["args"]["command"] for part in parts if "functionCall" in part
    }
    told = [part["functionResponse"] for part in parts if "functionResponse" in part]
    assert len(asked) == len(told) == len({each["id"] for each in told})
    return {asked[each["id"]]: each["response"]["output"] for each in told}


@pytest.mark.parametrize(
    "contents",
    [
        [model("a", "b"), results(("b", "B"), ("a", "A"))],
        [model(None, None), results((None, "A"), (None, "B"))],
        [model(None, None), results(("shell-1", "A"), ("shell-2", "B"))],
        [model("a", "b"), results((None, "A"), (None, "B"))],
        [model(None, "b"), results(("b", "B"), (None, "A"))],
        [model("same", "same"), results(("same", "A"), ("same", "B"))],
        [model(None, None), results((None, "A")), results((None, "B"))],
        [model("a", "b"), results(("b", "B"), ("a", "A"), role="function")],
        [model("é" * 50, "shell.1/2"), results(("shell.1/2", "B"), ("é" * 50, "A"))],
    ],
    ids=["ids", "order", "clients-own", "ids-lost", "one-id", "one-id-twice", "apart", "role", "odd-ids"],
)
def test_a_result_goes_to_its_call(contents: list[Any]) -> None:
    before = copy.deepcopy(contents)
    told = paired(contents)
    assert said_of(told) == {"ls": "A", "pwd": "B"}
    assert contents == before
    assert {content["role"] for content in told} == {"model", "user"}
    for content in told:
        for part in content["parts"]:
            (value,) = part.values()
            assert value["id"].isascii()
            assert len(value["id"]) <= 40


def test_calls_of_several_turns_do_not_mix() -> None:
    turns = [model(None, None), results((None, "A"), (None, "B"))]
    told = paired([*turns, {"role": "user", "parts": [{"text": "again"}]}, *turns])
    assert said_of(told[:2]) == said_of(told[3:]) == {"ls": "A", "pwd": "B"}
    ids = [part["functionCall"]["id"] for content in told for part in content["parts"] if "functionCall" in part]
    assert len(set(ids)) == 4


@pytest.mark.parametrize("own", [None, "unknown"])
def test_a_result_that_may_be_of_either_call_is_refused(own: str | None) -> None:
    with pytest.raises(PairingError, match="fewer results of shell than calls of it"):
        paired([model(None, None), results((own, "B"))])
    # Whose it is can be told here.
    paired([model(None, None, names=("shell", "look")), results((own, "A"))])
    paired([model("a", "b"), results(("b", "B"))])


CHAT = [
    {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
    {"role": "tool", "tool_call_id": "b", "content": "B"},
    {"role": "tool", "tool_call_id": "a", "content": "A"},
]
# The same ids again, the other way round.
CHAT_AGAIN = [{"role": "assistant", "tool_calls": [{"id": "b"}, {"id": "a"}]}, *CHAT[1:]]
MESSAGES = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}, {"type": "tool_use", "id": "b"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": each} for each in "ba"] + [{"type": "text"}]},
]
RESPONSES = [
    *({"type": "function_call", "call_id": each} for each in "ab"),
    *({"type": "function_call_output", "call_id": each} for each in "ba"),
    {"role": "user", "content": "go on"},
]


def test_results_of_other_formats_come_in_the_order_of_their_calls() -> None:
    chat = in_order_of_calls("chat", {"messages": [*CHAT, {"role": "user", "content": "x"}, *CHAT_AGAIN]})["messages"]
    assert [each.get("tool_call_id") for each in chat] == [None, "a", "b", None, None, "b", "a"]
    messages = in_order_of_calls("messages", {"messages": MESSAGES})["messages"]
    assert [each.get("tool_use_id") for each in messages[1]["content"]] == ["a", "b", None]
    responses = in_order_of_calls("responses", {"input": RESPONSES})["input"]
    assert responses == [RESPONSES[0], RESPONSES[1], RESPONSES[3], RESPONSES[2], RESPONSES[4]]
    for body in ({"input": "text"}, {"messages": [1, None, {"role": "tool"}]}, {}):
        for dialect in ("chat", "messages", "responses", "generateContent"):
            assert in_order_of_calls(dialect, body) == body
