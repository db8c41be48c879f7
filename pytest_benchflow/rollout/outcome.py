"""Complete a rollout's records: result.json, the trainer row, the checks and the verdict."""

from __future__ import annotations

import itertools
import os
import traceback
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._catalogue import skill_facts
from pytest_benchflow.checks._check import run_checks
from pytest_benchflow.checks.execution import TIMEOUT_CATEGORIES
from pytest_benchflow.checks.verdict import verdict_of
from pytest_benchflow.records.files import open_plain, write_whole
from pytest_benchflow.records.journal import write_json
from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.values import mapping, now, sequence
from pytest_benchflow.rollout.verify import combine
from pytest_benchflow.training.account import cost_record
from pytest_benchflow.training.row import build_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.rollout.state import RolloutState
    from pytest_benchflow.training.row import Row

# What an agent whose model answers no more may come to, beside errors of its own.
_OF_UNANSWERED = ("None", "provider", "idle_timeout")


def finish(state: RolloutState) -> None:
    """Write everything that a rollout leaves at its end; called exactly once, also after a failure."""
    state.events.close()
    result = state.redactor.value(_result(state))
    result["redactions"] = state.redactor.count
    complete(state.dir, result, state.redactor.value(state.config))


def complete(rundir: RunDir, result: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Add to `result` what follows from the records on disk, and write row, timing and result.json."""
    write_json(rundir.timing, result["timing"])
    for path in (rundir.llm, rundir.acp):
        os.close(open_plain(path, os.O_WRONLY | os.O_CREAT))
    if not rundir.prompts.exists():
        write_json(rundir.prompts, [])
    try:
        row = build_row(rundir, result=result, config=config)
        if _ended_by_key(result, row):
            row = build_row(rundir, result=result, config=config)
        write_whole(rundir.row, itertools.chain(row.chunks(), [b"\n"]))
        result["exchanges"] = row.summary
        result["agent_result"] = {**result["agent_result"], **row.usage}
        result["cost"] = cost_record(row.records, result, config)
        if result["cost"] is not None:
            result["agent_result"].update(
                cost_usd=result["cost"]["usd"], price_source=result["cost"].pop("price_source")
            )
        # Readers take a row that is not ready, with no error to explain it, for a fault of the record.
        result["partial_trajectory"] = result["partial_trajectory"] or row.reason == "partial_trajectory"
        result["training_ready"] = row.training_ready
        result["training_ready_reason"] = row.reason
    except Exception as error:
        result["export_error"] = f"{type(error).__name__}: {error}"
        result["error_details"] = result["error_details"] or traceback.format_exc()
    write_json(rundir.result, result)
    rollout = Rollout(rundir.path)
    skills = skill_facts(rollout)
    for record in (result, rollout.result):
        record.update(skills)
    report = run_checks(rollout)
    verdict, category = verdict_of(report.findings, result)
    result["verdict"], result["verdict_category"] = verdict, category
    result["checks"] = report.as_json()
    write_json(rundir.result, result)


def _ended_by_key(result: dict[str, Any], row: Row) -> bool:
    """Tell whether a rejected key left the policy without an answer, and name that as the error.

    However its agent ended then, also by a turn that looks whole, or by waiting until its time was up.
    """
    category = str(result["error_category"])
    if category not in (*_OF_UNANSWERED, *TIMEOUT_CATEGORIES) and not category.startswith("agent"):
        return False
    asked = sorted((e for e in row.records if e.role == "policy"), key=lambda e: e.order)
    if not asked or asked[-1].outcome != "error" or not asked[-1].metadata.get("rejected"):
        return False
    # What comes after the first is this package's own refusal to ask again.
    said = str(asked[-1].metadata["rejected"])
    first = next(exchange for exchange in asked if exchange.metadata.get("rejected") == said)
    if result["error"]:
        result["error_details"] = "\n".join(filter(None, (result["error"], result["error_details"])))
    result.update(error=f"{said}: {_words(first.response)}", error_category="auth", partial_trajectory=True)
    return True


def _words(body: Any) -> str:
    """Return what a provider says of a failure, shortened."""
    told = mapping(mapping(next(iter(sequence(body)), body)).get("error")).get("message")
    return told[:400] if isinstance(told, str) and told else dumps(body).decode()[:400]


def empty_result(rundir: RunDir, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return result.json of a rollout of which nothing is known but what was asked: all else is null, never 0."""
    asked = ("agent", "agent_version", "model", "skill_mode", "started_at", "source")
    unknown = (
        "task_skills_loading skill_catalog rewards step_rewards n_tool_calls n_skill_invocations n_prompts "
        "stop_reasons error error_category error_details verifier_error verifier_error_category export_error "
        "finished_at verifier_started_after_agent idle_before_timeout_s in_flight_at_timeout sandbox_id sandbox_kept "
        "agent_settings proxy cost"
    )
    return {
        "task_name": config.get("task_name"),
        "rollout_name": rundir.path.name,
        **{name: config.get(name) for name in asked},
        "agent_name": config.get("agent"),
        **dict.fromkeys(unknown.split()),
        "agent_result": {"cost_usd": None, "price_source": None, "usage_source": None, "reported": None},
        "partial_trajectory": None,
        "warnings": [],
        "timing": dict.fromkeys(("total", "agent_started_at", "agent_finished_at", "verifier_started_at")),
    }


def _result(state: RolloutState) -> dict[str, Any]:
    failure, report, outcomes = state.failure, state.report, state.outcomes
    rewards, verifier_error, verifier_category = _rewards(state)
    without_skills = state.cell.skill_mode == "no-skill"
    reported = [dict(outcome.reported_usage) for outcome in outcomes if outcome.reported_usage]
    result = empty_result(state.dir, state.config)
    source = state.cell.route.source if state.cell.route else None
    result["agent_result"].update(usage_source=source, reported=reported or None)
    return {
        **result,
        "n_skill_invocations": 0 if without_skills else None,
        "rewards": rewards,
        "step_rewards": {step.name or "task": dict(score.rewards or {}) for step, score in state.scores},
        "n_tool_calls": _tool_calls(state),
        "n_prompts": len(state.prompts),
        "stop_reasons": [outcome.stop_reason for outcome in outcomes],
        "error": failure.message if failure else None,
        "error_category": failure.category if failure else None,
        "error_details": failure.details if failure else None,
        "verifier_error": verifier_error,
        "verifier_error_category": verifier_category,
        "partial_trajectory": failure is not None or bool(report and report.in_flight),
        "warnings": [*state.warnings, *(report.warnings if report else ())],
        "finished_at": now(),
        "timing": _timing(state),
        "verifier_started_after_agent": _ordered(state),
        "idle_before_timeout_s": outcomes[-1].idle_before_timeout_s if outcomes else None,
        "in_flight_at_timeout": _in_flight(state),
        "sandbox_id": state.sandbox_id,
        "sandbox_kept": state.kept,
        "agent_settings": _settings(state),
        "proxy": {"received": report.received, "recorded": report.recorded} if report else None,
    }


def _tool_calls(state: RolloutState) -> int:
    """Count the agents' tool calls; of one that broke off without an outcome, those that it told of before."""
    counted = sum(outcome.n_tool_calls for outcome in state.outcomes)
    if len(state.outcomes) >= len(state.prompts):
        return counted
    told = set[str]()
    for event in Rollout(state.dir.path).events:
        if event.get("type") == "stop":  # what came before is an outcome's
            told.clear()
        elif event.get("type") in ("tool_call", "tool_call_update"):
            told.add(str(event.get("tool_call_id")))
    return counted + len(told)


def _rewards(state: RolloutState) -> tuple[dict[str, float] | None, str | None, str | None]:
    """Return (rewards, verifier error, its category); no reward without an error that says why."""
    for step, score in state.scores:
        if score.error:
            place = f"step {step.name}: " if step.name else ""
            return None, state.redactor.text(place + score.error), score.category
    scored = [score.rewards for step, score in state.scores if step.tests and score.rewards]
    if not scored:
        return (None, None, None) if state.failure else (None, "no step was scored", "no_reward")
    steps = sum(1 for step in state.cell.task.steps if step.tests)
    # Steps that were not reached for want of time count as 0, as those below a min_reward do; a fault scores nothing.
    if state.failure and state.failure.category != "timeout" and len(scored) < steps:
        return None, None, None
    return combine(scored, state.cell.task.multi_step_reward_strategy, steps), None, None


def _timing(state: RolloutState) -> dict[str, Any]:
    ends = {name: end for name, _start, end in state.spans}
    starts = {name: start for name, start, _end in reversed(state.spans)}
    return {
        **{name: round(seconds, 6) for name, seconds in state.seconds.items()},
        "agent_started_at": starts.get("agent_execution"),
        "agent_finished_at": ends.get("agent_execution"),
        "verifier_started_at": starts.get("verifier"),
    }


def _ordered(state: RolloutState) -> bool | None:
    """Tell whether each verifier began after the agent of its step had ended; None when none ran."""
    agent_ended: str | None = None
    verdicts = []
    for name, start, end in state.spans:
        if name == "agent_execution":
            agent_ended = end
        elif name == "verifier":
            verdicts.append(agent_ended is not None and agent_ended <= start)
    return all(verdicts) if verdicts else None


def _settings(state: RolloutState) -> dict[str, Any] | None:
    """Return whether the agent kept the settings it was launched with, the first prompt where it did not."""
    found = [dict(outcome.settings) for outcome in state.outcomes if outcome.settings]
    return next((each for each in found if not each["kept"]), found[-1] if found else None)


def _in_flight(state: RolloutState) -> str | None:
    tool = state.outcomes[-1].in_flight_at_timeout if state.outcomes else None
    exchange = state.report.in_flight[0] if state.report and state.report.in_flight else None
    return f"exchange {exchange}" if exchange else tool
