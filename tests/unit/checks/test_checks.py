"""Each check fails for its own fault in an otherwise healthy rollout, and no other check does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.checks import run_checks
from pytest_benchflow.checks._check import all_checks
from pytest_benchflow.checks.verdict import verdict_of
from pytest_benchflow.records.rollout import Rollout
from tests.unit.checks.test_conduct import FORMATS
from tests.unit.checks.test_faults import SEEN_ELSEWHERE
from tests.unit.rollouts import Talk, assistant, call, edit, exchange, three_steps, write_lines, write_rollout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.checks import CheckReport
    from pytest_benchflow.records.rundir import RunDir

    Fault = Callable[[RunDir], object]


def review(rundir: RunDir) -> CheckReport:
    return run_checks(Rollout(rundir.path))


def failed(report: CheckReport) -> set[str]:
    return {finding.check for finding in report.errors}


def in_result(**changes: Any) -> Fault:
    return lambda rundir: edit(rundir.result, lambda value: value.update(changes))


def in_row(change: Callable[[dict[str, Any]], object]) -> Fault:
    return lambda rundir: edit(rundir.row, change)


def without(*keys: str) -> Fault:
    return lambda rundir: edit(rundir.result, lambda value: [value.pop(key) for key in keys])


def test_healthy_rollout_passes_every_check(tmp_path: Path) -> None:
    report = review(write_rollout(tmp_path))
    assert not report.findings
    # It has no verdict yet, asked for no effort, cost nothing, had neither skills nor settings, and was verified once.
    assert set(report.not_applicable) == {
        *("verdict_agrees", "effort_kept", "cost_known", "cost_adds_up", "costs_agree"),
        *("task_skills_loaded", "agent_settings_kept", "regrade_changes_no_fact"),
    }
    assert {*report.ran, *report.not_applicable} == set(all_checks())
    assert verdict_of(report.findings, Rollout(tmp_path).result) == ("pass", None)


def set_step(key: str, value: Any) -> Fault:
    return in_row(lambda row: row["trajectory"][1].update({key: value}))


def drop_usage(rundir: RunDir) -> None:
    records = three_steps()
    del records[1]["response"]["body"]["usage"]
    write_rollout(rundir.path, records, result_with={"agent_result": {"cost_usd": None}})
    edit(rundir.result, lambda value: value["agent_result"].update(total_tokens=220))


def verified_again(**first: Any) -> Fault:
    """Leave a rollout whose verifier ran again, and whose first record differs from the present one."""

    def fault(rundir: RunDir) -> None:
        place = rundir.regrades / "1" / "first"
        place.mkdir(parents=True)
        (place / "result.json").write_text(json.dumps({**json.loads(rundir.result.read_text()), **first}))
        edit(rundir.result, lambda value: value.update(regraded={"count": 1}))

    return fault


def not_ready(row: dict[str, Any]) -> None:
    row["info"] |= {"training_ready": False, "training_ready_reason": "agent_error"}
    row |= {"error": {"error": "agent_error"}}


def arguments_of_first_call(row: dict[str, Any], arguments: Any) -> None:
    row["completion"][0]["tool_calls"][0]["function"]["arguments"] = arguments


# A message that is not well formed is not the one in the raw records either: both claims are broken.
WHOLE = "row_rebuilds"
FAULTS: list[tuple[str, Fault, set[str]]] = [
    (
        "an-error-is-gone-since-the-verifier-ran-again",
        verified_again(error="the sandbox was lost", error_category="sandbox"),
        {"regrade_changes_no_fact"},
    ),
    (
        "a-conduct-is-forgiven-since-the-verifier-ran-again",
        verified_again(verdict="unhealthy", verdict_category="conduct"),
        {"regrade_changes_no_fact"},
    ),
    ("a-regrade-without-its-first-record", in_result(regraded={"count": 1}), {"regrade_changes_no_fact"}),
    ("law-1-a-request-was-not-recorded", in_result(proxy={"received": 4, "recorded": 4}), {"every_request_recorded"}),
    ("law-1-no-counter", in_result(proxy=None), {"every_request_recorded"}),
    (
        "law-2-a-step-is-missing",
        in_row(lambda row: row["trajectory"].pop(1)),
        {"steps_are_the_selected_exchanges"},
    ),
    (
        "law-2-a-step-twice",
        in_row(lambda row: row["trajectory"].append(row["trajectory"][2])),
        {"steps_are_the_selected_exchanges"},
    ),
    (
        "law-2-steps-out-of-order",
        in_row(lambda row: row["trajectory"].reverse()),
        {"steps_are_the_selected_exchanges"},
    ),
    (
        "law-2-an-exchange-listed-as-excluded",
        in_row(lambda row: row["info"]["excluded_exchanges"].append({"index": 1, "reason": "truncated"})),
        {"excluded_have_reasons"},
    ),
    (
        "a-link-leads-out",
        lambda rundir: (rundir.path / "audit.json").symlink_to("/etc/hostname"),
        {"files_are_plain"},
    ),
    ("law-3-usage-missing", drop_usage, {"completed_have_usage"}),
    (
        "law-3-result-bills-another-sum",
        lambda rundir: edit(rundir.result, lambda value: value["agent_result"].update(total_tokens=331)),
        {"tokens_add_up"},
    ),
    (
        "law-3-the-parts-are-another-sum",
        lambda rundir: edit(
            rundir.result,
            lambda value: value["agent_result"].update(total_tokens=None, n_input_tokens=3, n_output_tokens=1),
        ),
        {"tokens_add_up"},
    ),
    (
        "law-3-an-exchange-more-told-no-usage",
        lambda rundir: edit(rundir.result, lambda value: value["agent_result"].update(n_untold=1)),
        {"tokens_add_up"},
    ),
    (
        "law-3-the-summary-selects-another-sum",
        lambda rundir: edit(rundir.result, lambda value: value["exchanges"].update(selected_tokens=220)),
        {"tokens_add_up"},
    ),
    (
        "law-3-the-row-bills-another-sum",
        in_row(lambda row: row["token_usage"].update(total_tokens=1)),
        {"row_tokens_agree"},
    ),
    ("law-4-a-message-was-changed", in_row(lambda row: row["completion"][1].update(content="forged")), {WHOLE}),
    ("law-4-an-answer-was-changed", set_step("response", {}), {WHOLE}),
    ("law-4-a-step-was-made-trainable", set_step("extras", {"exchange_index": 1, "role": "side"}), {WHOLE}),
    (
        "law-2-a-step-of-an-exchange-that-is-no-number",
        set_step("extras", {"exchange_index": {}}),
        {"steps_are_the_selected_exchanges"},
    ),
    ("law-5-a-good-row-is-not-ready", in_row(not_ready), {"training_ready_is_true_to_the_records"}),
    (
        "law-5-ready-with-an-error",
        in_row(lambda row: row.update(error={"error": "agent_error"})),
        {"training_ready_is_true_to_the_records"},
    ),
    ("law-8-verifier-too-early", in_result(verifier_started_after_agent=False), {"verifier_started_after_agent"}),
    (
        "law-8-times-say-too-early",
        lambda rundir: edit(
            rundir.result, lambda value: value["timing"].update(verifier_started_at="2026-03-01T10:00:44Z")
        ),
        {"verifier_started_after_agent"},
    ),
    ("law-8-order-not-recorded", without("verifier_started_after_agent"), {"verifier_started_after_agent"}),
    ("result-names-no-agent", in_result(agent=None), {"result_readable"}),
    ("config-names-no-task", lambda rundir: edit(rundir.config, lambda v: v.pop("task_path")), {"config_readable"}),
    ("config-missing-sandbox", lambda rundir: edit(rundir.config, lambda v: v.pop("environment")), {"config_readable"}),
    ("no-events", lambda rundir: rundir.acp.unlink(), {"acp_trajectory_readable"}),
    ("blank-events", lambda rundir: rundir.acp.write_text("\n\n"), {"acp_trajectory_readable"}),
    (
        "only-harness-events",
        lambda rundir: write_lines(rundir.acp, [{"type": "plan", "phase": "harness"}]),
        {"acp_trajectory_readable"},
    ),
    ("no-row", lambda rundir: rundir.row.unlink(), {"results_row_readable"}),
    ("empty-row-file", lambda rundir: rundir.row.write_text(""), {"results_row_readable"}),
    ("two-rows", lambda rundir: rundir.row.write_bytes(rundir.row.read_bytes() * 2), {"results_row_readable"}),
    (
        "row-of-another-task",
        in_row(lambda row: row["info"].update(task_id="fix-parser-2")),
        {"row_of_this_task"},
    ),
    (
        "row-of-another-rollout",
        in_row(lambda row: row["info"].update(rollout_name="fix-parser__baseline__replay__default__2")),
        {"row_of_this_task"},
    ),
    (
        "a-request-left-open",
        lambda rundir: write_lines(rundir.llm_pending, [{"request": {}}]),
        {"no_request_left_open"},
    ),
    ("no-prompts", lambda rundir: rundir.prompts.unlink(), {"prompts_and_timing_readable"}),
    ("torn-timing", lambda rundir: rundir.timing.write_text("{"), {"prompts_and_timing_readable"}),
    ("no-reward-line", lambda rundir: rundir.rewards.unlink(), {"rewards_journal_agrees"}),
    ("no-end", in_result(finished_at=None), {"timing_recorded"}),
    ("no-total", lambda rundir: edit(rundir.result, lambda v: v["timing"].pop("total")), {"timing_recorded"}),
    (
        "no-tokens",
        lambda rundir: edit(rundir.result, lambda v: v["agent_result"].update(total_tokens=None, n_input_tokens=None)),
        {"token_usage_recorded"},
    ),
    ("no-tool-count", in_result(n_tool_calls=None), {"tool_calls_counted"}),
    ("tools-not-counted", in_result(n_tool_calls=0), {"tool_calls_counted"}),
    ("a-step-marked-truncated", set_step("is_truncated", True), {"no_step_truncated"}),
    (
        "arguments-torn",
        in_row(lambda row: arguments_of_first_call(row, '{"cmd"')),
        {"row_is_strict_json", WHOLE},
    ),
    (
        "arguments-an-object",
        in_row(lambda row: arguments_of_first_call(row, {"cmd": "ls"})),
        {"row_is_strict_json", WHOLE},
    ),
    (
        "system-in-the-middle",
        in_row(lambda row: row["completion"].append({"role": "system", "content": "Hint"})),
        {"messages_well_formed", WHOLE},
    ),
    (
        "result-of-an-unseen-call",
        in_row(lambda row: row["completion"][1].update(tool_call_id="c9")),
        {"messages_well_formed", WHOLE},
    ),
    (
        "calls-without-tools",
        in_row(lambda row: row.update(tool_defs=[])),
        {"messages_well_formed", "tools_are_the_union"},
    ),
    (
        "private-reasoning",
        in_row(lambda row: row["completion"][0].update(reasoning_content="hm")),
        {"no_leaked_keys", WHOLE},
    ),
    (
        "private-reasoning-as-a-provider-names-it",
        in_row(lambda row: row["completion"][0].update(reasoning="hm")),
        {"no_leaked_keys", WHOLE},
    ),
    (
        "private-reasoning-as-a-part",
        in_row(lambda row: row["completion"][0].update(content=[{"type": "thinking", "thinking": "hm"}])),
        {"no_leaked_keys", WHOLE},
    ),
    ("gold-solution", in_row(lambda row: row["info"].update(gold_solution="x")), {"no_leaked_keys"}),
    ("a-reward-that-is-no-number", in_row(lambda row: row.update(reward=True)), {"row_reward_agrees"}),
    ("a-conversation-of-no-shape", in_row(lambda row: row.update(completion="Done.")), {"messages_well_formed", WHOLE}),
    ("a-step-of-no-shape", set_step("prompt", {"role": "user"}), {"messages_well_formed", WHOLE}),
    ("ready-without-an-answer", in_row(lambda row: row.update(completion=[])), {"messages_well_formed", WHOLE}),
    ("a-reward-of-its-own", in_row(lambda row: row.update(reward=0.5)), {"row_reward_agrees"}),
    ("verdict-that-the-reward-forbids", in_result(verdict="fail"), {"verdict_agrees"}),
]


def test_a_verifier_that_ran_again_may_change_the_score(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    verified_again(rewards=None, verifier_error="it crashed", verdict="unhealthy", verdict_category="verifier")(rundir)
    report = review(rundir)
    assert not report.findings
    assert "regrade_changes_no_fact" in report.ran


@pytest.mark.parametrize(("fault", "expected"), [pytest.param(f, e, id=name) for name, f, e in FAULTS])
def test_a_fault_is_found_by_its_checks_and_by_no_other(tmp_path: Path, fault: Fault, expected: set[str]) -> None:
    rundir = write_rollout(tmp_path)
    fault(rundir)
    report = review(rundir)
    assert failed(report) == expected
    assert verdict_of(report.findings, Rollout(tmp_path).result)[0] == "unhealthy"


# Faults that change how a rollout ended also change its row; the row is rebuilt, so that only the ending is at fault.
ENDINGS: list[tuple[str, dict[str, Any], set[str], str]] = [
    ("sandbox-lost", {"error": "gone", "error_category": "sandbox"}, {"no_infrastructure_error"}, "infra"),
    ("error-without-category", {"error": "Agent exited with code 3"}, {"no_infrastructure_error"}, "infra"),
    ("category-without-error", {"error_category": "provider"}, {"no_infrastructure_error"}, "infra"),
    (
        "hung-provider",
        {"error": "out of time", "error_category": "timeout", "idle_before_timeout_s": 800.0},
        {"timeout_was_the_agents"},
        "infra",
    ),
    (
        "silence-not-recorded",
        {"error": "out of time", "error_category": "timeout"},
        {"timeout_was_the_agents"},
        "infra",
    ),
    (
        "verifier-crash",
        {"verifier_error": "exit 139", "verifier_error_category": "crash"},
        {"verifier_had_no_error"},
        "verifier",
    ),
    ("no-reward", {"rewards": None}, {"reward_is_finite"}, "verifier"),
    ("reward-of-another-kind", {"rewards": {"reward": "1.0"}}, {"reward_is_finite"}, "verifier"),
    (
        "partial-without-an-error",
        {"partial_trajectory": True},
        {"trajectory_is_whole", "finished_rollouts_train"},
        "capture",
    ),
    ("row-not-built", {"export_error": "disk full"}, {"trajectory_is_whole", "finished_rollouts_train"}, "capture"),
]


@pytest.mark.parametrize(
    ("changes", "expected", "category"), [pytest.param(c, e, g, id=name) for name, c, e, g in ENDINGS]
)
def test_a_bad_end_is_found_by_its_check(
    tmp_path: Path, changes: dict[str, Any], expected: set[str], category: str
) -> None:
    rundir = write_rollout(tmp_path, result_with=changes)
    report = review(rundir)
    assert failed(report) == expected
    assert verdict_of(report.findings, Rollout(tmp_path).result) == ("unhealthy", category)


def test_every_check_is_seen_to_fail() -> None:
    seen = set().union(*(expected for _, _, expected in FAULTS), *(expected for _, _, expected, _ in ENDINGS))
    seen |= {"llm_trajectory_readable"}  # by an oracle that has exchanges, and by a torn line
    seen |= {check for check in SEEN_ELSEWHERE if check in all_checks()}
    assert seen == set(all_checks())


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"rewards": {"reward": 0.0}}, "fail"),
        ({"rewards": {"reward": 0.99}}, "fail"),
        (
            {"error": "Agent timed out after 900s", "error_category": "timeout", "idle_before_timeout_s": 3.0},
            "normal_timeout",
        ),
        (
            {
                "error": "Agent timed out after 900s",
                "error_category": "timeout",
                "idle_before_timeout_s": 700.0,
                "in_flight_at_timeout": "c9 (make all)",
            },
            "normal_timeout",
        ),
    ],
    ids=["unsolved", "nearly", "timeout", "timeout-in-a-long-command"],
)
def test_healthy_ends_have_their_verdict(tmp_path: Path, changes: dict[str, Any], verdict: str) -> None:
    rundir = write_rollout(tmp_path, result_with=changes)
    report = review(rundir)
    assert not report.findings
    assert verdict_of(report.findings, Rollout(tmp_path).result) == (verdict, None)


@pytest.mark.parametrize(
    ("said", "idle", "fault"),
    [(False, 4.0, True), (True, 4.0, False), (False, 0.1, False), (False, None, False)],
    ids=["nothing-shown", "something-shown", "not-silent", "not-watched"],
)
def test_an_agent_without_a_model_that_shows_nothing_is_no_timeout(
    tmp_path: Path, said: bool, idle: float | None, fault: bool
) -> None:
    changes = {"error": "out of time", "error_category": "timeout", "idle_before_timeout_s": idle, "model": "none"}
    rundir = write_rollout(tmp_path, [], result_with=changes, config_with={"model": "none", "timeout_sec": 4.0})
    events = [{"type": kind, "phase": "agent"} for kind in ("user_message", "agent_timeout", "stop")]
    write_lines(rundir.acp, [*events[:1], *([{"type": "plan", "phase": "agent"}] * said), *events[1:]])
    report = review(rundir)
    assert failed(report) == ({"timeout_was_the_agents"} if fault else set())
    expected = ("unhealthy", "infra") if fault else ("normal_timeout", None)
    assert verdict_of(report.findings, Rollout(tmp_path).result) == expected


def test_a_rollout_without_any_answer_is_no_timeout(tmp_path: Path) -> None:
    records = [exchange(three_steps()[0]["request"]["body"]["messages"], None, status=504)]
    changes = {"error": "out of time", "error_category": "timeout", "idle_before_timeout_s": 1.0}
    report = review(write_rollout(tmp_path, records, result_with=changes))
    assert "timeout_was_the_agents" in failed(report)


@pytest.mark.parametrize("name", ["llm", "acp", "row", "result", "config"])
@pytest.mark.parametrize(
    "damage", [b'{"torn": ', b"\xff\xfe\xfa\n", b"[" * 5000], ids=["torn", "invalid-utf8", "deep-nesting"]
)
def test_damage_is_a_finding_that_names_file_and_line(tmp_path: Path, name: str, damage: bytes) -> None:
    rundir = write_rollout(tmp_path)
    path = getattr(rundir, name)
    lines = path.suffix == ".jsonl"
    path.write_bytes((path.read_bytes() if lines else b"") + damage)
    count = path.read_bytes().rstrip(b"\n").count(b"\n") + 1
    report = review(rundir)
    said = [finding.message for finding in report.errors]
    assert any(f"{path.name}:{count}" in message if lines else path.name in message for message in said), said
    assert not any("crashed" in message for message in said), said
    assert verdict_of(report.findings, {})[0] == "unhealthy"


@pytest.mark.parametrize("name", ["llm", "acp", "row", "result", "config"])
def test_a_key_that_is_there_twice_is_damage(tmp_path: Path, name: str) -> None:
    rundir = write_rollout(tmp_path)
    path = getattr(rundir, name)
    path.write_bytes(path.read_bytes().replace(b"{", b'{"twice": 1, "twice": 2, ', 1))
    said = [finding.message for finding in review(rundir).errors]
    assert any("'twice' is there twice" in message and path.name in message for message in said), said


@pytest.mark.parametrize("name", ["llm", "acp", "row", "result", "config"])
def test_a_missing_artifact_is_an_error(tmp_path: Path, name: str) -> None:
    rundir = write_rollout(tmp_path)
    getattr(rundir, name).unlink()
    report = review(rundir)
    assert report.errors
    assert any(getattr(rundir, name).name in finding.message for finding in report.errors)


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_agents_without_a_model_are_reviewed_by_what_applies(tmp_path: Path, agent: str) -> None:
    names = {"agent": agent, "agent_name": agent}
    rundir = write_rollout(tmp_path, [], result_with={**names, "proxy": None}, config_with=names)
    for path in (rundir.llm, rundir.acp):
        path.write_text("")
    report = review(rundir)
    assert not report.findings
    assert {"every_request_recorded", "token_usage_recorded", "completed_have_usage"} <= set(report.not_applicable)
    assert {"reward_is_finite", "results_row_readable", "training_ready_is_true_to_the_records"} <= set(report.ran)


def test_calling_an_agent_oracle_hides_no_exchanges(tmp_path: Path) -> None:
    names = {"agent": "oracle", "agent_name": "oracle"}
    report = review(write_rollout(tmp_path, result_with=names, config_with=names))
    assert "llm_trajectory_readable" in failed(report)


def test_evidence_that_other_tools_lack_is_not_applicable(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    edit(rundir.config, lambda value: value.pop("plugin_version"))
    edit(rundir.result, lambda value: [value.pop(k) for k in ("proxy", "exchanges", "verifier_started_after_agent")])
    edit(rundir.row, lambda row: row["info"].pop("excluded_exchanges"))
    for path in (rundir.prompts, rundir.timing, rundir.rewards):
        path.unlink()
    report = review(rundir)
    assert not report.findings
    assert {"every_request_recorded", "tokens_add_up", "excluded_have_reasons", "verifier_started_after_agent"} <= set(
        report.not_applicable
    )


def answer_of_step(row: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = row["trajectory"][1]["completion"][0]
    return message


def called_in_step(row: dict[str, Any], **changes: Any) -> None:
    answer_of_step(row)["tool_calls"][0]["function"].update(changes)


def said_in_parts(row: dict[str, Any]) -> None:
    row["completion"][0]["content"] = [{"type": "text", "text": "I look."}]


def windowed(row: dict[str, Any]) -> None:
    row["prompt"], row["completion"] = row["prompt"] + row["completion"][:2], row["completion"][2:]


OTHERS_ROWS: dict[str, tuple[Fault, bool]] = {
    "as-it-is": (in_row(lambda row: row), True),
    "no-content": (in_row(lambda row: answer_of_step(row).update(content=None)), True),
    "written-anew": (in_row(lambda row: called_in_step(row, arguments='{"cmd":"sed -i s/x/y/ parse.py"}')), True),
    "content-in-parts": (in_row(said_in_parts), True),
    "a-window": (in_row(windowed), True),
    "a-secret-taken-out": (in_row(lambda row: row["completion"][0].update(content="[REDACTED]")), True),
    "another-answer": (in_row(lambda row: row["completion"][0].update(content="I guess.")), False),
    "another-call-in-a-step": (in_row(lambda row: answer_of_step(row)["tool_calls"][0].update(id="c9")), False),
    "other-arguments-in-a-step": (in_row(lambda row: called_in_step(row, arguments='{"cmd":"rm -rf ."}')), False),
    "no-call-in-a-step": (in_row(lambda row: answer_of_step(row).pop("tool_calls")), False),
}


@pytest.mark.parametrize("case", OTHERS_ROWS.values(), ids=OTHERS_ROWS.keys())
def test_other_tools_rows_say_what_the_model_said_in_their_own_way(tmp_path: Path, case: tuple[Fault, bool]) -> None:
    change, agrees = case
    rundir = write_rollout(tmp_path)
    edit(rundir.config, lambda value: value.pop("plugin_version"))
    change(rundir)
    assert failed(review(rundir)) == (set() if agrees else {WHOLE})


def test_a_call_without_an_id_has_one_of_its_own_in_another_tools_row(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path, FORMATS["generate-content"])
    edit(rundir.config, lambda value: value.pop("plugin_version"))
    edit(rundir.row, lambda row: row["trajectory"][0]["completion"][0]["tool_calls"][0].update(id="own"))
    assert WHOLE not in failed(review(rundir))
    edit(rundir.row, lambda row: row["trajectory"][0]["completion"][0]["tool_calls"][0]["function"].update(name="x"))
    assert WHOLE in failed(review(rundir))


@pytest.mark.parametrize("counted", ["used", "billed"])
def test_other_tools_may_count_the_tokens_used_or_billed(tmp_path: Path, counted: str) -> None:
    talk = Talk()
    talk.ask(assistant("", call("late")), used=False)
    talk.ask(assistant("", call("kept")))
    talk.ask(assistant("Done."))
    rundir = write_rollout(tmp_path, talk.records)
    edit(rundir.config, lambda value: value.pop("plugin_version"))
    total = {"used": 220, "billed": 330}[counted]
    edit(rundir.result, lambda value: value["agent_result"].update(total_tokens=total))
    assert not review(rundir).findings
    edit(rundir.result, lambda value: value["agent_result"].update(total_tokens=total + 1))
    assert failed(review(rundir)) == {"tokens_add_up"}


def test_a_text_only_rollout_is_healthy(tmp_path: Path) -> None:
    talk = Talk(tools=None)
    talk.ask(assistant("The last field is lost in split()."))
    report = review(write_rollout(tmp_path, talk.records))
    assert not report.findings


def test_a_recovered_error_and_a_dropped_late_answer_are_healthy(tmp_path: Path) -> None:
    talk = Talk()
    talk.records.append(exchange(talk.history, None, status=500))
    talk.ask(assistant("", call("late")), used=False, client_gone=True)
    talk.ask(assistant("", call("kept")))
    talk.ask(assistant("Done."))
    rundir = write_rollout(tmp_path, talk.records)
    assert not review(rundir).findings
    assert [e["reason"] for e in json.loads(rundir.row.read_text())["info"]["excluded_exchanges"]] == [
        "provider_error",
        "superseded_retry",
    ]
