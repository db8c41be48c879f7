"""Complete a rollout's records: result.json, the trainer row, the checks and the verdict."""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._check import run_checks
from pytest_benchflow.checks.verdict import verdict_of
from pytest_benchflow.records.journal import write_json
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.rollout.state import now
from pytest_benchflow.rollout.verify import combine
from pytest_benchflow.training.row import build_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.rollout.state import RolloutState


def finish(state: RolloutState) -> None:
    """Write everything that a rollout leaves at its end; called exactly once, also after a failure."""
    state.events.close()
    state.seconds["total"] = time.monotonic() - state.started
    if state.watch:
        state.watch("records")
    result = state.redactor.value(_result(state))
    result["redactions"] = state.redactor.count
    complete(state.dir, result, state.redactor.value(state.config))


def complete(rundir: RunDir, result: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Add to `result` what follows from the records on disk, and write row, timing and result.json."""
    write_json(rundir.timing, result["timing"])
    for path in (rundir.llm, rundir.acp):
        path.touch()
    if not rundir.prompts.exists():
        write_json(rundir.prompts, [])
    try:
        row = build_row(rundir, result=result, config=config)
        rundir.row.write_bytes(row.line() + b"\n")
        result["exchanges"] = row.summary
        result["agent_result"] = {**result["agent_result"], **row.usage}
        # Readers take a row that is not ready, with no error to explain it, for a fault of the record.
        result["partial_trajectory"] = result["partial_trajectory"] or row.reason == "partial_trajectory"
        result["training_ready"] = row.training_ready
        result["training_ready_reason"] = row.reason
    except Exception as error:
        result["export_error"] = f"{type(error).__name__}: {error}"
        result["error_details"] = result["error_details"] or traceback.format_exc()
    write_json(rundir.result, result)
    report = run_checks(Rollout(rundir.path))
    verdict, category = verdict_of(report.findings, result)
    result["verdict"], result["verdict_category"] = verdict, category
    result["checks"] = report.as_json()
    write_json(rundir.result, result)


def _result(state: RolloutState) -> dict[str, Any]:
    cell, failure = state.cell, state.failure
    rewards, verifier_error, verifier_category = _rewards(state)
    agent_failed = failure is not None
    return {
        "task_name": cell.task.name,
        "rollout_name": state.dir.path.name,
        "agent": cell.agent.name,
        "agent_name": cell.agent.name,
        "agent_version": cell.agent.version,
        "model": cell.model,
        "skill_mode": cell.skill_mode,
        "task_skills_loading": 0 if cell.skill_mode == "no-skill" else None,
        "skill_catalog": None,
        "rewards": rewards,
        "step_rewards": {step.name or "task": dict(score.rewards or {}) for step, score in state.scores},
        "n_tool_calls": sum(outcome.n_tool_calls for outcome in state.outcomes),
        "n_skill_invocations": 0,
        "n_prompts": len(state.prompts),
        "agent_result": {
            "cost_usd": None,
            "price_source": None,
            "usage_source": "provider" if cell.route else None,
            "reported": [dict(o.reported_usage) for o in state.outcomes if o.reported_usage] or None,
        },
        "stop_reasons": [outcome.stop_reason for outcome in state.outcomes],
        "error": failure.message if failure else None,
        "error_category": failure.category if failure else None,
        "error_details": failure.details if failure else None,
        "verifier_error": verifier_error,
        "verifier_error_category": verifier_category,
        "export_error": None,
        "partial_trajectory": agent_failed or bool(state.report and state.report.in_flight),
        "warnings": _warnings(state),
        **_times(state),
        "idle_before_timeout_s": state.outcomes[-1].idle_before_timeout_s if state.outcomes else None,
        "in_flight_at_timeout": _in_flight(state),
        "sandbox_id": state.sandbox_id,
        "sandbox_kept": state.kept,
        "proxy": {"received": state.report.received, "recorded": state.report.recorded} if state.report else None,
        "source": state.config["source"],
    }


def _warnings(state: RolloutState) -> list[str]:
    of_route = state.cell.route.warnings if state.cell.route else ()
    of_gateway = state.report.warnings if state.report else ()
    return [*of_route, *of_gateway, *state.warnings]


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
    if state.failure and len(scored) < steps:
        return None, None, None
    return combine(scored, state.cell.task.multi_step_reward_strategy, steps), None, None


def _times(state: RolloutState) -> dict[str, Any]:
    agent_end = state.moments.get("agent_execution_finished_at")
    verifier_start = state.moments.get("verifier_started_at")
    # In a task of several steps the phases alternate; `Sandbox.enter` proves each agent dead before its verifier.
    ordered = bool(agent_end and verifier_start) and (len(state.scores) > 1 or agent_end <= verifier_start)  # type: ignore[operator]
    return {
        "started_at": state.started_at,
        "finished_at": now(),
        "timing": {
            **{name: round(seconds, 6) for name, seconds in state.seconds.items()},
            "agent_started_at": state.moments.get("agent_execution_started_at"),
            "agent_finished_at": agent_end,
            "verifier_started_at": verifier_start,
        },
        "verifier_started_after_agent": ordered if verifier_start else None,
    }


def _in_flight(state: RolloutState) -> str | None:
    tool = state.outcomes[-1].in_flight_at_timeout if state.outcomes else None
    exchange = state.report.in_flight[0] if state.report and state.report.in_flight else None
    return f"exchange {exchange}" if exchange else tool
