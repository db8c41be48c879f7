"""Find where two launches part, and name what one of them lost: an effort, a time limit, a check."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.catalog.compare import ABSENT, HERE, THERE, visible
from pytest_benchflow.settings import EFFORTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_EFFORT = re.compile(r"effort|thinking", re.IGNORECASE)
_TIMEOUT = re.compile(r"time_?out|time_?limit|deadline|max_?wait", re.IGNORECASE)
_AROUND = 60


@dataclass(frozen=True, slots=True)
class Drift:
    """One thing that both sides did differently in an environment."""

    row: str
    what: str
    here: str
    there: str
    weakens: str | None = None

    def lines(self) -> list[str]:
        """Return what to print."""
        loss = [f"  weakens: {self.weakens}"] if self.weakens else []
        return [f"{self.row}: {self.what}", f"  here:  {self.here}", f"  there: {self.there}", *loss]


def drifts(row: str, here: Mapping[str, Any], there: Mapping[str, Any], *, effort: str | None = None) -> list[Drift]:
    """Return what differs between two outcomes of one environment, in which `effort` was asked for."""
    if (here["exit"] == 0) != (there["exit"] == 0):
        # All else follows from it: one went on, and the other did not.
        codes = (str(here["exit"]), str(there["exit"]))
        side, code = (HERE, codes[1]) if here["exit"] == 0 else (THERE, codes[0])
        loss = f"check dropped {side}: it goes on where the other stops with exit code {code}"
        return [Drift(row, "exit code", *codes, weakens=loss)]
    found = [*_other_calls(row, here, there)]
    facts = [dict(_facts(outcome, other)) for outcome, other in ((here, there), (there, here))]
    for what in {**facts[0], **facts[1]}:
        one, other = (each.get(what) for each in facts)
        if one != other:
            found.append(Drift(row, what, *_parted(one, other), weakens=_loss(what, one, other, effort)))
    return found


def _other_calls(row: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Drift]:
    """Yield the drift of sides that start different numbers of programs."""
    sides = {HERE: [call["argv"] for call in here["calls"]], THERE: [call["argv"] for call in there["calls"]]}
    (shorter, few), (longer, many) = sorted(sides.items(), key=lambda item: len(item[1]))
    if len(few) == len(many):
        return
    loss = None
    if here["exit"] and few == many[: len(few)]:
        loss = f"check dropped {longer}: it starts {len(many)} programs where the other stops after {len(few)}"
    shown = {shorter: _commands(few), longer: _commands(many)}
    yield Drift(row, "programs started", shown[HERE], shown[THERE], weakens=loss)


def _commands(calls: list[list[str]]) -> str:
    return "; ".join(_cut(" ".join(argv[:2]), 0) for argv in calls) or ABSENT


def _facts(outcome: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield what an outcome says, each under a name of its own, as far as the other has anything to compare with."""
    yield "exit code", str(outcome["exit"])
    yield "standard output", outcome["stdout"] or None
    calls = outcome["calls"]
    if len(calls) == len(other["calls"]):
        for number, call in enumerate(calls, 1):
            yield from _call_facts(f"call {number}", call)
    elif calls and other["calls"] and not outcome["exit"]:
        yield from _call_facts("last call", calls[-1])
    for path, file in sorted(outcome["files"].items()):
        if file is None:
            yield f"{path}, removed", "yes"
            continue
        yield f"{path}, kind", file["kind"]
        if other["files"].get(path) is None:
            continue
        yield f"{path}, mode", file["mode"]
        for key in ("link", "sha256"):
            if key in file:
                yield f"{path}, {key}", file[key]
        if file.get("text") is not None:
            yield from _text_facts(path, file["text"])


