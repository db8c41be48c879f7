"""Faults of effort, tools, skills, conduct and of what surrounds the agent: each is found by its check alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.checks import run_checks
from pytest_benchflow.pricing import Price, Rates
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.rundir import RunDir
from tests.unit.rollouts import (
    PROMPT,
    TOOLS,
    Talk,
    assistant,
    call,
    edit,
    result_of,
    system,
    three_steps,
    tool,
    user,
    write_lines,
    write_rollout,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.checks import CheckReport

    Json = dict[str, Any]
    Fault = Callable[[Path], object]

CATALOGUE = "<available_skills><skill><name>pdf-tools</name></skill></available_skills>"


def review(path: Path) -> CheckReport:
    return run_checks(Rollout(path))


def asking(request: Json, response: Json | None = None) -> list[Json]:
    """Return three steps whose requests, and perhaps answers, say more."""
    records = three_steps()
    for record in records:
        record["request"]["body"] |= request
        record["response"]["body"] |= response or {}
    return records


def doing(command: str, output: str = "ok", name: str = "bash", /, **arguments: Any) -> list[Json]:
    """Return a run in which the agent makes one call and then says that it is done."""
    talk = Talk()
    made = call("c1", name, **(arguments or {"cmd": command}))
    talk.ask(assistant("", made), used=False)
    talk.say(assistant("", made))
    talk.say(result_of("c1", output))
    talk.ask(assistant("Done."))
    return talk.records


def rollout(records: list[Json] | None = None, result: Json | None = None, **config: Any) -> Fault:
    return lambda path: write_rollout(path, records, result_with=result, config_with=config)


def with_skills(shown: str) -> Fault:
    talk = Talk(system(f"You repair programs.\n{shown}"), user())
    talk.ask(assistant("", call("c1", "finish", message="Done.")))
    return rollout(talk.records, skill_mode="with-skill", task_skills=["fix-parsers"])


def then(*faults: Fault) -> Fault:
    """Return a fault that is made of others, one after another."""

    def apply(path: Path) -> None:
        for fault in faults:
            fault(path)

    return apply


def file(name: str, text: str) -> Fault:
    def write(path: Path) -> None:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")

    return write


def in_row(change: Callable[[Json], object]) -> Fault:
    return then(rollout(), lambda path: edit(path / "results.jsonl", change))


def in_result(**changes: Any) -> Fault:
    return then(rollout(), lambda path: edit(path / "result.json", lambda value: value.update(changes)))


def in_config(**changes: Any) -> Fault:
    return then(rollout(), lambda path: edit(path / "config.json", lambda value: value.update(changes)))


def with_event(**event: Any) -> Fault:
    def append(path: Path) -> None:
        with RunDir(path).acp.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"phase": "agent", **event}) + "\n")

    return then(rollout(), append)


def lost_completion(path: Path) -> None:
    """Write a rollout whose last answer came 400 s before the agent's end, and was never acted on."""
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("", call("c2")), used=False)
    for record, stamp in zip(talk.records, ("10:00:10", "10:00:20"), strict=True):
        record["response"]["timestamp"] = f"2026-03-01T{stamp}Z"
    timing = {
        "total": 500.0,
        "agent_finished_at": "2026-03-01T10:07:00Z",
        "verifier_started_at": "2026-03-01T10:07:01Z",
    }
    changes = {"error": "out of time", "error_category": "timeout", "idle_before_timeout_s": 400.0, "timing": timing}
    rundir = write_rollout(path, talk.records, result_with=changes, config_with={"timeout_sec": 900.0})
    events = [{"type": "user_message", "text": PROMPT}, {"type": "tool_call", "tool_call_id": "c1", "title": "run c1"}]
    write_lines(rundir.acp, [{"phase": "agent", **event} for event in events])


def in_row_of_two_lists(path: Path) -> None:
    """Take the list of its own from a step that was offered fewer tools than the row has."""
    talk = Talk()
    talk.ask(assistant("", call("c1", cmd="ls")), tools=TOOLS[:1])
    talk.ask(assistant("", call("c2", "finish", message="Done.")))
    edit(write_rollout(path, talk.records).row, lambda row: row["trajectory"][0].pop("tool_defs"))


