"""The rollout itself went well: no infrastructure fault, an agent that really ran, a verifier that scored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import NotApplicableError, evidence, is_ours, rebuilt, uses_model
from pytest_benchflow.checks._times import between, moment
from pytest_benchflow.records.values import FULL_REWARD, mapping, number

if TYPE_CHECKING:
    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.training.threads import Exchange

TIMEOUT_CATEGORIES = ("timeout", "agent_timeout")
# An agent that has shown nothing for this long, and for half of its time, was hanging and not working.
_SILENT_SEC = 60.0
_SILENT_PART = 0.5
# A provider that sent nothing for half of the agent's time was hanging, unless it is one that takes long to answer.
_SLOW_TIMES = 3.0
_WHOLE_PART = 0.9  # of its time: it was silent from its prompt to the end
# How harnesses call an end that came because nothing went on.
_NO_WORK = re.compile(
    r"\bidle|\binactiv|\bno (?:activity|output|progress)\b|\bstall(?:ed)?\b|\bhung\b|provider[ _]time", re.IGNORECASE
)
# Events that the harness writes around an agent's own.
_OURS = ("user_message", "cancel", "agent_timeout", "stop")


@check(category="infra", needs=("result",))
def check_no_infrastructure_error(rollout: Rollout) -> None:
    """The agent came to an end of its own, or ran out of time; nothing around it broke."""
    error, category = rollout.result.get("error"), rollout.result.get("error_category")
    if category in TIMEOUT_CATEGORIES or not (error or category):
        return
    raise AssertionError(f"the rollout failed with an error ({category or 'no category'}): {_short(error)}")


@check(category="infra", needs=("result",))
def check_timeout_was_the_agents(rollout: Rollout) -> None:
    """An agent that ran out of time was at work until then; a hung provider or a silent agent is no timeout."""
    result = rollout.result
    if result.get("error_category") not in TIMEOUT_CATEGORIES:
        return
    ends = [event for event in rollout.events if event.get("type") == "agent_timeout"]
    said = f"{result.get('error')} {ends[-1].get('reason') if ends else ''}"
    assert not _NO_WORK.search(said), f"the agent was not at work when its time was up: {_short(said)}"
    if uses_model(rollout):
        answered = any(e["outcome"] == "completed" and e["role"] == "policy" for e in rebuilt(rollout).exchanges)
        assert answered, "the agent timed out before the model answered once"
    limit = _time_of_agent(rollout)
    waited, usual = _waited(rollout), _longest_answer(rollout)
    patience = max(_SILENT_PART * limit or _SILENT_SEC, _SLOW_TIMES * usual)
    assert waited is None or waited < patience, f"the provider had not answered for {waited:.0f} s when the time was up"
    idle, what = _idle(rollout), "how long the agent was silent (idle_before_timeout_s)"
    if idle is None and not uses_model(rollout):
        raise NotApplicableError(f"{what} is not recorded of an agent that calls no model and speaks no protocol")
    idle = evidence(rollout, idle, what)
    shown = rollout.exchanges or any(event.get("type") not in _OURS for event in rollout.events)
    assert shown or not 0 < _WHOLE_PART * limit <= idle, "the agent showed nothing at all before its time was up"
    in_flight = result.get("in_flight_at_timeout")
    if in_flight and (waited is not None or not str(in_flight).startswith("exchange")):
        return
    assert idle < max(_SILENT_SEC, _SILENT_PART * limit), (
        f"the agent was silent for {idle:g} s before its time was up ({in_flight or 'nothing in flight'})"
    )


def _time_of_agent(rollout: Rollout) -> float:
    """Return how long the agent had, in seconds: its limit, or what it took where that is less; 0 when unknown."""
    limit = number(rollout.config.get("timeout_sec")) or 0.0
    if not is_ours(rollout):
        return limit
    timing = mapping(rollout.result.get("timing"))
    took = between(moment(timing.get("agent_started_at")), moment(timing.get("agent_finished_at")))
    return min(limit or took, took) if took else limit


@check(category="capture", needs=("model", "result"))
def check_trajectory_is_whole(rollout: Rollout) -> None:
    """A rollout that ended without an error has a whole trajectory: its last policy request was answered."""
    result = rollout.result
    cut = any(event.get("terminal_trajectory_complete") is False for event in rollout.events)
    assert not cut, "acp_trajectory.jsonl: the end of the agent says that its trajectory is not complete"
    if result.get("error") or result.get("verifier_error"):
        return
    assert not result.get("partial_trajectory"), "result.json: the trajectory is partial, though no error says why"
    export = result.get("export_error")
    assert not export, f"result.json: the row could not be built: {_short(export)}"


@check(category="verifier", needs=("result",))
def check_verifier_had_no_error(rollout: Rollout) -> None:
    """The verifier ran to its end."""
    error, category = rollout.result.get("verifier_error"), rollout.result.get("verifier_error_category")
    assert not (error or category), f"the verifier failed ({category or 'no category'}): {_short(error)}"


@check(category="verifier", needs=("result",))
def check_reward_is_finite(rollout: Rollout) -> None:
    """The verifier gave a finite reward."""
    rewards = rollout.result.get("rewards")
    assert rollout.reward is not None, f"no finite reward: rewards is {_short(rewards)}"


@check(category="verifier", needs=("result",))
def check_verifier_started_after_agent(rollout: Rollout) -> None:
    """Law 8: verification began after the agent's process tree was dead."""
    result = rollout.result
    if rollout.reward is None:
        return
    ordered = result.get("verifier_started_after_agent")
    assert ordered is not False, "the verifier started before the agent had ended"
    timing = result.get("timing")
    ended, started = (mapping(timing).get(key) for key in ("agent_finished_at", "verifier_started_at"))
    if _one_step(result):
        early = (between(moment(ended), moment(started)) or 0.0) < 0
        assert not early, f"the verifier started at {started}, before the agent ended at {ended}"
    evidence(rollout, ordered, "whether the verifier started after the agent (verifier_started_after_agent)")


