"""What checks look at, read once per rollout, and which evidence a rollout offers."""

from __future__ import annotations

import itertools
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.values import mapping, sequence
from pytest_benchflow.training.ready import calls_no_model
from pytest_benchflow.training.row import Row, build_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_Read = TypeVar("_Read")
# Parts of a row that mostly are what the exchanges hold.
_COPIED = ("prompt", "completion", "tool_defs", "response")


class NotApplicableError(Exception):
    """A check has nothing to look at in this rollout; the text says what is not there."""


def once(read: Callable[[Rollout], _Read]) -> Callable[[Rollout], _Read]:
    """Return a function that reads something of a rollout once per `Rollout` object, which keeps it."""
    name = f"{read.__module__}.{read.__qualname__}"

    @wraps(read)
    def kept(rollout: Rollout) -> _Read:
        known = vars(rollout)
        if name not in known:
            known[name] = read(rollout)
        found: _Read = known[name]
        return found

    return kept


@once
def strange(rollout: Rollout) -> list[str]:
    """Say what in the rollout's directory must not be read."""
    return strange_files(rollout.dir)


@once
def rebuilt(rollout: Rollout) -> Row:
    """Return the row as it follows from the raw records."""
    return build_row(
        rollout.dir,
        result=_or_empty(rollout, "result"),
        config=_config(rollout),
        logs=(rollout.exchange_log, rollout.event_log),
    )


class RebuiltRollout(Rollout):
    """A rollout whose row is judged as if it were built anew from the raw records; results.jsonl is not read."""

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Return the row as it follows from the raw records."""
        return [rebuilt(self).row]


# The index of an exchange, a JSON value in it that no earlier one carries, and whether that is the body of its answer.
Fresh = tuple[int, Any, bool]


@once
def fresh_content(rollout: Rollout) -> list[Fresh]:
    """Return from each request what is new of its history, instructions and tools; then the answer and the error."""
    return list(_news(rollout.exchanges))


def _news(records: list[dict[str, Any]]) -> Iterator[Fresh]:
    # Records share what they repeat, so that an object met before is known by its identity; they stay alive meanwhile.
    items: set[int] = set()
    texts: set[str] = set()
    before: dict[str, list[Any]] = {}
    for index, record in enumerate(records):
        body = mapping(record.get("request")).get("body")
        for key, part in body.items() if isinstance(body, dict) else (("", body),):
            new: Sequence[Any] = (part,)
            if isinstance(part, list):
                known = before.get(key, [])
                if part is known:
                    continue
                # Lists compare by identity first: a history that grows is passed over at memory speed.
                new = part[len(known) :] if part[: len(known)] == known else part
                before[key] = part
            for item in new:
                if isinstance(item, str):
                    if item not in texts:
                        texts.add(item)
                        yield index, item, False
                elif isinstance(item, dict | list) and id(item) not in items:
                    items.add(id(item))
                    yield index, item, False
        answer, error = mapping(record.get("response")).get("body"), record.get("error")
        if answer is not None:
            yield index, answer, True
        if error is not None:
            yield index, error, False


def the_row(rollout: Rollout) -> dict[str, Any]:
    """Return the one row of results.jsonl."""
    return rollout.rows[0]


def _ends(whole: Any, part: Any) -> bool:
    """Tell whether a list is another one's end."""
    if not isinstance(whole, list) or not isinstance(part, list) or len(part) > len(whole):
        return False
    return whole[len(whole) - len(part) :] == part


class Part(NamedTuple):
    """The row without its steps, or a step; of a step's prompt only what no step before it and no row's message is."""

    where: str
    whole: dict[str, Any]
    news: dict[str, Any]  # the same without the messages, the tools and the answer that the rebuilt row holds too


