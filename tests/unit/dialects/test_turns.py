"""History, answers, tools, usage and effort, in one shape whatever the wire format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_benchflow.contracts import ToolCall, Turn
from pytest_benchflow.dialects.chat import dialect as chat
from pytest_benchflow.dialects.generatecontent import dialect as generatecontent
from pytest_benchflow.dialects.messages import dialect as messages
from pytest_benchflow.dialects.responses import dialect as responses
from pytest_benchflow.records.usage import Usage

LOOK = ToolCall("c1", "shell", '{"cmd": "ls"}')


def same_call(arguments: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(arguments)
    return parsed


def test_the_same_conversation_gives_the_same_turns_in_every_format() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": LOOK.arguments}}
    in_chat = chat.request_turns(
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "List it."}]},
                {"role": "assistant", "content": "Looking.", "tool_calls": [call], "reasoning_content": "hm"},
                {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
            ]
        }
    )
    in_responses = responses.request_turns(
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": "List it."},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
                {"type": "function_call", "id": "fc_9", "call_id": "c1", "name": "shell", "arguments": LOOK.arguments},
                {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
            ],
        }
    )
    in_messages = messages.request_turns(
        {
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "List it."},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "Looking."},
                        {"type": "tool_use", "id": "c1", "name": "shell", "input": {"cmd": "ls"}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a.txt"}]},
            ],
        }
    )
    assert in_chat == in_responses
    assert [turn.role for turn in in_messages] == [turn.role for turn in in_chat]
    assert in_chat == [
        Turn("system", "Be brief."),
        Turn("user", "List it."),
        Turn("assistant", "Looking.", (LOOK,), reasoning=1),
        Turn("tool", "a.txt", tool_call_id="c1"),
    ]
    written = in_messages[2].tool_calls[0]
    assert (written.id, written.name, same_call(written.arguments)) == ("c1", "shell", {"cmd": "ls"})
    assert (in_messages[2].text, in_messages[2].reasoning, in_messages[3]) == ("Looking.", 1, in_chat[3])


def test_sibling_calls_of_a_responses_message_are_one_turn_until_their_outputs() -> None:
    items = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Both."}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"type": "message", "role": "assistant", "content": "Done."},
    ]
    turns = responses.request_turns({"input": items})
    assert [turn.role for turn in turns] == ["assistant", "tool", "tool", "assistant"]
    assert [call.id for call in turns[0].tool_calls] == ["a", "b"]
    assert [turn.text for turn in turns] == ["Both.", "1", "2", "Done."]


def test_free_form_and_shell_calls_are_calls() -> None:
    turns = responses.request_turns(
        {
            "input": [
                {"type": "custom_tool_call", "call_id": "p", "name": "apply_patch", "input": "*** Begin"},
                {"type": "custom_tool_call_output", "call_id": "p", "output": "patched"},
                {"type": "local_shell_call", "call_id": "s", "action": {"type": "exec", "command": ["ls"]}},
                {"type": "local_shell_call_output", "id": "s", "output": "parse.py"},
            ]
        }
    )
    assert [turn.tool_call_id for turn in turns] == [None, "p", None, "s"]
    assert same_call(turns[0].tool_calls[0].arguments) == {"input": "*** Begin"}
    assert turns[2].tool_calls[0].name == "local_shell"
    assert all(not turn.unsupported for turn in turns)


UNSUPPORTED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "chat-image": (chat, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
    "chat-function-role": (chat, {"messages": [{"role": "function", "content": "x"}]}, "role function"),
    "chat-legacy-call": (chat, {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "function_call"),
    "responses-image": (responses, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
    "responses-hosted": (responses, {"input": [{"type": "web_search_call", "id": "w"}]}, "web_search_call"),
    "responses-reference": (responses, {"input": [{"type": "item_reference", "id": "m1"}]}, "item_reference m1"),
    "messages-image": (messages, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
    "messages-hosted": (
        messages,
        {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
        "server_tool_use",
    ),
    "messages-image-result": (
        messages,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}],
                }
            ]
        },
        "image",
    ),
}


@pytest.mark.parametrize("case", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_what_cannot_be_mapped_is_named_and_never_dropped(case: tuple[Any, dict[str, Any], str]) -> None:
    dialect, body, name = case
    assert [item for turn in dialect.request_turns(body) for item in turn.unsupported] == [name]


def test_tool_results_between_texts_keep_their_place() -> None:
    content = [
        {"type": "text", "text": "before"},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "out"}]},
        {"type": "text", "text": "after"},
    ]
    turns = messages.request_turns({"messages": [{"role": "user", "content": content}]})
    assert [(turn.role, turn.text) for turn in turns] == [("user", "before"), ("tool", "out"), ("user", "after")]


MORE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "chat-result-without-id": (
        chat,
        {"messages": [{"role": "tool", "content": "x"}]},
        "tool result without a tool_call_id",
    ),
    "chat-call-of-a-user": (
        chat,
        {"messages": [{"role": "user", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]},
        "tool calls of role user",
    ),
    "chat-history-of-no-shape": (chat, {"messages": "hello"}, "role None"),
    "chat-content-of-no-shape": (chat, {"messages": [{"role": "user", "content": {"a": 1}}]}, "content dict"),
    "chat-text-of-no-shape": (
        chat,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]},
        "text with text int",
    ),
    "responses-template": (responses, {"prompt": {"id": "pmpt_1"}}, "prompt template"),
    "responses-result-without-id": (
        responses,
        {"input": [{"type": "function_call_output", "name": "f", "output": "x"}]},
        "function_call_output without a call_id",
    ),
    "responses-reference-without-type": (responses, {"input": [{"id": "m1"}]}, "item_reference m1"),
    "responses-input-of-no-shape": (responses, {"input": 7}, "int"),
    "messages-result-without-id": (
        messages,
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
        "tool_result without a tool_use_id",
    ),
    "messages-half-an-input": (
        messages,
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "partial_json": "{"}]}
            ]
        },
        "tool_use with half an input",
    ),
    "messages-tools-change": (
        messages,
        {"messages": [{"role": "system", "content": [{"type": "tool_addition", "tool": {}}]}]},
        "tool_addition",
    ),
}


@pytest.mark.parametrize("case", MORE.values(), ids=MORE.keys())
def test_what_is_missing_or_of_no_shape_is_named_too(case: tuple[Any, dict[str, Any], str]) -> None:
    dialect, body, name = case
    assert [item for turn in dialect.request_turns(body) for item in turn.unsupported] == [name]


NAMELESS: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (chat, {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]}]}),
    "chat-no-function": (chat, {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": None}]}]}),
    "responses": (responses, {"input": [{"type": "function_call", "call_id": "a", "arguments": "{}"}]}),
    "messages": (
        messages,
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": None, "input": {}}]}]},
    ),
    "generatecontent": (
        generatecontent,
        {"contents": [{"role": "model", "parts": [{"functionCall": {"id": "a", "args": {}}}]}]},
    ),
}


@pytest.mark.parametrize("case", NAMELESS.values(), ids=NAMELESS.keys())
def test_a_call_that_names_no_tool_cannot_be_mapped(case: tuple[Any, dict[str, Any]]) -> None:
    dialect, body = case
    (unsupported,) = (item for turn in dialect.request_turns(body) for item in turn.unsupported)
    assert unsupported.endswith((" without a name", " without name"))


def test_a_namespace_is_part_of_a_tools_name() -> None:
    call = {"type": "function_call", "call_id": "a", "namespace": "crm", "name": "find", "arguments": "{}"}
    (turn,) = responses.request_turns({"input": [call]})
    assert turn.tool_calls[0].name == "crm__find"
    inner = [{"type": "function", "name": "find", "parameters": {}}, {"type": "custom", "name": "note"}]
    tools = responses.tools({"tools": [{"type": "namespace", "name": "crm", "tools": inner}]})
    assert [tool["function"]["name"] for tool in tools] == ["crm__find", "crm__note"]


def test_an_answer_that_holds_more_than_one_turn_is_not_cut_short() -> None:
    output = [
        {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "s", "output": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One file."}]},
    ]
    turn = responses.response_turn({"output": output})
    assert turn is not None
    assert turn.unsupported == ("tool item in an answer", "assistant item in an answer")


def test_tools_of_the_provider_are_left_out_and_those_of_the_client_kept() -> None:
    kinds = [
        "web_search_20250305",
        "code_execution_20260521",
        "advisor_20260301",
        "mcp_toolset",
        "tool_search_tool_bm25",
    ]
    own = [{"type": "bash_20250124", "name": "bash"}, {"type": "browser_toolset_20260801"}]
    tools = messages.tools({"tools": [*({"type": kind, "name": "x"} for kind in kinds), *own]})
    assert [tool["function"]["name"] for tool in tools] == ["bash", "browser_toolset_20260801"]


def test_a_second_choice_makes_the_answer_unsupported() -> None:
    body = {"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}
    turn = chat.response_turn(body)
    assert turn is not None
    assert turn.unsupported == ("choices",)


def test_tools_become_function_definitions_with_their_schema() -> None:
    schema = {"type": "object", "properties": {"cmd": {"type": "string"}}}
    wanted = [{"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": schema}}]
    assert chat.tools({"tools": wanted}) == wanted
    flat = {"type": "function", "name": "bash", "description": "Run.", "parameters": schema}
    assert responses.tools({"tools": [flat, {"type": "web_search"}]}) == wanted
    assert messages.tools({"tools": [{"name": "bash", "description": "Run.", "input_schema": schema}]}) == wanted
    assert responses.tools({"tools": [{"type": "custom", "name": "patch"}]})[0]["function"]["name"] == "patch"


USAGE: dict[str, tuple[Any, dict[str, Any], Usage | None]] = {
    "chat-cached-is-part": (
        chat,
        {
            "prompt_tokens": 90,
            "completion_tokens": 9,
            "total_tokens": 99,
            "prompt_tokens_details": {"cached_tokens": 80},
        },
        Usage(90, 9, 80, None, 99),
    ),
    "chat-cache-of-other-servers": (
        chat,
        {"prompt_tokens": 90, "completion_tokens": 9, "prompt_cache_hit_tokens": 80, "cache_creation_input_tokens": 5},
        Usage(90, 9, 80, 5, None),
    ),
    "chat-written-to-a-cache": (
        chat,
        {"prompt_tokens": 90, "completion_tokens": 9, "prompt_tokens_details": {"cache_write_tokens": 5}},
        Usage(90, 9, None, 5, None),
    ),
    "messages-compaction-is-billed-too": (
        messages,
        {
            "input_tokens": 10,
            "output_tokens": 4,
            "iterations": [
                {"type": "compaction", "input_tokens": 70, "cache_read_input_tokens": 10, "output_tokens": 5},
                {"type": "message", "input_tokens": 10, "output_tokens": 4},
            ],
        },
        Usage(90, 9, 10, None, None),
    ),
    "chat-total-only": (chat, {"total_tokens": 99}, Usage(total_tokens=99)),
    "responses-cached-is-part": (
        responses,
        {"input_tokens": 90, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 80}, "total_tokens": 99},
        Usage(90, 9, 80, None, 99),
    ),
    "messages-cache-is-added": (
        messages,
        {"input_tokens": 10, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 10, "output_tokens": 9},
        Usage(90, 9, 70, 10, None),
    ),
    "chat-nonsense": (chat, {"prompt_tokens": -1, "completion_tokens": True, "total_tokens": "9"}, None),
    "messages-empty": (messages, {}, None),
}


@pytest.mark.parametrize("case", USAGE.values(), ids=USAGE.keys())
def test_usage_has_one_convention(case: tuple[Any, dict[str, Any], Usage | None]) -> None:
    dialect, reported, wanted = case
    usage = dialect.usage({"usage": reported})
    assert usage == wanted
    assert usage is None or usage.billed == 99


def test_effort_is_what_the_body_says_and_a_contradiction_shows_both() -> None:
    assert chat.effort({"reasoning_effort": "high"}) == "high"
    assert chat.effort({"reasoning": {"effort": "max"}}) == "max"
    assert chat.effort({"reasoning_effort": "high", "reasoning": {"effort": "max"}}) == "high|max"
    assert responses.effort({"reasoning": {"effort": "low"}}) == "low"
    assert messages.effort({"output_config": {"effort": "max"}}) == "max"
    assert messages.effort({"output_config": {"effort": "max"}, "reasoning_effort": "low"}) == "low|max"
    assert chat.effort({"output_config": {"effort": "max"}}) == "max"
    assert [each.effort({}) for each in (chat, responses, messages)] == [None, None, None]
