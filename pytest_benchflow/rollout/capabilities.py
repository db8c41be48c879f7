"""Judge what an agent supports by what its runs left; what a rollout cannot do without is required."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.records.values import mapping
from pytest_benchflow.rollout.scenarios import LONG, long_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchflow.rollout.probing import Evidence, Seen

Status = Literal["supported", "not supported", "not applicable"]


class Judgement(NamedTuple):
    """What became of a capability, and what shows it."""

    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Capability:
    """Something an agent may be able to do; `judge` gets what the run of its scenario left, and what was seen."""

    name: str
    scenario: str
    claim: str
    judge: Callable[[Evidence, Seen], Judgement]
    required: bool = True


def judge(capability: Capability, evidence: Evidence) -> Judgement:
    """Say whether a run shows that its agent has a capability."""
    reason = never_prompted(evidence)
    if reason is not None or evidence.seen is None:
        return _no(str(reason))
    status, detail = capability.judge(evidence, evidence.seen)
    return Judgement(status, str(evidence.redact(detail)))


def never_prompted(evidence: Evidence) -> str | None:
    """Say why a run never came to its prompt, which is no capability's own fault; None when it did."""
    if evidence.seen is None:
        return f"its run broke off: {evidence.error}"
    if any(event["type"] == "user_message" for event in evidence.events):
        return None
    return str(evidence.redact(f"it was not ready for a prompt: {_end(evidence, evidence.seen)}"))


def _yes(detail: str = "") -> Judgement:
    return Judgement("supported", detail)


def _no(detail: str) -> Judgement:
    return Judgement("not supported", detail)


def _moot(detail: str) -> Judgement:
    return Judgement("not applicable", detail)


def _end(evidence: Evidence, seen: Seen) -> str:
    """Say how the turn ended."""
    outcome = seen.outcome
    if outcome.stop == "timeout":
        return f"its turn had not ended after {evidence.timeout_sec:g} s"
    if outcome.stop == "idle":
        return f"it hung: it was silent for {outcome.idle_before_timeout_s:.0f} s, with no model call open"
    if outcome.error:
        return outcome.error
    return f"its turn ended with {outcome.stop_reason or outcome.stop}"


def _unless_finished(evidence: Evidence, seen: Seen) -> Judgement | None:
    return None if seen.outcome.stop == "finished" else _no(_end(evidence, seen))


def _no_tool(evidence: Evidence) -> Judgement | None:
    """Say that nothing runs a command, None when something does."""
    if any(asked.tool for asked in evidence.heard):
        return None
    if not evidence.heard:
        return _no("its model was never asked")
    offered = sorted({name for asked in evidence.heard for name in asked.tools})
    return _moot(f"no tool runs a command; it offers {', '.join(offered) or 'none'}")


def _results(evidence: Evidence) -> str:
    return "\n".join(turn.text for asked in evidence.heard for turn in asked.results())


def _initialize(evidence: Evidence, seen: Seen) -> Judgement:  # noqa: ARG001 - as every judge
    if not evidence.messages:
        return _moot("it is not driven over the Agent Client Protocol")
    results = (mapping(mapping(message.get("msg")).get("result")) for message in evidence.messages)
    about = next((result for result in results if "protocolVersion" in result), {})
    who = mapping(about.get("agentInfo"))
    named = " ".join(str(who[key]) for key in ("name", "version") if who.get(key))
    stray = next((mapping(event.get("stray_stdout")) for event in evidence.events if event["type"] == "stop"), {})
    other = f"; {stray['bytes']} bytes on stdout were no protocol" if stray.get("bytes") else ""
    return _yes(f"{named or 'it does not say who it is'}{other}")


def _text(evidence: Evidence, seen: Seen) -> Judgement:
    if evidence.signs.text not in evidence.said:
        return _unless_finished(evidence, seen) or _no("its client did not hear what the model said")
    return _unless_finished(evidence, seen) or _yes()