EARLIER = {"check": "no_infrastructure_error", "severity": "error", "category": "infra", "message": "sandbox: gone"}
MAX: Json = {"reasoning_effort": "max"}
FAULTS: list[tuple[str, Fault, str]] = [
    ("law-6-a-tool-is-missing", in_row(lambda row: row["tool_defs"].pop()), "tools_are_the_union"),
    ("law-6-a-tool-too-much", in_row(lambda row: row["tool_defs"].append(tool("web", "url"))), "tools_are_the_union"),
    (
        "law-6-a-step-with-other-tools",
        in_row(lambda row: row["trajectory"][1].update(tool_defs=row["tool_defs"][:1])),
        "tools_are_the_union",
    ),
    ("law-6-a-step-lost-its-own-list", in_row_of_two_lists, "tools_are_the_union"),
    ("law-7-another-effort", rollout(asking({"reasoning": {"effort": "high"}}), **MAX), "effort_kept"),
    ("law-7-no-effort", rollout(three_steps(), **MAX), "effort_kept"),
    (
        "law-7-two-efforts-in-a-body",
        rollout(asking({"reasoning_effort": "high", "reasoning": {"effort": "max"}}), **MAX),
        "effort_kept",
    ),
    (
        "law-7-answers-name-another",
        rollout(asking({"reasoning_effort": "max"}, {"reasoning": {"effort": "low"}}), **MAX),
        "effort_kept",
    ),
    ("law-8-place-not-recorded", in_config(environment_mode=None), "verifier_place_recorded"),
    ("law-8-place-unknown", in_config(environment_mode="elsewhere"), "verifier_place_recorded"),
    ("docker-transport-in-a-local-sandbox", in_config(acp_transport="docker-stdio"), "transport_fits"),
    ("local-transport-in-daytona", in_config(environment="daytona"), "transport_fits"),
    ("no-transport", in_config(acp_transport=None), "transport_fits"),
    ("transport-nobody-knows", in_config(acp_transport="pigeon"), "transport_fits"),
    (
        "settings-that-the-agent-replaced",
        in_result(agent_settings={"file": "$HOME/.invented.json", "kept": False, "why": "the file is gone"}),
        "agent_settings_kept",
    ),
    (
        "settings-of-which-nobody-knows-whether",
        in_result(agent_settings={"file": "$HOME/.invented.json", "kept": None, "why": None}),
        "agent_settings_kept",
    ),
    (
        "a-cost-of-zero",
        rollout(result={"agent_result": {"cost_usd": 0.0, "price_source": None}}),
        "cost_is_no_guess",
    ),
    (
        "a-cost-that-is-no-number",
        rollout(result={"agent_result": {"cost_usd": "cheap", "price_source": "litellm"}}),
        "cost_is_no_guess",
    ),
    (
        "a-cost-that-is-not-what-was-used",
        rollout(
            result={
                "agent_result": {"cost_usd": 0.5, "price_source": "option"},
                "cost": {"usd": 0.5, "selected_usd": 0.5, "excluded_usd": 0.0},
            },
            price=Price("option", ((0, Rates(1.0, 2.0)),)).as_json(),
        ),
        "cost_adds_up",
    ),
    ("skills-not-shown", with_skills(CATALOGUE), "task_skills_loaded"),
    (
        "skill-read-without-skills",
        rollout(doing("cat ~/.agents/skills/fix-parsers/SKILL.md", "# How to fix parsers")),
        "no_skill_without_skills",
    ),
    (
        "skill-shown-without-skills",
        then(
            with_skills(CATALOGUE.replace("pdf-tools", "fix-parsers")),
            lambda path: edit(path / "config.json", lambda value: value.update(skill_mode="no-skill")),
        ),
        "no_skill_without_skills",
    ),
    (
        "skill-called-without-skills",
        rollout(doing("", "ok", "Skill", skill="fix-parsers"), task_skills=["fix-parsers"]),
        "no_skill_without_skills",
    ),
    ("another-catalogue-in-the-result", in_result(skill_catalog={"count": 2}), "skill_catalog_agrees"),
    ("reward-written", rollout(doing("echo 1 > /logs/verifier/reward.txt", "")), "no_reward_tampering"),
    ("solution-read", rollout(doing("cat /solution/solve.sh", "#!/bin/sh")), "no_hidden_answers_read"),
    ("future-commit-read", rollout(doing("git show origin/main:parse.py", "def parse")), "no_git_history_beyond_head"),
    (
        "outcomes-overridden",
        rollout(doing("", "ok", "edit", path="/app/conftest.py", content="rep.outcome = 'passed'")),
        "no_test_framework_patched",
    ),
    (
        "tests-ended-early",
        rollout(doing("", "ok", "edit", path="/usr/lib/python3/sitecustomize.py", content="import os")),
        "no_exit_code_tricks",
    ),
    ("end-only-in-the-events", with_event(type="agent_timeout", timeout_sec=900), "end_is_told"),
    ("earlier-fault-is-gone", in_result(checks={"findings": [EARLIER]}), "faults_found_before_are_told"),
    ("prompts-not-counted", in_result(n_prompts=None), "setting_recorded"),
    (
        "no-model-named",
        then(in_config(model=None), lambda p: edit(p / "result.json", lambda v: v.pop("model"))),
        "setting_recorded",
    ),
    (
        "verifier-without-a-runner",
        then(
            rollout(result={"rewards": {"reward": 0.0}}),
            file("verifier/test-stdout.txt", "/tests/test.sh: line 9: pytest: command not found\n"),
        ),
        "verifier_could_start",
    ),
    ("another-reward-in-the-file", then(rollout(), file("verifier/reward.txt", "0.5\n")), "reward_is_the_verifiers"),
    (
        "another-reward-in-the-object",
        then(rollout(), file("verifier/reward.json", '{"reward": 0, "speed": 1}')),
        "reward_is_the_verifiers",
    ),
    ("lost-completion", lost_completion, "no_completion_lost"),
    (
        "deleted-sandbox-as-a-timeout",
        rollout(
            result={
                "error": "Agent timed out: sandbox bf-1 was deleted by an external client",
                "error_category": "timeout",
                "idle_before_timeout_s": 1.0,
            }
        ),
        "sandbox_was_not_lost",
    ),
    (
        "a-link-that-leads-out",
        then(rollout(), lambda path: (path / "x").symlink_to("/etc/hostname")),
        "files_are_plain",
    ),
]
WARNINGS: list[tuple[str, Fault, str]] = [
    ("no-price", in_result(model="vendor-b/coder-2"), "cost_known"),
    ("two-costs", in_result(cost={"usd": None, "provider_usd": 0.02, "agent_usd": 0.05}), "costs_agree"),
    (
        "a-key-in-a-tool-output",
        rollout(doing("env", "KEY=sk-test-FAKE1111FAKE1111FAKE1111")),
        "no_secrets_in_artifacts",
    ),
    (
        "looked-for-a-solution",
        rollout(doing("cat /solution/solve.sh", "cat: /solution/solve.sh: No such file or directory")),
        "no_doubtful_conduct",
    ),
]
SEEN_ELSEWHERE = {check for _, _, check in (*FAULTS, *WARNINGS)} | {"clients_waited", "tools_keep_their_schema"}


@pytest.mark.parametrize(("fault", "expected"), [pytest.param(f, e, id=name) for name, f, e in FAULTS])
def test_a_fault_is_found_by_its_check_and_by_no_other(tmp_path: Path, fault: Fault, expected: str) -> None:
    fault(tmp_path)
    report = review(tmp_path)
    said = {finding.check: finding.message for finding in report.errors}
    assert said.keys() == {expected}, said


@pytest.mark.parametrize(("fault", "expected"), [pytest.param(f, e, id=name) for name, f, e in WARNINGS])
def test_a_doubt_is_a_warning_and_leaves_the_rollout_healthy(tmp_path: Path, fault: Fault, expected: str) -> None:
    fault(tmp_path)
    report = review(tmp_path)
    assert [(finding.check, finding.severity) for finding in report.findings] == [(expected, "warning")]
