"""A session with all that agents do to a model, recorded once, is replayed as often as wanted, and only as it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.records.journal import read_records
from tests.plugin.bench import outcomes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.bench import Bench

# Streams, tries again after a refusal, runs two commands that it is told at once, and asks for a title meanwhile.
AGENT = '''
from pytest_benchflow.contracts import AgentOutcome

PROGRAM = r"""
import json, subprocess, sys, threading, urllib.error, urllib.request

url, token, model, prompt = sys.argv[1:]

def ask(messages, **more):
    body = json.dumps({"model": model, "messages": messages, **more}).encode()
    head = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    request = urllib.request.Request(url + "/v1/chat/completions", body, head)
    for _ in range(3):
        try:
            return urllib.request.urlopen(request).read()
        except urllib.error.HTTPError as error:
            if error.code != 503:
                sys.exit(error.read().decode())

title = threading.Thread(target=ask, args=([{"role": "user", "content": "Find a title for it."}],))
title.start()
history = [{"role": "user", "content": prompt}]
calls, text = {}, ""
tool = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}
for line in ask(history, stream=True, tools=[tool], stream_options={"include_usage": True}).splitlines():
    if line.startswith(b"data: {"):
        for choice in json.loads(line[6:])["choices"]:
            text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(part["index"], {"type": "function", "function": {"arguments": ""}})
                call["id"] = part.get("id") or call["id"]
                call["function"]["name"] = part["function"].get("name") or call["function"]["name"]
                call["function"]["arguments"] += part["function"].get("arguments") or ""
history.append({"role": "assistant", "content": text, "tool_calls": list(calls.values())})
for call in calls.values():
    command = json.loads(call["function"]["arguments"])["command"]
    said = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    history.append({"role": "tool", "tool_call_id": call["id"], "content": said})
    print(call["id"])
ask(history, tools=[tool])
title.join()
"""


class Clerk:
    version = "1"
    uses_model = True
    api_dialect = "chat"

    def __init__(self, name):
        self.name = name

    def unsupported(self, task):
        return None

    async def install(self, backend, task, log_dir):
        return ()

    async def run(self, context):
        context.events.append({"type": "user_message", "text": context.instruction})
        words = (context.base_url, context.token, context.model, context.instruction)
        done = await context.sandbox.exec(["python3", "-c", PROGRAM, *words], cwd="/app")
        for call in done.stdout.split():
            for event, status in (("tool_call", "in_progress"), ("tool_call_update", "completed")):
                context.events.append({"type": event, "tool_call_id": call, "title": "shell", "status": status})
        context.events.append({"type": "stop", "outcome": "finished", "stop_reason": "end_turn", "error": None})
        stop = "finished" if done.exit_code == 0 else "crashed"
        return AgentOutcome(stop, n_tool_calls=len(done.stdout.split()), error=done.stderr or None)


def pytest_benchflow_agents():
    return {"clerk": Clerk}
'''
SCRIPT = """
[[turns]]
match = "title"
text = "Done is written"
delay = 0.3

[[turns]]
match = "Write done"
status = 503
error = "busy"

[[turns]]
text = "Both at once."
[[turns.calls]]
name = "shell"
arguments = { command = "echo done > out.txt; cat out.txt" }
[[turns.calls]]
name = "shell"
arguments = { command = "echo second" }

[[turns]]
text = "It is written."
"""
STRICTLY = ("tasks", "-m", "rollout", "--benchflow-agent=clerk", "--benchflow-replay-strict")


@pytest.fixture
def recorded(bench: Bench) -> Bench:
    bench.task()
    bench.write(bench.path, {"model.toml": SCRIPT, "conftest.py": AGENT})
    live = ("tasks", "-m", "rollout", "--benchflow-agent=clerk", "--benchflow-model=script/model.toml")
    done = bench.run(*live, "--benchflow-record", "--benchflow-job-name=live")
    assert outcomes(done) == {"solved": 1}, done.outlines
    return bench


def exchanges(rollout: Path) -> list[dict[str, Any]]:
    """Return what a rollout recorded, in an order of its own, without times and names given by chance."""
    found = []
    for record in read_records(rollout / "trajectory" / "llm_trajectory.jsonl"):
        del record["request"]["request_id"], record["request"]["timestamp"], record["response"]["timestamp"]
        del record["duration_ms"], record["metadata"]["started_seq"]
        record["metadata"].pop("last_byte_ms", None)
        found.append(record)
    # What runs at the same time begins and ends in any order.
    return sorted(found, key=lambda record: json.dumps(record, sort_keys=True))


def answered(found: list[dict[str, Any]]) -> list[str]:
    """Return what was asked and answered, without what was refused."""
    completed = (each for each in found if each["response"]["status_code"] == 200)
    return sorted(repr((each["request"]["body"]["messages"], each["response"]["body"])) for each in completed)


def test_a_recorded_session_is_replayed_twice_with_equal_records_and_a_changed_prompt_refused(recorded: Bench) -> None:
    (path,) = recorded.rollouts()
    live = exchanges(path)
    assert sorted(each["response"]["status_code"] for each in live) == [200, 200, 200, 503]
    assert [each["metadata"]["stream"] for each in live].count(True) == 2
    done = recorded.run(*STRICTLY, "--benchflow-trials=2", "--benchflow-job-name=replayed")
    assert outcomes(done) == {"solved": 2}, done.outlines
    first, second = map(exchanges, sorted((recorded.path / "jobs" / "replayed").glob("hello__*")))
    assert first == second
    assert answered(live) == answered(first)
    rows = [json.loads(line) for line in (recorded.path / "jobs/replayed/results.jsonl").read_bytes().splitlines()]
    assert len(rows) == 2
    assert rows[0]["completion"] == rows[1]["completion"]

    (recorded.path / "tasks" / "hello" / "instruction.md").write_text("Write done into /app/other.txt.\n", "utf-8")
    done = recorded.run(*STRICTLY)
    text = " ".join(done.outlines)
    assert done.ret == 1
    assert "(replay_mismatch)" in text
    assert "turn 1: recorded user: 'Write done into /app/out.txt.'; got user: 'Write done into /app/other.txt.'" in text
