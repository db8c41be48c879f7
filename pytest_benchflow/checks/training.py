"""The row is what a trainer may read, and it says so only when that is true."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import is_ours, rebuilt, row_parts, the_row
from pytest_benchflow.dialects._responses_items import ACTION_PARAMETERS
from pytest_benchflow.records.values import integer, mapping, sequence
from pytest_benchflow.training.messages import REASONING_KEYS, REASONING_TEXTS, REASONING_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.records.rollout import Rollout

_MADE_ID = re.compile(r"-[0-9a-f]{16}\Z")
_ROLES = ("system", "user", "assistant", "tool")
_LEAKS = REASONING_KEYS | {
    "gold",
    "gold_solution",
    "verify_source",
    "tools_py",
    "initial_db",
    "db_json",
    "target_constants",
}
# Parts of a row that are what a provider or an agent sent, in the rebuilt row too.
_UNMADE = ("tool_defs", "response")


@check(category="training", needs=("row", "result"))
def check_training_ready_is_true_to_the_records(rollout: Rollout) -> None:
    """Law 5: the row is marked ready exactly when the raw records allow it, and says why when not."""
    info = the_row(rollout).get("info")
    info = info if isinstance(info, dict) else {}
    ready, reason = info.get("training_ready"), info.get("training_ready_reason")
    assert isinstance(ready, bool), f"results.jsonl: training_ready is {ready!r}, not true or false"
    row = rebuilt(rollout)
    assert ready == row.training_ready, (
        f"results.jsonl: training_ready is {ready}; by the records it is {row.training_ready} ({row.reason})"
    )
    error = the_row(rollout).get("error")
    if ready:
        assert reason is None, f"results.jsonl: a ready row has the reason {reason!r}"
        assert error is None, f"results.jsonl: a ready row carries the error {error!r}"
    else:
        assert reason, "results.jsonl: a row that is not ready gives no reason"
        assert error is not None, "results.jsonl: a row that is not ready carries no error payload"


@check(category="training", needs=("model", "row", "result"))
def check_finished_rollouts_train(rollout: Rollout) -> None:
    """Law 5: a rollout that ended well and was scored gives a row that may train."""
    result = rollout.result
    if any(result.get(key) for key in ("error", "error_category", "verifier_error", "verifier_error_category")):
        return
    if rollout.reward is None:
        return
    row = rebuilt(rollout)
    said = row.row["error"]["message"] if row.row["error"] else ""
    assert row.training_ready, f"the rollout cannot train: {row.reason}: {said}"


@check(category="training", needs=("row",))
def check_no_step_truncated(rollout: Rollout) -> None:
    """No step is marked truncated: a truncated exchange never becomes one."""
    steps = sequence(the_row(rollout).get("trajectory"))
    cut = [number for number, step in enumerate(steps) if _flag(step, "is_truncated")]
    info = the_row(rollout).get("info")
    if cut and isinstance(info, dict) and info.get("training_ready") is False and not is_ours(rollout):
        return
    assert not cut, f"results.jsonl: trajectory[{cut[0]}] is marked truncated, though its exchange was selected"


@check(category="training", needs=("llm", "row", "result"))
def check_row_rebuilds(rollout: Rollout) -> None:
    """Law 4: what the raw trajectory says, rebuilt, is what the row on disk says."""
    fresh, stored = rebuilt(rollout).row, the_row(rollout)
    differ = _differ if is_ours(rollout) else _say_differently
    different = differ(fresh, stored, ("prompt", "completion"))
    # Which steps there are is law 2; what is in each is this one.
    steps = {_exchange_index(step): step for step in fresh["trajectory"]}
    for number, step in enumerate(sequence(stored.get("trajectory"))):
        twin = steps.get(_exchange_index(step))
        if twin is not None:
            keys = differ(twin, step, ("prompt", "completion", "response", "extras"))
            different += [f"trajectory[{number}].{key}" for key in keys]
    assert not different, f"results.jsonl: {', '.join(different)} differ from the row rebuilt from the raw trajectory"


@check(category="training", needs=("row", "result"))
def check_row_reward_agrees(rollout: Rollout) -> None:
    """The row's reward is the one in result.json."""
    row = the_row(rollout)
    for key in ("reward", "score"):
        value = row.get(key, rollout.reward)
        assert value == rollout.reward and not isinstance(value, bool), (
            f"results.jsonl: {key} is {value!r}; result.json has the reward {rollout.reward!r}"
        )


