"""Recordings answer what was asked then, on any machine; what was not asked then is shown and refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import RecordError
from pytest_benchflow.proxy.replay import ReplayUpstream, recording_path, write_recording
from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.tasks.load import load_task
from pytest_benchflow.tasks.scaffold import new_task
from tests.unit.proxy.door import CHAT, GEMINI, PATHS, STREAMS, door, run

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.tasks.task import Task
    from tests.unit.proxy.door import Door

SCRIPT = [
    ScriptTurn(text="A title", match="Give this a title"),
    ScriptTurn(text="Looking.", calls=(Call("sh", {"cmd": "ls"}), Call("sh", {"cmd": "pwd"}))),
    ScriptTurn(text="Done."),
]
SYSTEM = {"role": "system", "content": "You are an agent. Today is 2026-01-02. Host a."}
# As agents write the day: ISO 8601, and what JavaScript and others write out.
DAY = "2026-01-02, Friday, January 2, 2026, Fri Jan 02 2026, 2 January 2026, 1/2/2026"
LATER = "2027-11-30, Tuesday, November 30, 2027, Tue Nov 30 2027, 30 November 2027, 11/30/2027"
PROMPT = {
    "role": "user",
    "content": f"Fix it.\nStarted 2026-01-02T03:04:05Z in 0b5a4c1e-0000-4000-8000-000000000000. Today is {DAY}.",
}
TITLE = {"role": "user", "content": "Give this a title: Fix it."}


def called(calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": "Looking.", "tool_calls": calls}


def outputs(first: str = "a.txt", second: str = "/app") -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": "call_002_1", "content": first},
        {"role": "tool", "tool_call_id": "call_002_2", "content": second},
    ]


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "gpt-invented", "messages": list(messages), **more}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    new_task(tmp_path / "fix-it")
    return load_task(tmp_path / "fix-it")


@pytest.fixture
def recorded(task: Task, tmp_path: Path) -> dict[str, Any]:
    """Record a conversation of three calls and return what the agent was told after the first prompt."""
    told: dict[str, Any] = {}

    async def work() -> None:
        async with door(tmp_path / "recorded-run", ScriptedUpstream(SCRIPT)) as agent:
            title = agent.post(body(SYSTEM, TITLE))
            first = await agent.post(body(SYSTEM, PROMPT, tools=[{"type": "function", "function": {"name": "sh"}}]))
            await title
            calls = first.json["choices"][0]["message"]["tool_calls"]
            await agent.post(body(SYSTEM, PROMPT, called(calls), *outputs()))
            told.update(first=first.json, calls=calls)

    run(work())
    write_recording(RunDir(tmp_path / "recorded-run"), task, "baseline", {"agent_version": "1"})
    return told


def test_a_recording_is_served_whatever_the_machine_and_the_day(
    task: Task, recorded: dict[str, Any], tmp_path: Path
) -> None:
    async def work() -> None:
        upstream = ReplayUpstream(recording_path(task, "baseline"))
        assert upstream.model == "gpt-invented"
        async with door(tmp_path / "again", upstream) as agent:
            system = {"role": "system", "content": "You are an agent. Today is 2027-12-31. Host b."}
            prompt = {
                "role": "user",
                "content": [
                    {"type": "text", "text": PROMPT["content"].replace(DAY, LATER).replace("2026-01", "2027-11")}
                ],
            }
            first = await agent.post(body(system, prompt))
            assert first.json == recorded["first"]
            rewritten = json.loads(json.dumps(recorded["calls"]))
            rewritten[0]["function"]["arguments"] = '{"cmd":"ls"}'
            last = await agent.post(body(system, prompt, called(rewritten), *outputs()))
            assert last.json["choices"][0]["message"]["content"] == "Done."
        report = await agent.endpoint.close()
        assert (report.mismatch, report.warnings) == (None, ())

    run(work())


def test_side_calls_are_found_by_what_they_say(task: Task, recorded: dict[str, Any], tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path / "again", ReplayUpstream(recording_path(task, "baseline"))) as agent:
            history = (SYSTEM, PROMPT, called(recorded["calls"]), *outputs())
            asked = [body(*history), body(SYSTEM, TITLE), body(SYSTEM, PROMPT), body(SYSTEM, TITLE)]
            answers = await asyncio.gather(*(agent.post(each) for each in asked))
            said = [answer.json["choices"][0]["message"]["content"] for answer in answers]
            assert said == ["Done.", "A title", "Looking.", "A title"]

    run(work())


def test_an_agent_that_streams_gets_the_recorded_answer_as_a_stream(
    task: Task, recorded: dict[str, Any], tmp_path: Path
) -> None:
    async def work() -> None:
        async with door(tmp_path / "again", ReplayUpstream(recording_path(task, "baseline"))) as agent:
            options = {"include_usage": True}
            answer = await agent.post(body(SYSTEM, PROMPT, stream=True, stream_options=options))
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert answer.raw.endswith(b"data: [DONE]\n\n")
            assert agent.records()[0]["response"]["body"] == recorded["first"]

    run(work())


def test_other_tool_output_warns_and_strict_refuses(task: Task, recorded: dict[str, Any], tmp_path: Path) -> None:
    asked = body(SYSTEM, PROMPT, called(recorded["calls"]), *outputs(second="/app/elsewhere"))
    shown = "the output of call_002_2 differs from the recording at character 4: recorded '', got '/elsewhere'"

    async def work() -> None:
        path = recording_path(task, "baseline")
        async with door(tmp_path / "loose", ReplayUpstream(path)) as agent:
            assert (await agent.post(asked)).status == 200
        report = await agent.endpoint.close()
        assert report.mismatch is None
        assert len(report.warnings) == 1
        assert shown in report.warnings[0]

        async with door(tmp_path / "strict", ReplayUpstream(path, strict=True)) as agent:
            assert (await agent.post(asked)).status == 409
        report = await agent.endpoint.close()
        assert shown in (report.mismatch or "")

    run(work())


MISMATCHES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "other-prompt": ([SYSTEM, {"role": "user", "content": "Break it."}], "turn 1: recorded user: 'Fix it."),
    "other-answer": (
        [SYSTEM, PROMPT, {"role": "assistant", "content": "Lurking."}],
        'turn 2: recorded assistant: \'Looking.\' sh({"cmd": "ls"})[call_002_1]',
    ),
    "longer": ([SYSTEM, PROMPT, {"role": "user", "content": "And now?"}], "got user: 'And now?'"),
    "other-call-id": (
        [SYSTEM, PROMPT, {"role": "tool", "tool_call_id": "call_9", "content": "a.txt"}],
        "got tool result of call_9",
    ),
}


@pytest.mark.parametrize("case", MISMATCHES.values(), ids=MISMATCHES.keys())
def test_what_was_never_asked_is_a_409_that_shows_the_first_difference(
    task: Task, recorded: dict[str, Any], tmp_path: Path, case: tuple[list[dict[str, Any]], str]
) -> None:
    messages, shown = case

    async def work() -> None:
        async with door(tmp_path / "again", ReplayUpstream(recording_path(task, "baseline"))) as agent:
            answer = await agent.post(body(*messages))
            assert answer.status == 409
            assert answer.headers["x-should-retry"] == "false"
            assert shown in answer.json["error"]["message"]
            assert agent.endpoint.mismatch == answer.json["error"]["message"]
            assert agent.records()[0]["error"]["type"] == "replay_mismatch"
        report = await agent.endpoint.close()
        assert report.mismatch == agent.endpoint.mismatch

    run(work())


def test_another_wire_format_is_named(task: Task, recorded: dict[str, Any], tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path / "again", ReplayUpstream(recording_path(task, "baseline"))) as agent:
            answer = await agent.post({"input": "Fix it."}, PATHS["responses"])
            assert answer.status == 409
            assert "the agent speaks responses, the recording holds chat" in answer.json["error"]["message"]

    run(work())


@pytest.mark.parametrize("name", STREAMS)
def test_every_format_can_be_recorded_and_replayed(task: Task, tmp_path: Path, name: str) -> None:
    async def work() -> None:
        path = STREAMS[name]
        asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "stream": True}
        asked["contents"] = [{"role": "user", "parts": [{"text": "hi"}]}]
        turn = replace(SCRIPT[1], match=None)
        async with door(tmp_path / "one", ScriptedUpstream([turn])) as agent:
            before = await agent.post(asked, path)
        upstream = ReplayUpstream(write_recording(agent.rundir, task, name))
        assert upstream.model == "m"
        async with door(tmp_path / "two", upstream) as agent:
            again = await agent.post(asked, path)
            whole = await agent.post({**asked, "stream": False}, path.replace(":streamG", ":g"))
            assert (again.status, again.raw) == (200, before.raw)
            assert again.headers["Content-Type"] == before.headers["Content-Type"]
            assert whole.json == agent.records()[0]["response"]["body"]

    run(work())


def test_a_recording_of_gemini_holds_each_turn_once_and_no_system_prompt(task: Task, tmp_path: Path) -> None:
    first = {"role": "user", "parts": [{"text": "hi"}]}
    second = {"role": "user", "parts": [{"text": "and on"}]}

    async def talk(agent: Door) -> list[Any]:
        told = (
            await agent.post({"contents": [first], "systemInstruction": {"parts": [{"text": "day 1"}]}}, GEMINI)
        ).json
        history = [first, told["candidates"][0]["content"], second]
        return [told, (await agent.post({"contents": history, "tools": []}, GEMINI)).json]

    async def work() -> None:
        async with door(tmp_path / "one", ScriptedUpstream([ScriptTurn(text="one"), ScriptTurn(text="two")])) as agent:
            told = await talk(agent)
        path = write_recording(agent.rundir, task, "gemini")
        assert "day 1" not in path.read_text()
        assert path.read_text().count('"continues":2') == 1
        async with door(tmp_path / "two", ReplayUpstream(path)) as agent:
            assert await talk(agent) == told

    run(work())


def test_a_recording_holds_completed_exchanges_in_the_order_they_began_and_nothing_of_the_machine(
    task: Task, tmp_path: Path
) -> None:
    turns = [
        ScriptTurn(status=500),
        ScriptTurn(text="slow", delay=0.3, match="slow"),
        ScriptTurn(text="fast", match="fast"),
        ScriptTurn(text="cut", finish="length", match="cut"),
        ScriptTurn(text="late", delay=0.2, match="late"),
    ]

    async def work() -> None:
        async with door(tmp_path / "run", ScriptedUpstream(turns), secrets=["s3cret-of-host"]) as agent:
            slow = asyncio.create_task(agent.post(body(SYSTEM, {"role": "user", "content": "slow s3cret-of-host"})))
            await asyncio.sleep(0.1)
            for text in ("fast", "cut", "fails"):
                await agent.post(body(SYSTEM, {"role": "user", "content": text}, tools=[{"type": "function"}]))
            await agent.post(body(PROMPT), "/v1/unknown")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(agent.post(body({"role": "user", "content": "late"})), 0.1)
            await slow

    run(work())
    path = write_recording(RunDir(tmp_path / "run"), task, "baseline", {"agent_version": "1.2"})
    assert path == task.path / "recorded" / "baseline.jsonl"
    head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert head == {"recording": {"agent_version": "1.2"}}
    asked = [line["request"]["body"]["messages"] for line in lines]
    assert asked == [[{"role": "user", "content": "slow [REDACTED]"}], [{"role": "user", "content": "fast"}]]
    assert all("tools" not in line["request"]["body"] for line in lines)
    assert write_recording(RunDir(tmp_path / "run"), task, "baseline", {"agent_version": "1.2"}).read_bytes() == (
        path.read_bytes()
    )


def test_a_recording_holds_each_turn_once(task: Task, recorded: dict[str, Any]) -> None:
    _, title, first, last = [
        json.loads(line) for line in recording_path(task, "baseline").read_text(encoding="utf-8").splitlines()
    ]
    if title["request"]["body"]["messages"] == [PROMPT]:
        title, first = first, title
    assert [title["request"]["body"]["messages"], first["request"]["body"]["messages"]] == [[TITLE], [PROMPT]]
    assert "continues" not in title["request"] and "continues" not in first["request"]
    assert last["request"]["body"]["messages"] == [called(recorded["calls"]), *outputs()]
    assert last["request"]["continues"] in (2, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no exchange"),
        ('{"recording": {}}\n', "holds no exchange"),
        ('{"request": {}}\n', ":1: not a recorded exchange"),
        ("nonsense\n", ":1: not JSON"),
        ('{"request": {"path": "/x", "body": {}}, "response": {}}\n', "no model API has the path '/x'"),
        (
            json.dumps({"request": {"path": CHAT, "body": {"messages": []}, "continues": 7}}),
            ":1: not a recorded exchange",
        ),
    ],
    ids=["empty", "head-only", "no-path", "no-json", "odd-path", "no-such-line"],
)
def test_a_broken_recording_names_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "baseline.jsonl"
    path.write_text(text)
    with pytest.raises(RecordError, match=said) as raised:
        ReplayUpstream(path)
    assert str(path) in str(raised.value)


def test_nothing_completed_is_no_recording(task: Task, tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path / "run", ScriptedUpstream([ScriptTurn(status=500)])) as agent:
            await agent.post(body(PROMPT), CHAT)

    run(work())
    with pytest.raises(RecordError, match="holds no completed exchange"):
        write_recording(RunDir(tmp_path / "run"), task, "baseline")


def test_a_difference_far_into_a_long_prompt_is_shown_where_it_is(tmp_path: Path) -> None:
    long = "word " * 200
    path = tmp_path / "baseline.jsonl"
    said = {"path": CHAT, "body": body({"role": "user", "content": long + "one file"})}
    path.write_text(json.dumps({"request": said, "response": {"status_code": 200, "body": {}}}) + "\n")

    async def work() -> None:
        async with door(tmp_path / "again", ReplayUpstream(path)) as agent:
            await agent.post(body({"role": "user", "content": long + "two files"}))
            shown = agent.endpoint.mismatch or ""
            assert "one file'" in shown
            assert "two files'" in shown
            assert len(shown) < 400

    run(work())


def test_the_rollouts_token_in_a_tool_output_is_no_difference_and_is_never_shown(
    task: Task, recorded: dict[str, Any], tmp_path: Path
) -> None:
    async def work() -> None:
        async with door(tmp_path / "again", ReplayUpstream(recording_path(task, "baseline"))) as agent:
            first = await agent.post(body(SYSTEM, PROMPT))
            calls = first.json["choices"][0]["message"]["tool_calls"]
            shown = outputs(first=f"KEY={agent.endpoint.token} and more")
            answer = await agent.post(body(SYSTEM, PROMPT, called(calls), *shown))
            token = agent.endpoint.token
            assert answer.status == 200
            report = await agent.endpoint.close()
            (warning,) = report.warnings
            assert "[REDACTED]" in warning
            assert not any(token[:length] in warning for length in (8, 16))

    run(work())
