"""Judge a whole job by its limits: how much was solved, and how much is not known to be healthy."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_benchflow.records.values import integer, mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.settings import Settings

RATE, MOST = "--benchflow-min-pass-rate", "--benchflow-max-unhealthy"


class Judgement(NamedTuple):
    """What a limit says of a job."""

    option: str
    holds: bool
    text: str


def judge(summary: Mapping[str, Any] | None, settings: Settings, *, unknown: str = "") -> list[Judgement]:
    """Return a judgement for each limit that was set, over all cells that were planned to run.

    What is unhealthy or missing stays in the denominator, what was skipped does not. Without a `summary` nothing is
    known, for the reason `unknown`, and no limit holds.
    """
    asked = [option for option, value in ((RATE, settings.min_pass_rate), (MOST, settings.max_unhealthy)) if value]
    counts = mapping(mapping(summary).get("coverage"))
    known = {name: integer(counts.get(name)) for name in ("planned", "unhealthy", "skipped", "missing")}
    planned, unhealthy, skipped, missing = (value or 0 for value in known.values())
    solved, of = integer(mapping(mapping(summary).get("solved")).get("count")) or 0, planned - skipped
    if None in known.values() or of <= 0:
        why = unknown or ("no rollout could run here" if planned else "no rollout was planned")
        return [Judgement(option, False, f"{option}: failed, for nothing is known: {why}") for option in asked]
    beside = f"{unhealthy} unhealthy and {missing} missing" + (f"; {skipped} skipped left out" if skipped else "")
    found = []
    if settings.min_pass_rate is not None:
        holds = solved / of >= settings.min_pass_rate
        number = f"{solved} of {of} solved is {solved / of:.4g} ({beside})"
        found.append(_said(RATE, holds, number, f"at least {settings.min_pass_rate:g}"))
    if settings.max_unhealthy is not None:
        share = settings.max_unhealthy.endswith("%")
        limit = Fraction(settings.max_unhealthy.rstrip("%"))  # exact, so that what equals the limit keeps it
        bad = unhealthy + missing
        holds = bad * 100 <= limit * of if share else bad <= limit
        number = f"{bad} of {of} not healthy is {bad / of:.2%} ({beside})"
        found.append(_said(MOST, holds, number, f"at most {settings.max_unhealthy}"))
    return found


def _said(option: str, holds: bool, number: str, limit: str) -> Judgement:
    return Judgement(option, holds, f"{option}: {'passed' if holds else 'failed'}, {number}; it takes {limit}")
