"""The reasoning effort may be asked for in three places, which must agree before anything starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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
