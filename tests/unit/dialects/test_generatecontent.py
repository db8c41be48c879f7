"""What only the generateContent format has: calls without ids, two ways to stream, two ways to spell a request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.dialects.generatecontent import dialect
from pytest_benchflow.records.usage import Usage

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Turn


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def call(name: str = "ls", call_id: str | None = None, **arguments: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": arguments, **({"id": call_id} if call_id else {})}}


def result(name: str = "ls", call_id: str | None = None, output: Any = "a.txt") -> dict[str, Any]:
    response = {"name": name, "response": {"output": output}, **({"id": call_id} if call_id else {})}
    return {"functionResponse": response}


def turns_of(*contents: Any, **more: Any) -> list[Turn]:
    return dialect.request_turns({"contents": list(contents), **more})


def answer(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": model(*parts), "finishReason": "STOP"}], **more}


def problems(turns: list[Turn]) -> list[str]:
    return [reason for turn in turns for reason in turn.unsupported]


def test_a_whole_conversation_is_the_turns_it_would_be_in_any_format() -> None:
    turns = turns_of(
        user({"text": "List"}, {"text": "it."}),
        model({"text": "hm", "thought": True}, {"text": "Look"}, {"text": "ing."}, call("shell", "c1", cmd="ls")),
        user(result("shell", "c1"), {"text": "and on"}),
        model({"text": "Done."}),
        systemInstruction={"parts": [{"text": "Be brief."}]},
    )
    assert [(turn.role, turn.text, turn.tool_call_id, turn.reasoning) for turn in turns] == [
        ("system", "Be brief.", None, 0),
        ("user", "List\nit.", None, 0),
        ("assistant", "Looking.", None, 1),
        ("tool", "a.txt", "c1", 0),
        ("user", "and on", None, 0),
        ("assistant", "Done.", None, 0),
    ]
    (made,) = turns[2].tool_calls
    assert (made.id, made.name, json.loads(made.arguments)) == ("c1", "shell", {"cmd": "ls"})
    assert problems(turns) == []


def test_a_lone_call_without_an_id_gets_the_same_one_in_the_answer_and_wherever_it_is_carried() -> None:
    told = dialect.response_turn(answer(call("ls", path=".", all=True)))
    assert told is not None
    (made,) = told.tool_calls
    assert made.id.startswith("ls-")
    for given in (None, "client-made"):
        turns = turns_of(user({"text": "go"}), model(call("ls", all=True, path=".")), user(result("ls", given)))
        assert (turns[1].tool_calls[0].id, turns[2].tool_call_id, problems(turns)) == (made.id, made.id, [])
    other = dialect.response_turn(answer(call("ls", path="..")))
    assert other is not None
    assert other.tool_calls[0].id != made.id


def test_a_result_without_an_id_belongs_to_the_lone_call_just_before_it() -> None:
    turns = turns_of(model(call("ls", "c1")), user(result("ls")))
    assert (turns[1].tool_call_id, problems(turns)) == ("c1", [])


UNPAIRED: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "two-calls": (
        [model(call("ls"), call("pwd")), user(result("ls"), result("pwd"))],
        ["functionCall without an id beside another", *["functionResponse without an id"] * 2],
    ),
    "same-name-twice": (
        [model(call("ls", a=1), call("ls", a=2)), user(result("ls"), result("ls"))],
        ["functionCall without an id beside another", *["functionResponse without an id"] * 2],
    ),
    "one-id-of-two": (
        [model(call("ls", "c1"), call("pwd")), user(result("ls", "c1"))],
        ["functionCall without an id beside another"],
    ),
    "other-name": ([model(call("ls")), user(result("pwd"))], ["functionResponse without an id"]),
    "two-results": ([model(call("ls")), user(result("ls"), result("ls"))], ["functionResponse without an id"]),
    "not-at-once": (
        [model(call("ls")), user({"text": "wait"}), user(result("ls"))],
        ["functionResponse without an id"],
    ),
    "no-call": ([user(result("ls"))], ["functionResponse without an id"]),
}


@pytest.mark.parametrize("case", UNPAIRED.values(), ids=UNPAIRED.keys())
def test_nothing_else_is_paired_without_ids(case: tuple[list[dict[str, Any]], list[str]]) -> None:
    contents, wanted = case
    assert problems(turns_of(*contents)) == wanted


def test_chunks_that_a_client_kept_apart_are_one_turn() -> None:
    turns = turns_of(user({"text": "go"}), model({"text": "Look"}), model({"text": "ing."}), model(call("ls", "c1")))
    assert [(turn.role, turn.text, len(turn.tool_calls)) for turn in turns] == [
        ("user", "go", 0),
        ("assistant", "Looking.", 1),
    ]


def test_single_values_and_underscores_are_read_like_lists_and_capitals() -> None:
    turns = dialect.request_turns(
        {
            "system_instruction": {"parts": {"text": "Be brief."}},
            "contents": {"parts": {"text": "go"}},
        }
    )
    assert [(turn.role, turn.text) for turn in turns] == [("system", "Be brief."), ("user", "go")]
    body = {"contents": [model({"function_call": {"name": "ls", "id": "c"}}), user({"function_response": {"id": "c"}})]}
    turns = dialect.request_turns(body)
    assert (turns[0].tool_calls[0].id, turns[0].tool_calls[0].arguments, turns[1].tool_call_id) == ("c", "{}", "c")
    assert problems(dialect.request_turns({"contents": [user({"inline_data": {"data": "x"}})]})) == ["inlineData"]


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "cache": (
        {"contents": [user({"text": "go"})], "cachedContent": "cachedContents/7"},
        "cachedContent cachedContents/7",
    ),
    "role": ({"contents": [{"role": "critic", "parts": [{"text": "x"}]}]}, "role critic"),
    "no-parts": ({"contents": [{"role": "user"}]}, "a content without parts"),
    "image-in-a-result": (
        {"contents": [user({"functionResponse": {"id": "a", "parts": [{"inlineData": {}}], "response": {}}})]},
        "inlineData",
    ),
    "call-in-fragments": (
        {"contents": [model({"functionCall": {"id": "a", "name": "f", "partialArgs": []}})]},
        "functionCall in fragments",
    ),
    "number-as-text": ({"contents": [user({"text": 7})]}, "text int"),
    "system-image": ({"systemInstruction": {"parts": [{"fileData": {}}]}}, "fileData"),
    "system-number": ({"systemInstruction": 7}, "systemInstruction int"),
}


@pytest.mark.parametrize("case", ODD.values(), ids=ODD.keys())
def test_what_is_not_said_in_the_open_is_named(case: tuple[dict[str, Any], str]) -> None:
    body, wanted = case
    assert problems(dialect.request_turns(body)) == [wanted]


def test_a_result_is_its_output_or_all_of_it() -> None:
    plain = turns_of(model(call("ls", "c")), user(result("ls", "c", {"files": ["ä"]})))[1]
    assert json.loads(plain.text) == {"files": ["ä"]}
    whole = turns_of(user({"functionResponse": {"id": "c", "name": "ls", "response": {"output": "x", "code": 1}}}))[0]
    assert json.loads(whole.text) == {"output": "x", "code": 1}


def test_a_signature_without_a_part_is_counted_as_reasoning() -> None:
    lone, with_text = {"thought": True, "thoughtSignature": "a"}, {"text": "Done.", "thoughtSignature": "b"}
    turn = dialect.response_turn(answer(lone, with_text, {"thoughtSignature": "c"}))
    assert turn is not None
    assert (turn.text, turn.reasoning, turn.unsupported) == ("Done.", 2, ())


def test_a_second_candidate_makes_the_answer_unsupported() -> None:
    body = {"candidates": answer({"text": "a"})["candidates"] + answer({"text": "b"})["candidates"]}
    turn = dialect.response_turn(body)
    assert turn is not None
    assert turn.unsupported == ("candidates",)


def test_tools_are_functions_with_json_schemas() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "enum": ["STRING"]},
            "paths": {"type": "ARRAY", "items": {"type": "STRING", "nullable": True}},
        },
        "required": ["paths"],
    }
    wanted = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["STRING"]},
            "paths": {"type": "array", "items": {"type": "string", "nullable": True}},
        },
        "required": ["paths"],
    }
    declared = [
        {"name": "ls", "description": "List.", "parameters": schema},
        {"name": "rm", "parametersJsonSchema": wanted, "response": {"type": "OBJECT"}},
        {"name": "pwd"},
    ]
    for key in ("functionDeclarations", "function_declarations"):
        assert dialect.tools({"tools": [{"googleSearch": {}}, {key: declared}]}) == [
            {"type": "function", "function": {"name": "ls", "description": "List.", "parameters": wanted}},
            {"type": "function", "function": {"name": "rm", "parameters": wanted}},
            {"type": "function", "function": {"name": "pwd"}},
        ]
    assert schema["type"] == "OBJECT", "the record is not changed"


COUNTED: dict[str, tuple[dict[str, Any], Usage | None]] = {
    "all": (
        {
            "promptTokenCount": 80,
            "toolUsePromptTokenCount": 10,
            "cachedContentTokenCount": 70,
            "candidatesTokenCount": 6,
            "thoughtsTokenCount": 3,
            "totalTokenCount": 99,
        },
        Usage(90, 9, 70, None, 99),
    ),
    "no-thoughts": (
        {"promptTokenCount": 90, "candidatesTokenCount": 9, "totalTokenCount": 99},
        Usage(90, 9, None, None, 99),
    ),
    "thoughts-only": (
        {"promptTokenCount": 90, "thoughtsTokenCount": 9, "totalTokenCount": 99},
        Usage(90, 9, None, None, 99),
    ),
    "blocked": ({"promptTokenCount": 99, "totalTokenCount": 99}, Usage(99, None, None, None, 99)),
    "nonsense": ({"promptTokenCount": "9", "totalTokenCount": -1}, None),
}


@pytest.mark.parametrize("case", COUNTED.values(), ids=COUNTED.keys())
def test_thoughts_and_tool_prompts_are_added_and_cached_tokens_are_not(
    case: tuple[dict[str, Any], Usage | None],
) -> None:
    reported, wanted = case
    usage = dialect.usage({"usageMetadata": reported})
    assert usage == wanted
    assert usage is None or usage.billed == 99


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [
        ({"thinkingLevel": "HIGH"}, "high"),
        ({"thinking_level": "low"}, "low"),
        ({"thinkingBudget": 8192}, "budget=8192"),
        ({"thinkingLevel": "LOW", "thinkingBudget": 0}, "low|budget=0"),
        ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED", "includeThoughts": True}, None),
    ],
    ids=["level", "underscore", "budget", "both", "unspecified"],
)
def test_effort_is_the_thinking_level(thinking: dict[str, Any], effort: str | None) -> None:
    assert dialect.effort({"generationConfig": {"thinkingConfig": thinking}}) == effort
    assert dialect.effort({"generation_config": {"thinking_config": thinking}}) == effort


def test_the_path_says_whether_and_how_an_answer_streams() -> None:
    whole, stream = "/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent"
    assert dialect.streams(whole, {"stream": True}) is None
    assert dialect.streams(stream, {}) == "application/json"
    assert dialect.streams(f"{stream}?x=1&alt=sse", {}) == "text/event-stream"
    assert dialect.streams(f"{stream}?alt=json", {}) == "application/json"


def chunk(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": model(*parts), **more}], "usageMetadata": {"promptTokenCount": 7}}


CHUNKS = [
    chunk({"text": "hm", "thought": True}),
    chunk({"text": " hm", "thought": True}, {"text": "Look"}, citationMetadata={"citationSources": [{"uri": "a"}]}),
    chunk({"text": "ing."}, citationMetadata={"citationSources": [{"uri": "b"}]}, safetyRatings=[1]),
    {**chunk(call("ls", "a")), "modelVersion": "m"},
    chunk(call("ls", "b")),
    {
        **chunk({"text": "", "thoughtSignature": "c2ln"}, finishReason="STOP", safetyRatings=[2]),
        "usageMetadata": {"candidatesTokenCount": 2},
    },
]


@pytest.mark.parametrize("array", [True, False], ids=["array", "events"])
def test_a_stream_of_chunks_is_one_answer(*, array: bool) -> None:
    raw = json.dumps(CHUNKS, indent=2).encode()
    if not array:
        raw = b"".join(b"data: " + json.dumps(each).encode() + b"\r\n\r\n" for each in CHUNKS)
    body, reason = dialect.assemble(raw)
    assert reason is None
    (candidate,) = body["candidates"]
    assert candidate["content"]["parts"] == [
        {"text": "hm hm", "thought": True},
        {"text": "Looking."},
        call("ls", "a"),
        call("ls", "b"),
        {"text": "", "thoughtSignature": "c2ln"},
    ]
    assert candidate["citationMetadata"] == {"citationSources": [{"uri": "a"}, {"uri": "b"}]}
    assert (candidate["safetyRatings"], candidate["finishReason"], body["modelVersion"]) == ([2], "STOP", "m")
    assert body["usageMetadata"] == {"promptTokenCount": 7, "candidatesTokenCount": 2}


def test_what_came_whole_of_a_cut_array_is_kept() -> None:
    text = json.dumps([chunk({"text": 'a "quoted" ] one'}), chunk({"text": "two"}), chunk({"text": "three"})])
    body, reason = dialect.assemble(text[: text.index("three")].encode())
    assert reason == "the array of the stream is cut or not JSON"
    assert body["candidates"][0]["content"]["parts"] == [{"text": 'a "quoted" ] onetwo'}]


def test_an_error_in_a_stream_is_an_error() -> None:
    chunks = [chunk({"text": "ha"}), {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}]
    for raw in (json.dumps(chunks).encode(), b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks)):
        body, reason = dialect.assemble(raw)
        assert reason == "an error event came after the status"
        assert dialect.outcome(200, body, {"type": "incomplete_stream", "message": reason}).kind == "error"


def test_a_blocked_prompt_is_a_whole_stream() -> None:
    body, reason = dialect.assemble(b'data: {"promptFeedback": {"blockReason": "SAFETY"}}\n\n')
    assert (reason, dialect.outcome(200, body).kind) == (None, "filtered")


def test_two_candidates_stay_two() -> None:
    whole = {"candidates": [{**answer({"text": "a"})["candidates"][0], "index": n} for n in (0, 1)]}
    raw = b"".join(dialect.disassemble(whole, {}, "/v1beta/models/m:streamGenerateContent"))
    assert dialect.assemble(raw) == (whole, None)
    one_done = {"candidates": [whole["candidates"][0], {"content": model({"text": "b"}), "index": 1}]}
    assert dialect.assemble(json.dumps([one_done]).encode())[1] == "the stream ended without a finishReason"