def _tool_call(evidence: Evidence, seen: Seen) -> Judgement:
    moot = _no_tool(evidence)
    if moot:
        return moot
    if seen.ran != ("1",):
        return _no(f"the command ran {len(seen.ran)} times; {_end(evidence, seen)}{_told(evidence)}")
    if evidence.signs.result(1) not in _results(evidence):
        return _no(f"the command ran, and the model did not get what it printed; {_end(evidence, seen)}")
    tool = next(asked.tool.name for asked in evidence.heard if asked.tool)
    return _unless_finished(evidence, seen) or _yes(f"tool {tool}")


def _told(evidence: Evidence) -> str:
    """Quote what the model got in place of a result."""
    text = " ".join(_results(evidence).split())
    return f"; the model was told: {text[:200]}" if text else ""


def _parallel_calls(evidence: Evidence, seen: Seen) -> Judgement:
    moot = _no_tool(evidence)
    if moot:
        return moot
    if sorted(seen.ran) != ["1", "2"]:
        return _no(f"of two calls in one answer ran: {', '.join(seen.ran) or 'none'}{_told(evidence)}")
    together = [
        asked
        for asked in evidence.heard
        if len({turn.tool_call_id for turn in asked.results()}) >= 2
        and all(any(evidence.signs.result(n) in turn.text for turn in asked.results()) for n in (1, 2))
    ]
    if not together:
        return _no("both calls ran, and the model did not get both results under ids of their own")
    return _unless_finished(evidence, seen) or _yes()


def _long_prompt(evidence: Evidence, seen: Seen) -> Judgement:
    if any(evidence.prompt in turn.text for asked in evidence.heard for turn in asked.turns if turn.role == "user"):
        return _yes()
    return _no(f"the model did not get the whole prompt of {len(evidence.prompt)} bytes; {_end(evidence, seen)}")


def _long_answer(evidence: Evidence, seen: Seen) -> Judgement:
    whole = long_text(evidence.signs.token)
    if whole not in evidence.said:
        return _no(f"its client heard {len(evidence.said)} of {len(whole)} bytes; {_end(evidence, seen)}")
    incoming = [len(dumps(message.get("msg"))) for message in evidence.messages if message.get("dir") == "in"]
    longest = f"its longest line had {max(incoming)} bytes" if incoming else ""
    return _unless_finished(evidence, seen) or _yes(longest)


def _long_output(evidence: Evidence, seen: Seen) -> Judgement:
    moot = _no_tool(evidence)
    if moot:
        return moot
    if seen.ran != ("1",):
        return _no(f"the command ran {len(seen.ran)} times; {_end(evidence, seen)}{_told(evidence)}")
    shown = max((turn.text.count("x") for asked in evidence.heard for turn in asked.results()), default=0)
    return _unless_finished(evidence, seen) or _yes(f"about {shown} of {LONG} bytes reached the model")


def _tool_error(evidence: Evidence, seen: Seen) -> Judgement:
    moot = _no_tool(evidence)
    if moot:
        return moot
    results = _results(evidence)
    if evidence.signs.result(1) not in results:
        return _no(f"the model did not get what the failing command printed; {_end(evidence, seen)}{_told(evidence)}")
    status = re.search(r"\b3\b", results.replace(evidence.signs.token, ""))
    shown = "with its exit status" if status else "its exit status is not in it"
    return _unless_finished(evidence, seen) or _yes(shown)


def _permission_refused(evidence: Evidence, seen: Seen) -> Judgement:
    moot = _no_tool(evidence)
    if moot:
        return moot
    if not any(event["type"] == "permission" for event in evidence.events):
        return _moot("it asks for no permission")
    if seen.ran:
        return _no("it ran a command for which permission was refused")
    if seen.outcome.stop in ("timeout", "idle", "crashed"):
        return _no(f"the command did not run, and {_end(evidence, seen)}")
    return _yes(_end(evidence, seen))


def _retries(evidence: Evidence, seen: Seen) -> Judgement:
    if seen.outcome.stop == "finished" and evidence.signs.text in evidence.said:
        return _yes(_requests(evidence))
    if not evidence.heard:
        return _no("its model was never asked")
    return _no(f"after {_requests(evidence)} {_end(evidence, seen)}")


def _requests(evidence: Evidence) -> str:
    number = len(evidence.heard)
    return f"{number} request{'' if number == 1 else 's'}"


