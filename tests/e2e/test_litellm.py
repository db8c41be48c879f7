"""One LiteLLM process serves a whole session, holds no key that others can see, and never outlives it."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from tests.modelhost import served

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pytest_benchflow.contracts import ModelRequest, ModelResponse
    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

KEY = "sk-canary-of-the-host-4711"
DONE = "R-DONE"


class Provider(ScriptedUpstream):
    """Speaks Anthropic's format; at each request it looks which processes translate, and where its key is seen."""

    def __init__(self, machine: Machine, *turns: ScriptTurn) -> None:
        super().__init__(turns)
        self.translators: set[str] = set()
        self.seen: set[tuple[str, str]] = set()
        self._machine = machine

    async def send(self, request: ModelRequest) -> ModelResponse:
        for process in self._machine.processes():
            for name in ("cmdline", "environ"):
                raw = read(process / name)
                if name == "cmdline" and b"_litellm_worker" in raw:
                    self.translators.add(process.name)
                if KEY.encode() in raw:
                    self.seen.add((name, "the user's" if is_of_pytest(process) else process.name))
        return await super().send(request)


def is_of_pytest(process: Path) -> bool:
    command = read(process / "cmdline")
    return b"\0-m\0pytest\0" in command or b"exec(eval(sys.stdin.readline()))" in command


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


OPTIONS = ("--benchflow-agent=baseline", "--benchflow-model=anthropic/claude-x", "-n", "2", "-k", "rollout", "-q")


def test_twenty_rollouts_on_two_workers_share_one_process_that_ends_with_them(
    make_task: MakeTask, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_task(agent_timeout=300).parents[1]
    (root / "pytest.ini").write_text("[pytest]\n")
    look = ScriptTurn(
        text="looking", calls=(Call("shell", {"command": f"echo 42 > answer; echo {DONE}"}),), repeat=True
    )
    provider = Provider(machine, ScriptTurn(text="done", match=DONE, repeat=True), look)
    with served(provider) as url:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        run = machine.pytest("tasks", *OPTIONS, "--benchflow-trials=20", cwd=root)
        output, _ = run.communicate(timeout=500)
    assert run.returncode == 0, output
    assert machine.leftovers() == []
    assert len(provider.translators) == 1
    # What the user exports, pytest and its workers have in theirs, and nobody else.
    assert provider.seen == {("environ", "the user's")}
    results = [json.loads(path.read_text()) for path in root.glob("jobs/*/*/result.json")]
    assert [result["rewards"] for result in results] == [{"reward": 1.0}] * 20
    # One empty request tried the key for all.
    assert sum(b'"messages":[]' in request.body for request in provider.requests) == 1
    assert len(provider.requests) == 41
    exchanges = [
        json.loads(line)
        for path in root.glob("jobs/*/*/trajectory/llm_trajectory.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {exchange["metadata"]["upstream"]["url"] for exchange in exchanges} == {f"{url}/messages"}
    assert {exchange["metadata"]["upstream"]["model"] for exchange in exchanges} == {"claude-x"}
    assert {exchange["metadata"]["upstream_calls"] for exchange in exchanges} == {1}
    holding = [path for path in root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holding == []
    assert KEY not in output


def test_the_process_is_gone_after_pytest_was_killed(
    make_task: MakeTask, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_task(agent_timeout=300).parents[1]
    (root / "pytest.ini").write_text("[pytest]\n")
    provider = Provider(machine, ScriptTurn(hang=True, repeat=True))
    with served(provider) as url:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        options = (*OPTIONS, "--benchflow-trials=2", "--benchflow-skip-key-check")
        run = machine.pytest("tasks", *options, cwd=root)
        deadline = time.monotonic() + 200
        while not provider.translators and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(provider.translators) == 1
        os.kill(run.pid, signal.SIGKILL)
        while (left := translators(machine)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
        run.communicate(timeout=60)
    assert list(machine.temporary.glob("benchflow-*-*/leases")) == []


def translators(machine: Machine) -> list[str]:
    return [each.name for each in machine.processes() if b"_litellm_worker" in read(each / "cmdline")]