@once
def row_parts(rollout: Rollout) -> list[Part]:
    """Return the row without its steps, and each step, with where it stands and what is new in it."""
    row = the_row(rollout)
    made = rebuilt(rollout).row
    twins = made["trajectory"]
    head = {key: value for key, value in row.items() if key != "trajectory"}
    results = _results(made)
    parts = [Part("results.jsonl", head, _without_copies(head, made, results))]
    known: list[Any] = []
    # The row keeps them alive, so that an id stays the message's.
    own = {id(message) for key in ("prompt", "completion") for message in sequence(row.get(key))}
    for number, step in enumerate(sequence(row.get("trajectory"))):
        if not isinstance(step, dict):
            continue
        prompt = sequence(step.get("prompt"))
        repeated = len(known) if prompt[: len(known)] == known else 0
        whole = {**step, "prompt": [message for message in prompt[repeated:] if id(message) not in own]}
        news = _without_copies(whole, twins[number], results) if number < len(twins) else whole
        parts.append(Part(f"results.jsonl: trajectory[{number}]", whole, news))
        known = prompt
    return parts


def _results(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the messages with the results of tool calls in a rebuilt row, by the id of the call."""
    messages = itertools.chain(row["prompt"], row["completion"])
    return {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}


def _without_copies(
    part: dict[str, Any], twin: dict[str, Any], results: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return a part of the row without what its twin in the rebuilt row holds too, of a list at its end.

    Of messages that other tools put together in their own way the results of calls, which are long, are left out.
    """
    news = part.copy()
    for key in _COPIED:
        if key in part:
            mine, theirs = part[key], twin.get(key)
            if mine == theirs or _ends(theirs, mine):
                del news[key]
            elif key in ("prompt", "completion") and isinstance(mine, list):
                twins = (results.get(str(mapping(message).get("tool_call_id"))) for message in mine)
                news[key] = [message for message, copy in zip(mine, twins, strict=True) if message != copy]
    return news


def is_ours(rollout: Rollout) -> bool:
    """Tell whether this plugin made the rollout: then missing evidence is a fault, elsewhere it is not."""
    # Several marks, so that a rollout with one of them damaged is still held to all that it should have recorded.
    config = _config(rollout)
    return any(config.get(mark) for mark in ("plugin_version", "session_id")) or "checks" in _or_empty(
        rollout, "result"
    )


def evidence(rollout: Rollout, value: Any, what: str) -> Any:
    """Return `value`; when it is None, fail for a rollout of ours and leave the check for another tool's.

    Raises: AssertionError, NotApplicableError.
    """
    if value is None and not is_ours(rollout):
        raise NotApplicableError(f"{what} is not recorded")
    assert value is not None, f"{what} is not recorded"
    return value


def uses_model(rollout: Rollout) -> bool:
    """Tell whether a model worked in this rollout; oracle and nop call none."""
    return not calls_no_model(_or_empty(rollout, "result"), _config(rollout))


def _or_empty(rollout: Rollout, part: str) -> dict[str, Any]:
    try:
        value = getattr(rollout, part)
    except RecordError:
        return {}
    return value if isinstance(value, dict) else {}


def _config(rollout: Rollout) -> dict[str, Any]:
    return _or_empty(rollout, "config")


def _need_model(rollout: Rollout) -> str | None:
    return None if uses_model(rollout) else "the agent calls no model"


def _need_ours(rollout: Rollout) -> str | None:
    return None if is_ours(rollout) else "not made by this plugin"


def _need_result(rollout: Rollout) -> str | None:
    return _readable(rollout, "result")


def _need_config(rollout: Rollout) -> str | None:
    return _readable(rollout, "config")


def _need_llm(rollout: Rollout) -> str | None:
    return _readable(rollout, "exchanges") or (None if rollout.exchanges else "no model exchange was recorded")


def _need_row(rollout: Rollout) -> str | None:
    problem = _readable(rollout, "rows")
    return problem or (None if len(rollout.rows) == 1 else f"results.jsonl holds {len(rollout.rows)} rows")


def _readable(rollout: Rollout, part: str) -> str | None:
    try:
        getattr(rollout, part)
    except RecordError as error:
        return f"{part} cannot be read: {error}"
    return None


# By name: returns None when the evidence is there, else what is not.
NEEDS: dict[str, Callable[[Rollout], str | None]] = {
    # First, as a row may be one huge line: what was read before would add to the peak of memory.
    "row": _need_row,
    "model": _need_model,
    "ours": _need_ours,
    "result": _need_result,
    "config": _need_config,
    "llm": _need_llm,
}
