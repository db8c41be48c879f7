"""A scripted model that knows no agent: it finds the tool that runs commands, in every format."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pytest_benchflow.contracts import ModelRequest
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.errors import ProviderError
from pytest_benchflow.proxy.probe import Asked, ProbeModel, command_tool
from pytest_benchflow.proxy.script import Call, ScriptTurn

SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def tool(name: str, *required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("offered", "call"),
    [
        (tool("bash", "command", command={"type": "string"}), Call("bash", {"command": "ls"})),
        (
            tool("shell", "command", command={"type": "array", "items": {"type": "string"}}),
            Call("shell", {"command": ["sh", "-c", "ls"]}),
        ),
        (
            tool("exec_command", "cmd", cmd={"type": "STRING"}, cwd={"type": "STRING"}),
            Call("exec_command", {"cmd": "ls"}),
        ),
        (
            tool("run", "command", command={"anyOf": [{"type": "null"}, {"type": "string"}]}),
            Call("run", {"command": "ls"}),
        ),
        (
            tool(
                "terminal",
                *("command", "why", "risk", "wait", "tries", "files"),
                command={"type": ["null", "string"]},
                why={"type": "string"},
                risk={"enum": ["low", "high"]},
                wait={"type": "boolean", "default": True},
                tries={"type": "integer"},
                files={"type": "array"},
            ),
            Call(
                "terminal",
                {"why": "run a command", "risk": "low", "wait": True, "tries": 1, "files": [], "command": "ls"},
            ),
        ),
    ],
    ids=["string", "words", "capitals", "either", "others-required"],
)
def test_a_call_fits_the_schema_of_the_tool(offered: dict[str, Any], call: Call) -> None:
    found = command_tool([offered])
    assert found is not None
    assert found.call("ls") == call


@pytest.mark.parametrize(
    "offered",
    [
        tool("edit", "path", path={"type": "string"}),
        tool("bash", command={"type": "string"}),
        tool("bash", "command", command={"type": "integer"}),
        tool("bash", "command"),
        {"type": "function", "function": {"name": "bash"}},
        {"type": "function", "function": None},
    ],
    ids=["other-argument", "not-required", "number", "not-described", "no-schema", "nothing"],
)
def test_what_runs_no_command_is_no_such_tool(offered: dict[str, Any]) -> None:
    assert command_tool([offered]) is None


def test_a_tool_whose_name_says_so_comes_first() -> None:
    other, named = (tool(name, "command", command={"type": "string"}) for name in ("editor", "run_shell_command"))
    found = command_tool([other, named])
    assert found is not None
    assert found.name == "run_shell_command"


PROMPT = "Do it."
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [{"role": "user", "content": PROMPT}],
            "tools": [{"type": "function", "function": {"name": "sh", "parameters": SHELL}}],
        },
    ),
    "responses": (
        "/v1/responses",
        {"model": "m", "input": PROMPT, "tools": [{"type": "function", "name": "sh", "parameters": SHELL}]},
    ),
    "messages": (
        "/v1/messages",
        {
            "model": "m",
            "messages": [{"role": "user", "content": PROMPT}],
            "tools": [{"name": "sh", "input_schema": SHELL}],
        },
    ),
    "generateContent": (
        "/v1beta/models/m:generateContent",
        {
            "contents": [{"role": "user", "parts": [{"text": PROMPT}]}],
            "tools": [{"functionDeclarations": [{"name": "sh", "parameters": SHELL}]}],
        },
    ),
}


def send(model: ProbeModel, path: str, body: dict[str, Any]) -> Any:
    """Send a request and return the status of the answer, and its body in the format's own shape."""

    async def sent() -> Any:
        answer = await model.send(ModelRequest("POST", path, {}, json.dumps(body).encode()))
        raw = b"".join([chunk async for chunk in answer.chunks])
        dialect = dialect_for(path)
        assert dialect is not None
        return answer.status, dialect.assemble(raw)[0] if dialect.streams(path, body) else json.loads(raw)

    return asyncio.run(sent())


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_call_is_made_in_each_format(name: str, streamed: bool) -> None:
    path, body = REQUESTS[name]
    if streamed and name == "generateContent":
        path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
    elif streamed:
        body = {**body, "stream": True}

    def answer(asked: Asked) -> ScriptTurn:
        assert asked.tool is not None
        return ScriptTurn(calls=(asked.tool.call("ls"), asked.tool.call("pwd")))

    model = ProbeModel(answer)
    status, answered = send(model, path, body)
    dialect = dialect_for(path)
    assert dialect is not None
    turn = dialect.response_turn(answered)
    assert status == 200
    assert turn is not None
    assert [json.loads(call.arguments) for call in turn.tool_calls] == [{"command": "ls"}, {"command": "pwd"}]
    (asked,) = model.heard
    assert (asked.turns[-1].text, asked.tools, asked.streamed) == (PROMPT, ("sh",), streamed)


def test_the_first_request_with_tools_and_the_first_without_are_told_apart() -> None:
    path, body = REQUESTS["chat"]
    bare = {key: value for key, value in body.items() if key != "tools"}
    model = ProbeModel(lambda asked: ScriptTurn(text="yes") if not asked.first else ScriptTurn(status=500))
    assert [send(model, path, each)[0] for each in (bare, body, bare, body)] == [500, 500, 200, 200]


def test_a_request_that_hangs_ends_when_the_model_gives_up() -> None:
    path, body = REQUESTS["chat"]

    async def hang() -> None:
        model = ProbeModel(lambda _: ScriptTurn(hang=True))
        asking = asyncio.create_task(model.send(ModelRequest("POST", path, {}, json.dumps(body).encode())))
        await model.hanging.wait()
        assert not asking.done()
        await model.close()
        with pytest.raises(ProviderError, match="never answered"):
            await asking

    asyncio.run(hang())
