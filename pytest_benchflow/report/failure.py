"""Say why a rollout failed: what broke, where the logs are, what to try."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.values import FULL_REWARD, mapping, sequence
from pytest_benchflow.report.text import one_line, printable, reward_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout

# What to try, by the category of an error in the records.
_HINTS = {
    "timeout": "--benchflow-agent-timeout=SEC gives the agent more time",
    "idle_timeout": "--benchflow-idle-timeout=SEC lets the agent be silent for longer",
    "sandbox": "`pytest-benchflow doctor` says what each sandbox backend needs on this machine",
    "provider": "check the key and the name of the model; `pytest-benchflow doctor` shows what is set up",
    "auth": "set a valid key; --benchflow-resume then runs again what this one broke",
    "replay_mismatch": "the recording is of an older prompt or agent: record it again with --benchflow-record and a "
    "live --benchflow-model",
    "agent": "read the agent's own output; --benchflow-keep-sandbox leaves a local sandbox's files in place",
    "interrupted": "run it again; what it had done so far is under attempts/",
    "internal": "this is a fault of pytest-benchflow: please report it with error_details of result.json",
    "no_reward": "the verifier must write a finite number to /logs/verifier/reward.txt or reward.json",
    "invalid_reward": "the verifier must write a finite number to /logs/verifier/reward.txt or reward.json",
    "bootstrap": "the verifier lacks a tool, a module or a test of its own; another --benchflow-sandbox may have it",
    "crash": "run the agent oracle: when it fails too, the task's own verifier is broken",
}
# An error of the machine that came up where none is looked for: permission, no space, read-only, quota.
_OF_THE_MACHINE = re.compile(r"(?:OSError|PermissionError): \[Errno (?:13|28|30|122)\]")
_HINT_OF_MACHINE = (
    "this machine refused a file: make room, or name directories that can be written (--benchflow-jobs-dir, "
    "BENCHFLOW_CACHE_DIR, TMPDIR); error_details of result.json tells which it was"
)
_HINT_OF_SLOW_VERIFIER = "timeout_sec of the task's [verifier] gives its verifier more time"
_HINT_OF_ORACLE = "the task's own solution gets no score either: its verifier is broken, or misses something here"
_AGENT_TALLY = 4
_ERRORS = ("error", "verifier_error", "export_error")
_QUOTED = 100


# Agents that show whether a task can be solved, and must be: their reward is gated whatever the session's gate is.
JUDGED = ("oracle", "nop")


def why_failed(rollout: Rollout, gate: str) -> str | None:
    """Return why a rollout does not pass its gate, None when it does.

    The agents oracle and nop are gated on the reward always: they show that a task can be solved, and must be.
    """
    try:
        if not rollout.healthy:
            return _unhealthy(rollout)
        reason = _reward_reason(str(rollout.config.get("agent")), rollout.reward, gate)
    except RecordError as error:
        return f"the rollout left no readable record: {printable(error)}\n{_logs(rollout.path)}"
    return None if reason is None else f"{_title(rollout)}: {reason}\n{_logs(rollout.path)}"


def _reward_reason(agent: str, reward: float | None, gate: str) -> str | None:
    full = reward is not None and reward >= FULL_REWARD
    shown = reward_text(reward)
    if agent == "oracle" and not full:
        return (
            f"the reference solution got reward {shown}, where it must get 1; the solution or the verifier is broken, "
            "or they need something that this sandbox has not"
        )
    if agent == "nop" and full:
        return f"doing nothing got reward {shown}, where it must get less than 1; the verifier passes an untouched task"
    if gate == "reward" and agent not in JUDGED and not full:
        return f"the reward is {shown}, and --benchflow-gate=reward asks for 1"
    return None


def _unhealthy(rollout: Rollout) -> str:
    result = rollout.result
    category = result.get("verdict_category")
    lines = [f"{_title(rollout)}: {one_line(rollout.verdict)}{f' ({category})' if category else ''}"]
    for name in _ERRORS:
        if result.get(name):
            kind = result.get(f"{name}_category")
            said = printable(str(result[name]).strip(), limit=2000)
            lines.append(f"  {name.replace('_', ' ')}{f' ({kind})' if kind else ''}: {said}")
    lines += [f"  {finding}" for finding in finding_lines(result, but=lambda *said: repeats_error(result, *said))]
    lines.append(_logs(rollout.path))
    lines += [f"try: {hint}" for hint in hints(result)]
    return "\n".join(lines)


def finding_lines(result: dict[str, Any], *, but: Callable[[str, str], bool] = lambda *_: False) -> list[str]:
    """Return a line for each finding that result.json holds; `but` is true of those left out."""
    findings = [item for item in sequence(mapping(result.get("checks")).get("findings")) if isinstance(item, dict)]
    return [
        f"{one_line(finding.get('severity'))}: {one_line(finding.get('check'))}: "
        f"{one_line(finding.get('message'), limit=1000)}"
        for finding in findings
        if not but(str(finding.get("check")), str(finding.get("message")))
    ]


def repeats_error(result: dict[str, Any], check: str, message: str) -> bool:
    """Tell whether a finding only says again what an error in result.json says, or what follows from it."""
    errors = [_folded(result[name]) for name in _ERRORS if result.get(name)]
    if errors and check == "reward_is_finite" and result.get("rewards") is None:
        return True
    said = _folded(message)
    # Findings quote errors, and cut long ones.
    return any(error[:_QUOTED] in said for error in errors)


def _folded(text: object) -> str:
    # A finding is one line: the line ends of an error that it quotes are escapes there.
    return " ".join(str(text).replace("\\n", " ").split())


def hints(result: dict[str, Any]) -> list[str]:
    """Return what to try, by the categories of the errors that result.json holds."""
    of_verifier = {**_HINTS, "timeout": _HINT_OF_SLOW_VERIFIER}
    kinds = ((_HINTS, result.get("error_category")), (of_verifier, result.get("verifier_error_category")))
    known = [hints[str(kind)] for hints, kind in kinds if str(kind) in hints]
    if _OF_THE_MACHINE.match(str(result.get("error"))):
        known = [_HINT_OF_MACHINE if hint == _HINTS["internal"] else hint for hint in known]
    if result.get("agent") == "oracle":
        known = [_HINT_OF_ORACLE if hint == _HINTS["crash"] else hint for hint in known]
    return known or ["`pytest-benchflow show` with this directory tells the rollout step by step"]


def _title(rollout: Rollout) -> str:
    parts = [rollout.result.get(name) for name in ("task_name", "agent", "model")]
    return " · ".join(one_line(part) for part in parts if part and part != "none")


def _logs(path: Path) -> str:
    """Name the directory and the logs in it that hold something."""
    logs = [log for part in ("agent", "verifier") for log in sorted((path / part).glob("*")) if _filled(log)]
    names = ", ".join(printable(log.relative_to(path)) for log in logs[:_AGENT_TALLY])
    more = f" and {len(logs) - _AGENT_TALLY} more" if len(logs) > _AGENT_TALLY else ""
    return f"logs: {printable(path)}" + (f" ({names}{more})" if logs else "")


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
