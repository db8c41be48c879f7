"""Look at the earlier attempts of a rollout: kept whole, counted in no mean, and paid for all the same."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.arms import calls_model, cost_record, is_paid, token_record
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.rollout import HEALTHY_VERDICTS, Rollout
from pytest_benchflow.records.usage import tokens_of
from pytest_benchflow.records.values import mapping, number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_benchflow.records.rundir import RunDir

_LONGEST = 300


def attempts_of(rundir: RunDir) -> list[Rollout]:
    """Return the earlier attempts at a rollout, the first one first; no link is followed."""
    if rundir.attempts.is_symlink() or not rundir.attempts.is_dir():
        return []
    found = [path for path in rundir.attempts.iterdir() if is_number(path.name) and not path.is_symlink()]
    return [Rollout(path) for path in sorted(found, key=lambda path: int(path.name)) if path.is_dir()]


def is_number(name: str) -> bool:
    """Tell whether a name is that of an attempt."""
    return name.isascii() and name.isdigit()


def attempt_record(rundir: RunDir) -> dict[str, Any]:
    """Return what config.json of a rollout that is about to begin says of its attempts: its number, and the last one's.

    `earlier` is the attempt before and why it was not kept, null for a first attempt.
    """
    before = attempts_of(rundir)
    if not before:
        return {"attempt": 1, "earlier": None}
    number_of_last = int(before[-1].path.name)
    return {"attempt": number_of_last + 1, "earlier": {"attempt": number_of_last, **_end_of(before[-1])}}


def earlier_attempts(rollouts: Iterable[Rollout]) -> dict[str, Any]:
    """Return what the earlier attempts at a job's rollouts took, for summary.json; none of it is counted elsewhere."""
    ends: Counter[str] = Counter()
    count = tokens = unpriced = without_tokens = 0
    cost = 0.0
    for rollout in rollouts:
        for attempt in attempts_of(rollout.dir):
            count += 1
            if strange_files(attempt.dir):  # such a file may never end, and nothing is known of what it took
                ends["unknown"] += 1
                unpriced += 1
                without_tokens += 1
                continue
            end = _end_of(attempt)
            ends[end["category"] or end["verdict"] or "unknown"] += 1
            result = _read(attempt, "result")
            priced = number(mapping(result.get("agent_result")).get("cost_usd"))
            cost += priced or 0.0
            unpriced += priced is None and is_paid(attempt)
            used = tokens_of(result)
            tokens += used.known
            without_tokens += not used.whole and calls_model(attempt) and _asked_model(attempt)
    return {
        "count": count,
        "by_end": dict(sorted(ends.items())),
        "tokens": token_record(tokens, without_tokens),
        "cost_usd": cost_record(cost, unpriced),
    }


def _asked_model(attempt: Rollout) -> bool:
    """Tell whether an attempt came to ask its model anything: where it did not, it took no tokens, which is known."""
    try:
        return attempt.dir.llm.stat().st_size > 0 or attempt.dir.llm_pending.exists()
    except OSError:
        return attempt.dir.llm_pending.exists()


def _end_of(rollout: Rollout) -> dict[str, Any]:
    """Say how an attempt ended and why it was not kept."""
    result, config = _read(rollout, "result"), _read(rollout, "config")
    verdict, category = _text(result.get("verdict")), _text(result.get("verdict_category"))
    fault = _text(result.get("error_category")) or _text(result.get("verifier_error_category"))
    said = _text(result.get("error")) or _text(result.get("verifier_error"))
    if not result:
        why = "it left no result that can be read"
    elif verdict in HEALTHY_VERDICTS:
        why = f"it was {verdict}, and the rollout was asked for again"
    else:
        why = f"it was {verdict or 'without a verdict'} ({category or 'no category'}{f': {fault}' if fault else ''})"
    return {
        "session_id": _text(config.get("session_id")),
        "verdict": verdict,
        "category": category,
        "fault": fault,
        "error": said and said[:_LONGEST],
        "why": why,
    }


def _read(rollout: Rollout, part: str) -> dict[str, Any]:
    try:
        return mapping(getattr(rollout, part))
    except (RecordError, OSError):
        return {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
