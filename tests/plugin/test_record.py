"""--benchflow-record, -replay-strict and -reasoning-effort: a model once live, then replayed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.plugin.bench import outcomes

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

SCRIPT = """
[[turns]]
text = "I write it."
[[turns.calls]]
name = "shell"
[turns.calls.arguments]
command = "echo done > /app/out.txt; date +%s%N"

[[turns]]
[[turns.calls]]
name = "finish"
[turns.calls.arguments]
summary = "It is written."
"""
LIVE = ("tasks", "-m", "rollout", "--benchflow-model=script/model.toml")


@pytest.fixture
def recorded(bench: Bench) -> Bench:
    bench.task()
    bench.write(bench.path, {"model.toml": SCRIPT})
    done = bench.run(*LIVE, "--benchflow-record")
    assert outcomes(done) == {"solved": 1}, done.outlines
    return bench


def test_what_was_recorded_is_replayed_without_any_model(recorded: Bench) -> None:
    recording = recorded.path / "tasks" / "hello" / "recorded" / "baseline.jsonl"
    assert recording.is_file()
    done = recorded.run("tasks")
    assert done.ret == 0
    assert done.parseoutcomes()["solved"] == 1
    assert "2/2 usage" in done.stdout.str()


def test_a_strict_replay_refuses_tool_output_that_differs(recorded: Bench) -> None:
    done = recorded.run("tasks", "-m", "rollout", "--benchflow-replay-strict")
    assert done.ret == 1
    text = done.stdout.str()
    assert "(replay_mismatch)" in text
    assert "--benchflow-record" in text


def test_nothing_is_recorded_unless_asked(bench: Bench) -> None:
    bench.task()
    bench.write(bench.path, {"model.toml": SCRIPT})
    assert outcomes(bench.run(*LIVE)) == {"solved": 1}
    assert not (bench.path / "tasks" / "hello" / "recorded").exists()


def test_the_effort_asked_for_is_in_every_request_and_counted(bench: Bench) -> None:
    bench.task()
    bench.write(bench.path, {"model.toml": SCRIPT})
    done = bench.run(*LIVE, "--benchflow-reasoning-effort=low")
    assert done.parseoutcomes()["solved"] == 1
    assert "effort 2/2" in done.stdout.str()
    (path,) = bench.rollouts()
    bodies = [
        json.loads(line)["request"]["body"]
        for line in (path / "trajectory" / "llm_trajectory.jsonl").read_text().splitlines()
    ]
    assert [body["reasoning_effort"] for body in bodies] == ["low", "low"]


@pytest.mark.parametrize("words", [("tasks",), ()], ids=["tasks", "plain"])
def test_recording_what_is_replayed_is_refused(bench: Bench, words: tuple[str, ...]) -> None:
    bench.task()
    bench.refused(*words, "--benchflow-record", says="no model but replay is asked for; pass --benchflow-model=")