def _call_facts(name: str, call: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    yield f"{name}, program", call["argv"][0]
    yield f"{name}, arguments", json.dumps(call["argv"][1:], ensure_ascii=False)
    yield f"{name}, working directory", call["cwd"]
    yield f"{name}, standard input", call["stdin"] or None
    for variable, value in call["env"].items():
        yield f"{name}, variable {variable}", value


def _text_facts(path: str, text: str) -> Iterator[tuple[str, str | None]]:
    """Yield a file's text; of JSON its values, as their order and layout mean nothing."""
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats)
    except ValueError:
        yield f"{path}, text", text
        return
    yield from _leaves(f"{path}, value", value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def _leaves(where: str, value: Any) -> Iterator[tuple[str, str | None]]:
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from _leaves(f"{where} {key}" if where.endswith(", value") else f"{where}.{key}", inner)
    else:
        yield where, json.dumps(value, ensure_ascii=False)


def _parted(here: str | None, there: str | None) -> tuple[str, str]:
    """Show both values around their first difference."""
    if here is None or there is None:
        return tuple(ABSENT if each is None else _cut(each, 0) for each in (here, there))  # type: ignore[return-value]
    pairs = enumerate(zip(here, there, strict=False))
    at = next((index for index, (one, other) in pairs if one != other), min(len(here), len(there)))
    return _cut(here, at), _cut(there, at)


def _cut(text: str, at: int) -> str:
    start, end = max(0, at - _AROUND), at + _AROUND
    return f"{'…' if start else ''}{visible(text[start:end]) or '(empty)'}{'…' if end < len(text) else ''}"


def _loss(what: str, here: str | None, there: str | None, effort: str | None) -> str | None:
    """Name what is weaker on which side, None when nothing is known to be."""
    name = what.rpartition(", ")[2]
    if name == "mode" and here is not None and there is not None:
        return _wider(int(here, 8), int(there, 8))
    if name in ("arguments", "text", "standard input"):
        efforts, limits = (_named_effort(here), _named_effort(there)), (_named_limit(here), _named_limit(there))
        said = [_less_effort(*efforts, effort), _less_time(*limits) if limits != (None, None) else None]
        return "; ".join(filter(None, said)) or None
    if _EFFORT.search(name):
        return _less_effort(_word(here), _word(there), effort)
    if _TIMEOUT.search(name):
        return _less_time(_number(here), _number(there))
    return None


def _less_effort(here: str | None, there: str | None, asked: str | None) -> str | None:
    """Compare two efforts with the one that was asked for, and with each other where none was.

    An effort that nobody asked for may be left out: what is less than the model's own choice is not known.
    """
    lost = []
    for side, own, other in ((HERE, here, there), (THERE, there, here)):
        has, wanted = _rank(own), _rank(other if asked is None else asked)
        if own in (asked, other):
            continue
        if has is not None and wanted is not None:
            lost += [f"effort lowered {side}"] if has < wanted else []
        elif asked is not None:
            lost.append(f"effort {'dropped' if own is None else 'changed'} {side}")
    return "; ".join(lost) or None


def _less_time(here: float | None, there: float | None) -> str | None:
    if here is None and there is None:
        return "timeout changed, and which is less is not known"
    if here is None or there is None:
        return f"timeout dropped {HERE if here is None else THERE}"
    return None if here == there else f"timeout lowered {HERE if here < there else THERE}"


def _wider(here: int, there: int) -> str | None:
    for side, more in ((HERE, here & ~there), (THERE, there & ~here)):
        if more & 0o077:
            return f"access widened {side}: other users may use the file"
    return None


def _word(text: str | None) -> str | None:
    """Return an effort as it stands in a variable or in JSON, None where there is none."""
    return None if text is None or text in ("", "null") else text.strip('"').lower()


def _rank(effort: str | None) -> int | None:
    return EFFORTS.index(effort) if effort in EFFORTS else None


def _named_effort(text: str | None) -> str | None:
    """Return the first effort that a text names after the word."""
    found = re.search(rf"(?:{_EFFORT.pattern})[\w-]*[\"'\s:=,]+([a-z]+)", text or "", re.IGNORECASE)
    return found[1].lower() if found else None


def _named_limit(text: str | None) -> float | None:
    """Return the first number that a text names after a word for a time limit."""
    found = re.search(rf"(?:{_TIMEOUT.pattern})[\w-]*[\"'\s:=,]+([0-9]+(?:\.[0-9]+)?)", text or "", re.IGNORECASE)
    return float(found[1]) if found else None


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").strip('"'))
    except ValueError:
        return None