@check(category="capture", needs=("result", "ours"))
def check_verdict_agrees(rollout: Rollout) -> None:
    """The recorded verdict is one that the recorded facts allow."""
    verdict = rollout.result.get("verdict")
    if verdict is None:
        raise NotApplicableError("no verdict has been given yet")
    timed_out = rollout.result.get("error_category") in TIMEOUT_CATEGORIES
    broken = bool(rollout.result.get("error")) and not timed_out
    assert not (broken and verdict != "unhealthy"), f"the verdict is {verdict}, though the rollout ended with an error"
    assert not (timed_out and verdict in ("pass", "fail")), f"the verdict is {verdict}, though the agent timed out"
    assert timed_out or verdict != "normal_timeout", "the verdict is normal_timeout, and no error says so"
    solved = rollout.reward is not None and rollout.reward >= FULL_REWARD
    assert not (verdict == "pass" and not solved), f"the verdict is pass with the reward {rollout.reward}"
    assert not (verdict == "fail" and solved), f"the verdict is fail with the reward {rollout.reward}"


def _one_step(result: Any) -> bool:
    """Tell whether the phases came once each: in a task of several steps they alternate."""
    steps = result.get("step_rewards")
    return not isinstance(steps, dict) or len(steps) < 2


def _idle(rollout: Rollout) -> float | None:
    """Return how long the agent was silent before its time was up, as recorded or else as its events show."""
    recorded = number(rollout.result.get("idle_before_timeout_s"))
    if recorded is not None or is_ours(rollout):
        return recorded
    stamps = [moment(event.get("timestamp") or event.get("ts")) for event in rollout.events]
    end = next((n for n, event in enumerate(rollout.events) if event.get("type") == "agent_timeout"), None)
    shown = next((stamp for stamp in reversed(stamps[:end]) if stamp), None) if end else None
    return between(shown, stamps[end]) if end else None


def _waited(rollout: Rollout) -> float | None:
    """Return for how many seconds the model sent nothing to an agent that waited for it when its time was up.

    None: the agent did not wait for its model.
    """
    in_flight = str(rollout.result.get("in_flight_at_timeout")).startswith("exchange")
    exchanges = sorted(rebuilt(rollout).records, key=lambda exchange: exchange.order)
    policy = [exchange for exchange in exchanges if exchange.role == "policy"]
    for last in (*policy[-1:], *(exchanges[-1:] if in_flight else ())):
        waited = _open_for(rollout, last)
        if waited is not None:
            return waited
    return None


def _open_for(rollout: Rollout, last: Exchange) -> float | None:
    """Return how long no byte of the last answer had come when the agent's time was up; None: it was there by then."""
    record = rollout.exchanges[last.index]
    took = number(record.get("duration_ms"))
    asked = moment(mapping(record.get("request")).get("timestamp"))
    waited = between(asked, moment(mapping(rollout.result.get("timing")).get("agent_finished_at")))
    if took is None or waited is None:
        return None if took is None or last.outcome != "error" else took / 1000
    # Where answers are not drained, the agent's end is the end of its requests too.
    cut = last.outcome != "completed" and last.metadata.get("client_gone") is True
    if took / 1000 < waited and not cut:
        return None
    return waited - (number(last.metadata.get("last_byte_ms")) or 0.0) / 1000


def _longest_answer(rollout: Rollout) -> float:
    """Return the seconds that the slowest of the policy's answers took, the last request left out."""
    policy = sorted((e for e in rebuilt(rollout).records if e.role == "policy"), key=lambda exchange: exchange.order)
    answered = [exchange for exchange in policy[:-1] if exchange.outcome == "completed"]
    took = [number(rollout.exchanges[exchange.index].get("duration_ms")) for exchange in answered]
    return max((each for each in took if each is not None), default=0.0) / 1000


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 500 else f"{text[:500]}…"