def _comes_to_an_end(evidence: Evidence, seen: Seen) -> Judgement:
    asked = f"{_requests(evidence)} in {seen.seconds:.0f} s"
    if not evidence.heard:
        return _no("its model was never asked")
    if seen.outcome.stop == "idle" or (seen.outcome.stop == "timeout" and seen.silent_sec > evidence.idle_sec):
        return _no(f"{asked}, the last one {seen.silent_sec:.0f} s before; {_end(evidence, seen)}")
    if seen.outcome.stop == "timeout":
        return _yes(f"{asked}: it was still trying when its time was up")
    return _yes(f"{asked}, then {_end(evidence, seen)}")


def _streams(evidence: Evidence) -> Judgement | None:
    if not evidence.heard:
        return _no("its model was never asked")
    return None if any(asked.streamed for asked in evidence.heard) else _moot("it asks for no stream")


def _retries_cut(evidence: Evidence, seen: Seen) -> Judgement:
    return _streams(evidence) or _retries(evidence, seen)


def _ends_after_cut(evidence: Evidence, seen: Seen) -> Judgement:
    return _streams(evidence) or _comes_to_an_end(evidence, seen)


def _cancelled(evidence: Evidence, seen: Seen) -> Judgement:
    if not any(event["type"] == "cancel" for event in evidence.events):
        return _moot(f"there was nothing to cancel: {_end(evidence, seen)}")
    if seen.outcome.stop == "cancelled":
        return _yes()
    return _no(f"after session/cancel {_end(evidence, seen)}")


def _tool_cancelled(evidence: Evidence, seen: Seen) -> Judgement:
    return _no_tool(evidence) or _cancelled(evidence, seen)


def _leaves_nothing(evidence: Evidence, seen: Seen) -> Judgement:
    if seen.survivors:
        return _no(f"{len(seen.survivors)} processes outlived it: {'; '.join(seen.survivors)[:400]}")
    if not any(event["type"] == "cancel" for event in evidence.events):
        return _moot(f"there was nothing to cancel: {_end(evidence, seen)}")
    return _yes()


def _crash(evidence: Evidence, seen: Seen) -> Judgement:
    if seen.survivors:
        return _no(f"{len(seen.survivors)} processes outlived it: {'; '.join(seen.survivors)[:400]}")
    if seen.outcome.stop != "crashed":
        return _no(f"its first process was killed, and {_end(evidence, seen)}")
    return _yes((seen.outcome.error or "").partition(";")[0])


CAPABILITIES = (
    Capability("initialize", "text", "answers initialize and session/new", _initialize),
    Capability("text", "text", "passes on what the model says, and ends its turn", _text),
    Capability("tool_call", "tool_call", "runs a command once and gives its output to the model", _tool_call),
    Capability("parallel_calls", "parallel_calls", "runs both calls of one answer", _parallel_calls, required=False),
    Capability("long_prompt", "long_prompt", "takes a prompt of over 64 KiB in one line", _long_prompt, required=False),
    Capability("long_answer", "long_answer", "passes on an answer of over 64 KiB whole", _long_answer),
    Capability("long_output", "long_output", "goes on after a command printed a line of over 64 KiB", _long_output),
    Capability("tool_error", "tool_error", "tells the model of a command that failed, and goes on", _tool_error),
    Capability("permission_refused", "permission_refused", "does not do what is refused", _permission_refused),
    Capability("error_retried", "model_error_once", "asks again after HTTP 500", _retries, required=False),
    Capability("error_ends", "model_error", "does not hang when its model answers HTTP 500", _comes_to_an_end),
    Capability("cut_retried", "stream_cut", "asks again after a stream was cut", _retries_cut, required=False),
    Capability("cut_ends", "stream_cut", "does not hang after a stream was cut", _ends_after_cut),
    Capability(
        "cancel_model", "hung_model", "ends its turn when cancelled in a model call", _cancelled, required=False
    ),
    Capability("cancel_tool", "cancel", "ends its turn when cancelled in a command", _tool_cancelled, required=False),
    Capability("cancel_leaves_nothing", "cancel", "leaves no process after it was cancelled", _leaves_nothing),
    Capability("crash_leaves_nothing", "crash", "leaves no process, and its end is noticed, when it dies", _crash),
)