@check(category="training", needs=("row",))
def check_messages_well_formed(rollout: Rollout) -> None:
    """Messages have a known role, one system message at most and first, and every result follows its call."""
    row = the_row(rollout)
    _listed("results.jsonl", row, required=True)
    conversations = list(_conversations(row))
    for where, holder, _, _ in conversations:
        _listed(where, holder, required=False)
    _, _, prompt, completion = conversations[0]
    answered = any(mapping(message).get("role") == "assistant" for message in [*prompt, *completion])
    ready = mapping(row.get("info")).get("training_ready") is True
    assert answered or not ready, "results.jsonl: the row is ready for training, and holds no answer"
    tools = row.get("tool_defs", row.get("tools"))
    offers_tools = bool(tools) and tools != "[]"
    known: list[Any] = []
    called: set[str] = set()
    for where, _, prompt, completion in conversations:
        # A step's prompt mostly repeats the one before it, which has been looked at.
        start = len(known) if prompt[: len(known)] == known else 0
        called = called if start else set()
        _well_formed(where, start, prompt[start:], called, offers_tools=offers_tools)
        known = prompt
        _well_formed(where, len(prompt), completion, called.copy(), offers_tools=offers_tools)


@check(category="training", needs=("row",))
def check_row_is_strict_json(rollout: Rollout) -> None:
    """No number in the row is NaN or infinite, and arguments are JSON objects in strings."""
    row = the_row(rollout)
    for key in ("reward", "score"):
        value = row.get(key)
        assert not isinstance(value, float) or math.isfinite(value), f"results.jsonl: {key} is {value}, not finite"
    # The messages of the rebuilt row are strict.
    for where, _, part in row_parts(rollout):
        for messages in _messages(part):
            for message in messages:
                for call in sequence(mapping(message).get("tool_calls")):
                    _strict_arguments(where, call)


@check(category="conduct", needs=("row",))
def check_no_leaked_keys(rollout: Rollout) -> None:
    """No solution, hidden test data or private reasoning is in the row, at any depth."""
    leaked = next(_leaks(rollout), None)
    assert leaked is None, f"{leaked} is banned from training rows"


def _differ(fresh: dict[str, Any], stored: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if fresh[key] != stored.get(key)]


def _say_differently(fresh: dict[str, Any], stored: dict[str, Any], _keys: tuple[str, ...]) -> list[str]:
    """Compare what the model says: other tools may window its prompts, and keep its answers in their own way."""
    mine, theirs = fresh["completion"], sequence(stored.get("completion"))
    if mine == theirs:
        return []
    if [message["role"] for message in mine] != [mapping(message).get("role") for message in theirs]:
        return []
    pairs = ((one, other) for one, other in zip(mine, theirs, strict=True) if one["role"] == "assistant")
    return ["completion"] if any(not _says_the_same(one, other) for one, other in pairs) else []


