"""Try a rollout again within a session, by what was at fault and by nothing else; every attempt stays on disk.

What the agent did is never tried again: a timeout, a used-up budget, a crash or a reward is a fact.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_benchflow.errors import BenchflowError, RecordError
from pytest_benchflow.rollout.run import run_cell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.rollout.cell import Cell
    from pytest_benchflow.rollout.host import Host

_PAUSE_SEC = 1.0
_LONGEST_PAUSE_SEC = 30.0
_ANY_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True)
class Rule:
    """How many further attempts a fault may have, within what --benchflow-retries allows; 0: none, and why."""

    most: int
    why: str


# By what result.json calls the fault; what is not named here is never tried again.
RULES: dict[str, Rule] = {
    "sandbox": Rule(_ANY_NUMBER, "a sandbox that could not be made, or broke, says nothing of the agent"),
    "sandbox_deleted": Rule(_ANY_NUMBER, "somebody else removed the sandbox"),
    "transport": Rule(_ANY_NUMBER, "the connection to the sandbox broke"),
    "lost_completion": Rule(_ANY_NUMBER, "the end of the agent's turn was lost on its way"),
    "provider_away": Rule(_ANY_NUMBER, "the model could not be reached, or its provider was overloaded or broken"),
    "verifier_crash": Rule(1, "once: a second crash is the verifier's own"),
    "verifier_bootstrap": Rule(1, "once: what it could not fetch may be there the next time"),
    "auth": Rule(0, "a rejected key stays rejected"),
    "provider": Rule(0, "a model or its provider that refuses a request refuses it again"),
    "replay_mismatch": Rule(0, "recorded answers do not change"),
    "timeout": Rule(0, "the agent's time is a condition of the task"),
    "idle_timeout": Rule(0, "an agent that fell silent is the agent's own doing until somebody has looked"),
    "budget": Rule(0, "what may be spent is spent"),
    "agent": Rule(0, "an agent that cannot start, or breaks its protocol, is at fault itself"),
    "agent_crashed": Rule(0, "a crash of the agent is its own"),
    "agent_refused": Rule(0, "a refusal of the model is its answer"),
    "verifier_timeout": Rule(0, "the verifier's time is a condition of the task"),
    "verifier_no_reward": Rule(0, "a verifier that ends without a reward does so again"),
    "verifier_invalid_reward": Rule(0, "what a verifier wrote is a fact"),
    "interrupted": Rule(0, "whoever interrupts wants it to end; --benchflow-resume fills it"),
    "internal": Rule(0, "a fault of this package is to be seen"),
    "capture": Rule(0, "a gap in the records is to be seen"),
}
_REJECTED = (401, 403)
_OVERLOADED = (408, 409, 425, 429)


async def run_retried(
    cell: Cell,
    *,
    host: Host | None = None,
    watch: Callable[[str], None] | None = None,
    retries: int = 0,
    may_spend: Callable[[], Awaitable[None]] | None = None,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Rollout:
    """Run a resolved cell, and again while its fault allows it, at most `retries` times more; return the last attempt.

    `may_spend` raises when no further attempt may start: then the one before stands. See `run_cell` for the rest.
    """
    used: dict[str, int] = {}
    rollout = await run_cell(cell, host=host, watch=watch)
    for number in range(retries):
        fault = fault_of(rollout)
        rule = RULES.get(fault) if fault else None
        if fault is None or rule is None or used.get(fault, 0) >= rule.most:
            break
        try:
            if may_spend is not None:
                await may_spend()
        except BenchflowError:
            break
        used[fault] = used.get(fault, 0) + 1
        await pause(min(_PAUSE_SEC * 2**number, _LONGEST_PAUSE_SEC))
        rollout = await run_cell(cell, host=host, watch=watch)
    return rollout


def fault_of(rollout: Rollout) -> str | None:
    """Return what is at fault in an unhealthy rollout, as `RULES` names it; None where it is healthy or nobody knows.

    A fault of the run comes before one of its verifier, and one that only a check found has no name here.
    """
    try:
        if rollout.healthy:
            return None
        category, verifier = (rollout.result.get(f"{name}error_category") for name in ("", "verifier_"))
        if category == "provider":
            return _fault_of_provider(rollout)
    except (RecordError, OSError):
        return "capture"
    if category:
        return str(category)
    return f"verifier_{verifier}" if verifier else None


def _fault_of_provider(rollout: Rollout) -> str:
    """Tell a rejected key and a refused request from a provider that was not there, by the last exchange."""
    last = next(iter(rollout.exchanges[-1:]), None)
    if last is None:
        return "provider"
    error, status = last.get("error") or {}, (last.get("response") or {}).get("status_code")
    if error.get("type") == "provider":
        return "provider_away"
    if status in _REJECTED:
        return "auth"
    away = isinstance(status, int) and (status >= 500 or status in _OVERLOADED)
    return "provider_away" if away else "provider"
