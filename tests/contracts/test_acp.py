"""What an agent may do on its standard output without ending its session, or the harness."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.contracts.agentrig import rig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.contracts import AgentOutcome
    from tests.contracts.agentrig import Rig

HANG = "leave_a_daemon()\nprompt = start()\n"


def play(directory: Path, program: str, look: Callable[[Rig], None] | None = None, **limits: Any) -> AgentOutcome:
    """Run an invented agent to its end; whatever it did, its tree is dead."""

    async def run() -> AgentOutcome:
        async with rig(directory) as made:
            outcome = await made.play(program, **limits)
            assert await made.survivors() == ""
            if look is not None:
                look(made)
            return outcome

    return asyncio.run(run())


def test_a_line_of_five_megabytes_arrives_whole(tmp_path: Path) -> None:
    program = """
        prompt = start()
        update("agent_message_chunk", content={"type": "text", "text": "x" * 5_000_000})
        end(prompt)
    """

    def look(made: Rig) -> None:
        (message,) = made.events("agent_message")
        assert message["text"] == "x" * 5_000_000

    assert play(tmp_path, program, look).stop == "finished"


def test_undecodable_bytes_and_lone_surrogates_end_no_session(tmp_path: Path) -> None:
    program = r"""
        prompt = start()
        raw(b"\xff\xfe not text\n")
        head = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":'
        raw(head + b'"agent_message_chunk","content":{"type":"text","text":"a\xff\\ud83d b"}}}}\n')
        end(prompt)
    """

    def look(made: Rig) -> None:
        (message,) = made.events("agent_message")
        assert message["text"] == "a\ufffd\ufffd b"
        assert made.log("stdout.txt") == "\\xff\\xfe not text\n"

    assert play(tmp_path, program, look).stop == "finished"


def test_megabytes_of_other_output_are_kept_and_counted(tmp_path: Path) -> None:
    program = r"""
        raw(b"a banner before anything else\n")
        prompt = start()
        for number in range(40_000):
            raw(b"progress %06d " % number + b"." * 100 + b"\n")
        raw(b"one line without an end " * 200_000)
        raw(b"\n{not json}\n{\"json\": \"but not json-rpc\"}\n")
        end(prompt)
    """

    def look(made: Rig) -> None:
        (stop,) = made.events("stop")
        text = made.log("stdout.txt")
        assert stop["stray_stdout"] == {"lines": 40_004, "bytes": len(text)}
        assert text.startswith("a banner before anything else\nprogress 000000 ")
        assert text.endswith('without an end \n{not json}\n{"json": "but not json-rpc"}\n')

    assert play(tmp_path, program, look).stop == "finished"


def test_megabytes_of_stderr_do_not_block_the_agent(tmp_path: Path) -> None:
    program = r"""
        prompt = start()
        for number in range(60_000):
            sys.stderr.write("warning %06d %s\n" % (number, "." * 100))
        end(prompt)
    """

    def look(made: Rig) -> None:
        assert "warning 059999" in made.log("stderr.txt")

    assert play(tmp_path, program, look).stop == "finished"


def test_a_flood_of_output_fills_no_disk_and_is_counted(tmp_path: Path) -> None:
    program = r"""
        prompt = start()
        line = b"." * (1 << 20) + b"\n"
        for number in range(70):
            raw(line)
            sys.stderr.buffer.write(line)
            update("agent_message_chunk", content={"type": "text", "text": "x" * (1 << 20)})
        end(prompt)
    """

    def look(made: Rig) -> None:
        line = (1 << 20) + 1
        for name in ("stdout.txt", "stderr.txt"):
            text = made.log(name)
            assert text[64 << 20 :] == f"\n[{70 * line - (64 << 20)} bytes left out here]\n"
        *kept, note = made.log("jsonrpc.jsonl").splitlines()
        assert all(json.loads(each)["dir"] in ("in", "out") for each in kept)
        left = json.loads(note)
        assert (left["dir"], left["messages"] + len(kept)) == ("left_out", 70 + 3 + 3)
        assert left["bytes"] > left["messages"] << 18
        (stop,) = made.events("stop")
        assert stop["stray_stdout"] == {"lines": 70, "bytes": 70 * line}
        assert sum(len(event["text"]) for event in made.events("agent_message")) == 70 << 20

    assert play(tmp_path, program, look).stop == "finished"


@pytest.mark.parametrize("head", ["{", "x"], ids=["like-json", "text"])
def test_a_line_without_an_end_is_passed_over(tmp_path: Path, head: str) -> None:
    size = 300 << 20
    program = f"""
        prompt = start()
        raw(b"{head}")
        for _ in range({size >> 20}):
            raw(b"x" * (1 << 20))
        end(prompt)
    """

    def look(made: Rig) -> None:
        (stop,) = made.events("stop")
        assert stop["stray_stdout"]["bytes"] > size
        assert "bytes left out here" in made.log("stdout.txt")[-50:]

    assert play(tmp_path, program, look).stop == "finished"


def test_a_message_that_never_ends_ends_its_agent(tmp_path: Path) -> None:
    program = r"""
        prompt = start()
        raw(b'{"jsonrpc":"2.0","method":"session/update","params":{"text":"')
        while True:
            raw(b"x" * (1 << 20))
    """
    outcome = play(tmp_path, program)
    assert (outcome.stop, outcome.error_category) == ("crashed", "agent")
    assert "the agent began a message of over 256 MiB during session/prompt" in str(outcome.error)


@pytest.mark.parametrize(
    "noise",
    [
        r"bytes(range(256)) * 9000 + b'\n'",
        r"b'\0' * 70_000 + b'\r\n'",
        r"b'50 %\r'",
        r"b'{\"level\": \"info\", \"text\": {\"a\"'",
        r"b'x' * 3_000_000",
        r"b'[{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}]\n'",
        r"b'{\"jsonrpc\":\"1.0\",\"id\":2,\"result\":{}}\n[]\nnull\n\"text\"\n7\n'",
        r"b'{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"error\":{}}\n'",
        r"b'{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":' + b'[' * 900 + b']' * 900 + b'}\n'",
        r"b'{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":[{\"update\":7}]}\n'",
        r"b'sent {\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{}}\n' * 3",
    ],
    ids=[
        *("binary", "zeros", "half-a-line", "half-json", "megabytes-before-a-message", "batch", "other-json"),
        *("answers-to-nothing", "nested-deeply", "odd-update", "quoted-message"),
    ],
)
def test_other_output_ends_no_session(noise: str, tmp_path: Path) -> None:
    # At each moment: before the handshake, in it, in the turn, and before the answer that ends it.
    program = f"""
        raw({noise})
        first = receive("initialize")
        raw({noise})
        send(id=first["id"], result={{"protocolVersion": 1, "agentCapabilities": {{}}}})
        raw({noise})
        send(id=receive("session/new")["id"], result={{"sessionId": "s"}})
        prompt = receive("session/prompt")["id"]
        raw({noise} + b"\\n")
        update("agent_message_chunk", content={{"type": "text", "text": "heard"}})
        raw({noise})
        end(prompt)
    """

    def look(made: Rig) -> None:
        assert [event["text"] for event in made.events("agent_message")] == ["heard"]

    assert play(tmp_path, program, look).stop == "finished"


def test_an_agent_that_never_answers_is_timed_out(tmp_path: Path) -> None:
    def look(made: Rig) -> None:
        (event,) = made.events("agent_timeout")
        assert event["pending_tool_call_ids"] == ["call_2"]

    program = HANG + "call(1)\ncall(2, 'in_progress')\ntime.sleep(1e6)"
    outcome = play(tmp_path, program, look, timeout_sec=1.0)
    assert (outcome.stop, outcome.n_tool_calls, outcome.error) == ("timeout", 2, None)
    assert outcome.in_flight_at_timeout == "call_2 (step 2)"
    assert outcome.idle_before_timeout_s is not None
    assert 0 < outcome.idle_before_timeout_s < 2


def test_what_an_agent_says_after_it_was_cancelled_is_still_recorded(tmp_path: Path) -> None:
    program = (
        HANG
        + "receive('session/cancel')\n"
        + "update('agent_message_chunk', content={'type': 'text', 'text': 'I stop.'})\nend(prompt, 'cancelled')"
    )

    def look(made: Rig) -> None:
        assert [event["type"] for event in made.events()][-3:] == ["agent_message", "agent_timeout", "stop"]

    assert play(tmp_path, program, look, timeout_sec=0.5).stop == "timeout"


def test_a_silent_agent_is_idle_and_one_that_waits_for_its_model_is_not(tmp_path: Path) -> None:
    silent = play(tmp_path / "silent", HANG + "time.sleep(1e6)", timeout_sec=20, idle_timeout_sec=0.5)
    assert silent.stop == "idle"
    waiting = HANG + "time.sleep(1.5)\nend(prompt)"
    busy = play(tmp_path / "busy", waiting, timeout_sec=20, idle_timeout_sec=0.5, busy=lambda: True)
    assert busy.stop == "finished"


def test_an_agent_that_does_not_start_is_no_timeout(tmp_path: Path) -> None:
    outcome = play(tmp_path, "leave_a_daemon()\ntime.sleep(1e6)", start_sec=1.0)
    assert (outcome.stop, outcome.error_category) == ("crashed", "agent")
    assert "not ready for a prompt within 1 s" in str(outcome.error)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (HANG + "call(1)\nprint('bad key', file=sys.stderr)\nsys.exit(3)", "exited with code 3 during session/prompt"),
        ("prompt = start()\nsys.exit(0)", "exited with code 0 during session/prompt"),
        (HANG + "os.kill(os.getpid(), 11)", "was killed by signal 11 during session/prompt"),
        ("print('no such option', file=sys.stderr)\nsys.exit(2)", "exited with code 2 during initialize"),
        ("prompt = start()\nos.close(1)\ntime.sleep(1e6)", "closed its output during session/prompt"),
        (HANG + "send(id=prompt, error={'code': -32000, 'message': 'no credit'})\ntime.sleep(1e6)", "no credit"),
        (HANG + "end(prompt, 'tired')", "stopReason 'tired', not one of: end_turn"),
        (HANG + "send(id=prompt, result=[1])\ntime.sleep(1e6)", "stopReason None"),
        ("send(id=receive()['id'], result={'protocolVersion': 7})\ntime.sleep(1e6)", "protocol version 1"),
    ],
    ids=[
        "exit-code-and-a-daemon",
        "exit-code",
        "signal",
        "before-the-start",
        "closed-output",
        "error",
        "unknown-reason",
        "no-object",
        "version",
    ],
)
def test_an_agent_that_breaks_off_is_a_crash_with_its_own_words(program: str, says: str, tmp_path: Path) -> None:
    def look(made: Rig) -> None:
        assert made.events()[-1]["type"] == "stop"

    outcome = play(tmp_path, program, look, timeout_sec=20)
    assert (outcome.stop, outcome.error_category) == ("crashed", "agent")
    assert says in str(outcome.error)


def test_a_crash_shows_the_end_of_stderr_without_secrets(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as made:
            token = made.endpoint.token
            program = f"{HANG}print('refused: {token}', file=sys.stderr)\nraw(b'{token}\\n')\nsys.exit(3)"
            outcome = await made.play(program)
            assert "refused: " in str(outcome.error)
            for text in (str(outcome.error), made.log("stderr.txt"), made.log("stdout.txt"), made.log("jsonrpc.jsonl")):
                assert token not in text

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "finished"),
        ("max_tokens", "finished"),
        ("max_turn_requests", "finished"),
        ("refusal", "refused"),
        ("cancelled", "cancelled"),
    ],
)
def test_each_stop_reason_of_the_protocol_has_its_outcome(reason: str, stop: str, tmp_path: Path) -> None:
    outcome = play(tmp_path, HANG + f"end(prompt, {reason!r})")
    assert (outcome.stop, outcome.stop_reason, outcome.error) == (stop, reason, None)


def test_permission_is_given_once_and_recorded(tmp_path: Path) -> None:
    program = """
        prompt = start()
        names = ("reject_once", "allow_always", "allow_once")
        options = [{"optionId": name[:8], "name": name, "kind": name} for name in names]
        params = {"sessionId": "s", "toolCall": {"toolCallId": "call_1", "title": "rm -rf build"}, "options": options}
        send(id="p", method="session/request_permission", params=params)
        answer = receive()
        assert answer["id"] == "p" and answer["result"] == {"outcome": {"outcome": "selected", "optionId": "allow_on"}}
        send(id=7, method="session/request_permission", params={"sessionId": "s", "options": options[:1]})
        assert receive()["result"] == {"outcome": {"outcome": "cancelled"}}
        send(id=8, method="fs/read_text_file", params={"sessionId": "s", "path": "/etc/passwd"})
        assert receive()["error"]["code"] == -32601
        end(prompt)
    """

    def look(made: Rig) -> None:
        first, second = made.events("permission")
        assert (first["tool_call_id"], first["title"], first["option_id"]) == ("call_1", "rm -rf build", "allow_on")
        assert (second["outcome"], second["option_id"]) == ("cancelled", None)

    assert play(tmp_path, program, look).error is None


def test_tool_calls_are_counted_by_id(tmp_path: Path) -> None:
    program = """
        prompt = start()
        for number in range(16):
            call(number, "in_progress")
            call(number)
            update("tool_call_update", toolCallId=f"call_{number}", status="completed", rawOutput={"code": 0})
        end(prompt)
    """

    def look(made: Rig) -> None:
        assert {event["tool_call_id"] for event in made.events("tool_call")} == {f"call_{n}" for n in range(16)}
        assert made.events("tool_call_update")[0]["raw_output"] == {"code": 0}

    assert play(tmp_path, program, look).n_tool_calls == 16


def test_a_cancelled_rollout_kills_its_agent(tmp_path: Path) -> None:
    async def run() -> None:
        async with rig(tmp_path) as made:
            work = asyncio.create_task(made.play(HANG + "time.sleep(1e6)"))
            await asyncio.sleep(2)
            assert made.events("user_message")
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert await made.survivors() == ""

    asyncio.run(run())
