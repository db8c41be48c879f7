"""The reasoning effort may be asked for in three places, which must agree before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from tests.modelhost import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pytest_benchflow.contracts import ModelRequest, ModelResponse
    from tests.plugin.bench import Bench

OPTION = "--benchflow-reasoning-effort="
OF_AGENT = "--benchflow-agent-env=LLM_REASONING_EFFORT="


@pytest.mark.parametrize(
    ("options", "host", "asked"),
    [
        pytest.param((f"{OPTION}high",), None, "high", id="option"),
        pytest.param((f"{OF_AGENT}max",), None, "max", id="agents-variable"),
        pytest.param((), "low", "low", id="hosts-variable"),
        pytest.param((f"{OPTION}MAX", f"{OF_AGENT}max"), " Max ", "max", id="all-the-same"),
        pytest.param((f"{OF_AGENT}",), "", None, id="empty"),
        pytest.param(("--benchflow-agent-env=LLM_REASONING_EFFORT",), "xhigh", "xhigh", id="passed-on"),
    ],
)
def test_each_place_means_the_option(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], host: str | None, asked: str | None
) -> None:
    if host is not None:
        monkeypatch.setenv("LLM_REASONING_EFFORT", host)
    bench.task()
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop", *options)
    assert done.ret == 0, done.outlines
    (path,) = bench.rollouts()
    assert json.loads((path / "config.json").read_text())["reasoning_effort"] == asked


@pytest.mark.parametrize(
    ("options", "host", "says"),
    [
        pytest.param(
            (f"{OPTION}max", f"{OF_AGENT}high"),
            None,
            "is 'max', LLM_REASONING_EFFORT for the agent (--benchflow-agent-env) is 'high'; name one, or the same",
            id="option-and-agent",
        ),
        pytest.param(
            (f"{OPTION}max",),
            "high",
            "--benchflow-reasoning-effort is 'max', LLM_REASONING_EFFORT of this host is 'high'; name one, or the same",
            id="option-and-host",
        ),
        pytest.param(
            (f"{OF_AGENT}max",),
            "high",
            "(--benchflow-agent-env) is 'max', LLM_REASONING_EFFORT of this host is 'high'",
            id="agent-and-host",
        ),
    ],
)
def test_a_disagreement_is_refused_before_anything_starts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], host: str | None, says: str
) -> None:
    if host is not None:
        monkeypatch.setenv("LLM_REASONING_EFFORT", host)
    bench.task()
    bench.refused("tasks", "--benchflow-agent=nop", *options, says=says)
    assert not (bench.path / "jobs").exists()


def test_one_that_an_agent_cannot_ask_for_is_refused_before_anything_starts(bench: Bench) -> None:
    bench.task()
    says = "the reasoning effort is 'max'; the agent gemini can ask its model for minimal, low, medium, high"
    bench.refused("tasks", "--benchflow-agent=nop", "--benchflow-agent=gemini", f"{OPTION}max", says=says)
    assert not (bench.path / "jobs").exists()


@pytest.mark.parametrize(
    "options",
    [(f"{OPTION}hihg",), (f"{OF_AGENT}hihg",), ("--benchflow-matrix=benchflow.toml",)],
    ids=["option", "agents-variable", "matrix-file"],
)
@pytest.mark.parametrize("agent", ["baseline", "nop"])
def test_one_that_nobody_knows_is_refused_with_those_that_are_known(
    bench: Bench, options: tuple[str, ...], agent: str
) -> None:
    bench.task()
    matrix = f'agents = ["{agent}"]\nmodels = ["replay"]\nreasoning-effort = "hihg"\n'
    (bench.path / "benchflow.toml").write_text(matrix)
    named = () if "matrix" in options[0] else (f"--benchflow-agent={agent}",)
    says = "the reasoning effort is 'hihg'; it takes none, minimal, low, medium, high, xhigh, max, default, auto"
    bench.refused("tasks", *named, *options, says=says)
    assert not (bench.path / "jobs").exists()


class Clamping(ScriptedUpstream):
    """A provider that answers with less effort than it was asked for, and says so."""

    async def send(self, request: ModelRequest) -> ModelResponse:
        answer = await super().send(request)
        body = json.loads(b"".join([chunk async for chunk in answer.chunks]))

        async def chunks() -> AsyncIterator[bytes]:
            yield json.dumps({**body, "reasoning_effort": "high"}).encode()

        return replace(answer, chunks=chunks())


def test_one_that_a_provider_clamps_is_told_and_in_the_configuration(bench: Bench) -> None:
    bench.task()
    turns = [ScriptTurn(calls=(Call("shell", {"command": "echo done > out.txt"}),)), ScriptTurn(text="ok", repeat=True)]
    with served(Clamping(turns)) as url:
        asked = (f"--benchflow-model=vllm/m@{url}", "--benchflow-agent=baseline", f"{OPTION}max")
        done = bench.run("tasks", "-m", "rollout", "--benchflow-skip-key-check", *asked)
    # It is no rollout of the effort that was asked for.
    assert done.ret == 1
    assert "effort_kept: reasoning effort max was asked for and sent, and answers name another" in done.stdout.str()
    (path,) = bench.rollouts()
    assert bench.config(path)["efforts"] == [{"asked": "max", "agent": "max", "upstream": "max", "echoed": "high"}]
    says = "the provider answered with the reasoning effort high where max was sent"
    assert [each for each in bench.result(path)["warnings"] if says in each]
