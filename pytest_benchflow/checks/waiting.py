"""Nobody waited in vain: clients did not give up at a limit of their own, and answers reached the agent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import NotApplicableError, rebuilt
from pytest_benchflow.checks._times import between, moment
from pytest_benchflow.records.values import mapping, number
from pytest_benchflow.training.row import terminal_tools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.training.threads import Exchange

# An agent acts on an answer at once; one that has not for so long never saw it.
_UNSEEN_SEC = 60.0
_TIMED_OUT = re.compile(r"time[d_ -]{0,2}out|client_gone|client_disconnect|deadline", re.IGNORECASE)
# Seconds that are a limit of something, where no limit of the rollout has them.
_DEFAULTS = {
    30.0: "a usual default of HTTP clients",
    60.0: "a usual default of HTTP clients and of proxies between",
    100.0: "a usual default of proxies between",
    120.0: "a usual default of HTTP clients and of proxies between",
    300.0: "the default of the OpenHands SDK's client and of aiohttp's (ClientTimeout total)",
    600.0: "the default of the OpenAI and Anthropic clients",
}
_SAME = 0.03


@check(severity="warning", category="infra", needs=("model", "llm", "config"))
def check_clients_waited(rollout: Rollout) -> None:
    """The agent's client did not give up on two or more answers after the same time."""
    waits = sorted(_given_up(rollout), key=lambda wait: wait[1])
    for number_, (_, shortest) in enumerate(waits):
        # A client waits a little between two tries, and not always as long.
        group = [wait for wait in waits[number_:] if wait[1] <= shortest + max(1.0, _SAME * shortest)]
        assert len(group) < 2, (
            f"the client gave up on {len(group)} answers after about {shortest:.0f} s each (exchange "
            f"{', '.join(str(index) for index, _ in sorted(group))}): {_limit(rollout, shortest)}"
        )


@check(category="infra", needs=("model", "llm", "result", "config"))
def check_no_completion_lost(rollout: Rollout) -> None:
    """The policy's last answer reached the agent: its calls were made, or there was no time left to make them."""
    policy = [exchange for exchange in rebuilt(rollout).records if exchange.role == "policy"]
    last = max(policy, key=lambda exchange: exchange.order, default=None)
    if last is None or last.outcome != "completed" or last.answer is None or last.metadata.get("client_gone"):
        return
    ends = terminal_tools(rollout.result, rollout.config)
    calls = {call.id for call in last.answer.tool_calls if call.name not in ends}
    shown = {str(event.get("tool_call_id") or event.get("toolCallId")) for event in rollout.events}
    if not calls or calls & shown:
        return
    earlier = {call.id for exchange in policy if exchange.answer for call in exchange.answer.tool_calls} - calls
    if not earlier & shown:
        raise NotApplicableError("the agent's protocol has ids of its own for tool calls")
    left = _seconds_after(rollout, last)
    if left is None:
        raise NotApplicableError("when the last answer came is not recorded")
    assert left < _UNSEEN_SEC, (
        f"lost completion: the answer of exchange {last.index} was complete {left:.0f} s before the agent ended, and "
        "none of its calls was made"
    )


def _given_up(rollout: Rollout) -> Iterator[tuple[int, float]]:
    """Yield (index, seconds) for each request on which the client gave up before an answer came."""
    following: dict[Any, Exchange] = {}
    for exchange in sorted(rebuilt(rollout).records, key=lambda each: each.order, reverse=True):
        again = following.get(exchange.request_key)
        following[exchange.request_key] = exchange
        if exchange.selected:
            continue
        record = rollout.exchanges[exchange.index]
        error = mapping(record.get("error"))
        timed_out = bool(_TIMED_OUT.search(f"{error.get('type')} {error.get('message')}"))
        started, ended = (moment(mapping(record.get(key)).get("timestamp")) for key in ("request", "response"))
        retried = moment(mapping(rollout.exchanges[again.index].get("request")).get("timestamp")) if again else None
        overtaken = (between(retried, ended) or 0.0) > 0
        if not (timed_out or overtaken or exchange.metadata.get("client_gone")):
            continue
        took = number(record.get("duration_ms"))
        spans = [between(started, retried), None if took is None else took / 1000, between(started, ended)]
        # An error of the client ends when the client gave up; an answer that nobody waited for ends later.
        seconds = next((span for span in (spans[1:] + spans[:1] if timed_out else spans) if span is not None), 0.0)
        if seconds >= 1:
            yield exchange.index, seconds


def _limit(rollout: Rollout, seconds: float) -> str:
    """Return what limit of the rollout has such a length, or of what it is the default."""
    fits = [(name, limit) for name, limit in _limits(rollout.config) if limit - 1 <= seconds <= limit * (1 + _SAME) + 5]
    if fits:
        return f"{fits[0][0]} of config.json is {fits[0][1]:g} s"
    for limit, what in _DEFAULTS.items():
        if limit - 1 <= seconds <= limit * (1 + _SAME) + 5:
            return f"{limit:g} s is {what}, and no limit of config.json"
    return "no limit of config.json has this length; it is a limit of the agent's client or of a proxy between"


def _limits(config: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for step, limits in mapping(mapping(config.get("limits")).get("seconds")).items():
        for name, limit in mapping(limits).items():
            if (seconds := number(limit)) is not None:
                yield f"limits.seconds.{step}.{name}", seconds
    for name, value in mapping(config.get("agent_env")).items():
        if "TIMEOUT" in name.upper() and re.fullmatch(r"\d{1,7}(?:\.\d+)?", str(value)):
            yield f"agent_env.{name}", float(value)
    if (seconds := number(config.get("timeout_sec"))) is not None:
        yield "timeout_sec", seconds


def _seconds_after(rollout: Rollout, exchange: Exchange) -> float | None:
    """Return how long the agent went on after an answer was complete; None when that is not recorded."""
    ended = moment(mapping(rollout.exchanges[exchange.index].get("response")).get("timestamp"))
    stops = [event.get("timestamp") for event in rollout.events if event.get("type") in ("agent_timeout", "stop")]
    finished = mapping(rollout.result.get("timing")).get("agent_finished_at")
    stop = moment(finished) or next((at for stamp in stops if (at := moment(stamp))), None)
    return between(ended, stop)