def _says_the_same(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    if mine == theirs:
        return True
    calls, others = _calls(mine), _calls(theirs)
    same = len(calls) == len(others) and all(map(_same_call, calls, others))
    same = same and (mine["content"] == theirs.get("content") or _words(mine) == _words(theirs))
    return same or _is_redacted(theirs)


def _same_call(mine: tuple[Any, Any, Any], theirs: tuple[Any, Any, Any]) -> bool:
    """Compare two calls; what came without an id, or is no function in its format, each reader names in its own way."""
    given = mapping(mine[2]).keys()
    action = mine[1] in ACTION_PARAMETERS and not given.isdisjoint(("type", "commands"))
    named = action or given == {"input"}
    return (mine[0] == theirs[0] or bool(_MADE_ID.search(str(mine[0])))) and (named or mine[1:] == theirs[1:])


def _words(message: dict[str, Any]) -> str:
    """Return what a message says, without the space between."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join("".join(str(mapping(part).get("text") or "") for part in parts).split())


def _calls(message: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """Return id, name and arguments of what a message calls, whatever the spelling of their JSON."""
    called = []
    for call in map(mapping, sequence(message.get("tool_calls"))):
        function = mapping(call.get("function"))
        arguments = function.get("arguments")
        # That arguments are no JSON is another check's business.
        with suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        called.append((call.get("id"), function.get("name"), arguments))
    return called


def _is_redacted(message: dict[str, Any]) -> bool:
    return "redact" in str(message).lower() or "***" in str(message)


def _listed(where: str, holder: dict[str, Any], *, required: bool) -> None:
    """Raise AssertionError when the messages of a row or a step are no lists."""
    for key in ("messages",) if isinstance(holder.get("messages"), list) else ("prompt", "completion"):
        value = holder.get(key)
        kept = isinstance(value, list) or (value is None and not required)
        assert kept, f"{where}: {key} is a {type(value).__name__}, not a list of messages"


def _conversations(row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], list[Any], list[Any]]]:
    """Yield the row and each step with where it is, its prompt and its completion."""
    yield "results.jsonl", row, *_messages(row)
    for number, step in enumerate(sequence(row.get("trajectory"))):
        if isinstance(step, dict):
            yield f"results.jsonl: trajectory[{number}]", step, *_messages(step)


def _messages(holder: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    whole = holder.get("messages")
    if isinstance(whole, list):
        return whole, []
    return sequence(holder.get("prompt")), sequence(holder.get("completion"))


def _well_formed(where: str, start: int, messages: list[Any], called: set[str], *, offers_tools: bool) -> None:
    """Look at messages, the first of which is number `start`; `called` are the calls before, and gets those here."""
    for number, message in enumerate(messages, start):
        assert isinstance(message, dict), f"{where}: messages[{number}] is a {type(message).__name__}, no object"
        role = message.get("role")
        assert role in _ROLES, f"{where}: messages[{number}] has the role {role!r}"
        assert role != "system" or not number, f"{where}: a system message in the middle, messages[{number}]"
        calls = message.get("tool_calls")
        if calls:
            assert role == "assistant", f"{where}: messages[{number}] of {role} makes tool calls"
            assert offers_tools, f"{where}: messages[{number}] makes tool calls, and tool_defs offers no tool"
            assert isinstance(calls, list), f"{where}: tool_calls of messages[{number}] are no list"
            called.update([str(call.get("id")) for call in calls if isinstance(call, dict)])
        if role == "tool":
            result_of = message.get("tool_call_id")
            assert str(result_of) in called, f"{where}: a tool result for the unseen call {result_of!r}"


def _strict_arguments(where: str, call: Any) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    name = call.get("id") if isinstance(call, dict) else call
    assert isinstance(arguments, str), f"{where}: arguments of the call {name!r} are no string"
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError as error:
        raise AssertionError(f"{where}: arguments of the call {name!r} are not JSON ({error})") from None
    assert isinstance(value, dict), f"{where}: arguments of the call {name!r} are no JSON object"


def _exchange_index(step: Any) -> int | None:
    return integer(mapping(mapping(step).get("extras")).get("exchange_index"))


def _flag(step: Any, key: str) -> bool:
    return isinstance(step, dict) and step.get(key) is True


def _leaks(rollout: Rollout) -> Iterator[str]:
    """Yield places of banned keys and of a model's reasoning; messages of the rebuilt row hold neither."""
    parts = row_parts(rollout)
    unmade = (whole[key] for _, whole, _ in parts for key in _UNMADE if key in whole)
    leaked = _holds_leak([*(news for _, _, news in parts), *unmade])
    for where, whole, news in parts:
        if leaked:
            yield from _banned(whole, where)
        if any(_thoughts(news, where)):
            yield from _thoughts(whole, where)


def _holds_leak(values: list[Any]) -> bool:
    """Tell whether a banned key holds something anywhere in JSON values; the list is used up."""
    append = values.append
    for value in values:
        if type(value) is dict:
            if not _LEAKS.isdisjoint(value) and any(value.get(key) is not None for key in _LEAKS):
                return True
            children: Any = value.values()
        else:
            children = value if type(value) is list else ()
        for child in children:
            kind = type(child)
            if kind is dict or kind is list:
                append(child)
    return False


def _banned(value: Any, where: str) -> Iterator[str]:
    """Yield the places of banned keys that hold something."""
    stack = [(value, where)]
    while stack:
        item, place = stack.pop()
        if isinstance(item, dict):
            for key, child in item.items():
                if key in _LEAKS and child is not None:
                    yield f"{place}: the key {key}"
                stack.append((child, f"{place}.{key}"))
        elif isinstance(item, list):
            stack += [(child, f"{place}[{n}]") for n, child in enumerate(item)]


def _thoughts(part: dict[str, Any], where: str) -> Iterator[str]:
    """Yield the places of messages that hold a model's reasoning, under a provider's own name for it."""
    for messages in _messages(part):
        for number, message in enumerate(map(mapping, messages)):
            named = [] if REASONING_TEXTS.isdisjoint(message) else [k for k in REASONING_TEXTS if message.get(k)]
            kinds = (str(mapping(each).get("type")) for each in sequence(message.get("content")))
            named += [kind for kind in kinds if kind in REASONING_TYPES]
            if named:
                yield f"{where}: {named[0]} in messages[{number}]"
