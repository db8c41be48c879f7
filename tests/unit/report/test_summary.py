"""The evidence line and the table's row: every number is right, and what is not known is never 0."""

from __future__ import annotations

import json
from dataclasses import replace

from pytest_benchflow.report.summary import Summary, cost_lines, evidence_line, job_lines, warning_lines

ONE = Summary(
    task="csv-report",
    agent="openhands",
    model="openai/gpt-5",
    skills="no-skill",
    trial=1,
    verdict="pass",
    category=None,
    reward=1.0,
    steps=14,
    tool_calls=13,
    calls_model=True,
    tokens=227853,
    cost=0.25,
    completed=14,
    with_usage=14,
    truncated=0,
    effort=(14, 14),
    training_ready=True,
    seconds=296.08,
    directory="jobs/a/csv-report__openhands",
)


def test_the_evidence_of_one_rollout() -> None:
    assert evidence_line([ONE]) == (
        "1/1 healthy · 227,853 tokens · 13 tool calls · reward present · 14/14 usage · 0 truncated · effort 14/14 · "
        "training_ready 1 · 296.1 s"
    )


def test_what_rollouts_warn_of_is_told_once_with_how_many_they_are() -> None:
    assert warning_lines([ONE]) == []
    slow, torn = replace(ONE, warnings=("no limit of memory holds",)), replace(ONE, warnings=("a", "b", "c", "d", "e"))
    assert warning_lines([slow, Summary.of_dict(json.loads(json.dumps(slow.as_dict()))), torn]) == [
        "warning of 2 rollouts: no limit of memory holds",
        *(f"warning of 1 rollout: {letter}" for letter in "abcd"),
        "and 1 other warning, which `pytest-benchflow show` tells of each rollout",
    ]


def test_the_evidence_of_several_keeps_the_unhealthy_in_the_denominator() -> None:
    lost = replace(ONE, verdict="unhealthy", category="capture", reward=None, training_ready=False, effort=(3, 14))
    line = evidence_line([ONE, lost])
    assert line.startswith("1/2 healthy · 455,706 tokens · 26 tool calls · 1/2 rewards present · 28/28 usage")
    assert "effort 17/28 · training_ready 1 · 592.2 s" in line


def test_what_is_not_known_is_neither_0_nor_left_out() -> None:
    unknown = replace(ONE, tokens=None, with_usage=None, cost=None, reward=None, seconds=None, tool_calls=None)
    line = evidence_line([unknown])
    assert "unknown tokens" in line
    assert "unknown tool calls" in line
    assert "reward missing" in line
    assert "unknown/14 usage" in line
    assert line.endswith("unknown")
    assert "227,853+? tokens" in evidence_line([ONE, unknown])
    assert {name: unknown.cells()[name] for name in ("reward", "tokens", "cost")} == dict.fromkeys(
        ("reward", "tokens", "cost"), "unknown"
    )
    assert ("benchflow_cost", "unknown") in unknown.properties()


def test_tokens_that_are_known_in_part_are_no_total() -> None:
    part = replace(ONE, tokens_whole=False)
    assert part.cells()["tokens"] == "227,853+?"
    assert "455,706+? tokens" in evidence_line([ONE, part])
    assert ("benchflow_tokens", "unknown") in part.properties()
    assert replace(part, tokens=0).cells()["tokens"] == "unknown"


def test_an_agent_without_a_model_claims_no_tokens() -> None:
    plain = replace(ONE, calls_model=False, tokens=None, effort=None, tool_calls=0, seconds=0.4)
    assert evidence_line([plain]) == "1/1 healthy · 0 tool calls · reward present · 0.4 s"


def test_a_summary_survives_the_journey_between_processes() -> None:
    values = ONE.as_dict() | {"effort": [14, 14], "phases": [["agent_execution", 2.5]]}
    back = Summary.of_dict(values)
    assert replace(back, phases=()) == ONE
    assert back.phases == (("agent_execution", 2.5),)


def test_an_unhealthy_rollout_shows_its_category_and_has_no_reward_that_counts() -> None:
    broken = replace(ONE, verdict="unhealthy", category="verifier")
    assert broken.cells()["verdict"] == "unhealthy (verifier)"
    assert broken.cells()["reward"] == "-"
    assert ("benchflow_reward", "unknown") in broken.properties()
    assert "1/2 rewards present" in evidence_line([ONE, broken])


def test_recorded_answers_cost_nothing() -> None:
    assert replace(ONE, model="replay", cost=None).cells()["cost"] == "-"


def test_costs_have_a_total_only_where_all_are_known() -> None:
    assert cost_lines([ONE, replace(ONE, cost=0.5)]) == ["cost: $0.7500"]
    unknown = replace(ONE, cost=None, unpriced="exchange 2: it has no answer")
    assert cost_lines([ONE, unknown, replace(unknown, unpriced=None)]) == [
        "cost: unknown, 2 of 3 rollouts unpriced; $0.2500 for 1 priced",
        "  exchange 2: it has no answer (and 1 more)",
    ]
    assert cost_lines([replace(ONE, model="replay", cost=None), replace(ONE, calls_model=False, cost=None)]) == []


def test_a_job_is_told_of_where_more_was_planned_than_is_shown() -> None:
    counts = {"asked": 1200, "healthy": 5, "unhealthy": 2, "missing": 1193}
    summary = {"rollouts": counts, "solved": {"count": 4, "of": 1200, "rate": 1 / 300}}
    assert job_lines(summary, 7) == [
        "the whole job: 4/1,200 solved · 5/1,200 healthy · 2 unhealthy · 1,193 missing",
    ]
    assert job_lines(summary, 1200) == []
    assert job_lines({}, 7) == []
    del counts["healthy"], summary["solved"]
    assert job_lines(summary, 7)[0].startswith("the whole job: unknown/1,200 solved · unknown/1,200 healthy")
