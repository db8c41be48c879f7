"""What happened stays so: no record of a rollout's end says less than another one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import evidence, is_ours
from pytest_benchflow.checks.execution import TIMEOUT_CATEGORIES
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from pytest_benchflow.records.rollout import Rollout

# Ends of an agent that are none of its own, by the type of the event or the reason that it gives.
_ENDS = re.compile(
    r"(?:(?:agent_|session_)?(?:timeout|crash(?:ed)?|killed|oom|budget\w*|max_turn\w*|max_token\w*)|"
    r"(?:agent|session)_error)\Z"
)
# What most events are, none of them an end.
_STEPS = ("tool_call", "tool_call_update", "agent_message", "agent_thought")
_BOX = r"(?:sandbox|container|workspace|vm|pod)"
_WENT = r"(?:deleted|removed|destroyed|evicted|terminated|lost)"
_LOST = re.compile(
    rf"\b{_BOX}\b[^.\n]{{0,60}}\b(?:{_WENT}|gone|not found|vanished|disappeared|stopped|no longer)\b|"
    rf"\b(?:{_WENT}|no such)\b[^.\n]{{0,40}}\b{_BOX}\b",
    re.IGNORECASE,
)
_BROKEN = re.compile(
    r"\bconnection (?:reset|refused|lost|closed|aborted)|\btransport (?:error|closed)|\bbroken pipe|"
    r"\bprovider (?:error|fail)|\brate.?limit|\b(?:502|503|504) |\bservice unavailable|"
    r"\bauthentication (?:error|fail)|\binvalid api key",
    re.IGNORECASE,
)
_INFRA = re.compile(
    r"infra|sandbox|transport|provider|lost_completion|deletion|deleted|credential|network", re.IGNORECASE
)
# Checks of what happened in the run; others may judge the same records better in a later version.
_EXECUTION = (
    "end_is_told",
    "no_completion_lost",
    "no_infrastructure_error",
    "sandbox_was_not_lost",
    "timeout_was_the_agents",
)


@check(category="infra", needs=("result",))
def check_sandbox_was_not_lost(rollout: Rollout) -> None:
    """No error that passes for the agent's time or the verifier's fault was a sandbox or provider that went away."""
    result = rollout.result
    if result.get("error_category") in TIMEOUT_CATEGORIES:
        said = str(result.get("error") or "")
        gone = _LOST.search(said) or _BROKEN.search(said) or _LOST.search(str(result.get("error_details") or ""))
        assert not gone, f"the rollout did not run out of time, its sandbox or provider failed: {said[:300]}"
    said, category = str(result.get("verifier_error") or ""), str(result.get("verifier_error_category") or "")
    gone = _LOST.search(said) or _INFRA.search(category)
    assert not gone, f"the verifier could not work, the sandbox was deleted or lost: {(said or category)[:300]}"


@check(category="infra", needs=("result",))
def check_end_is_told(rollout: Rollout) -> None:
    """An end that the events show (a timeout, a crash, a used-up budget) is in result.json too."""
    result = rollout.result
    if result.get("error") or result.get("error_category"):
        return
    for line, event in enumerate(rollout.events, 1):
        kind = event.get("type")
        if kind in _STEPS or event.get("phase") in ("verifier", "harness"):
            continue
        stops = kind in ("stop", "agent_stop")
        reason = str(event.get("stop_reason") or event.get("reason") or "") if stops else str(kind)
        assert not _ENDS.match(reason.lower()), (
            f"acp_trajectory.jsonl:{line} says that the agent ended with {reason}, and result.json has no error"
        )


@check(category="infra", needs=("result", "ours"))
def check_faults_found_before_are_told(rollout: Rollout) -> None:
    """A fault of the run that an earlier review recorded is still in result.json."""
    found = map(mapping, sequence(mapping(rollout.result.get("checks")).get("findings")))
    faults = [each for each in found if each.get("severity") == "error" and each.get("check") in _EXECUTION]
    told = any(rollout.result.get(key) for key in ("error", "error_category", "verifier_error"))
    assert told or not faults, (
        f"result.json: an earlier review found {faults[0].get('check')} ({str(faults[0].get('message'))[:200]}), "
        "and result.json has no error any more"
    )


@check(needs=("model", "result", "config"))
def check_setting_recorded(rollout: Rollout) -> None:
    """The records name the model, the skill mode, the agent's time limit and how often the agent was prompted."""
    result, config = rollout.result, rollout.config
    model = result.get("model") or config.get("model")
    assert isinstance(model, str) and model, f"result.json: model is {model!r}, not a name"
    if not is_ours(rollout):
        return
    for name, holder in (("skill_mode", config), ("timeout_sec", config), ("n_prompts", result)):
        evidence(rollout, holder.get(name), f"{name} ({'config' if holder is config else 'result'}.json)")
