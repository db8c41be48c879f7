"""Compare what a review finds in a corpus with what corpus.json says of it: fast must not be lax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.corpus.write import read_corpus
from pytest_benchflow.report.review import checks_for, review_rollout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.corpus.plan import Outcome
    from pytest_benchflow.report.review import Review

# What is left of these logs cannot show each exchange that counted.
_LOG_DAMAGED = ("llm-missing", "llm-truncated-line")


def disagreements(root: Path) -> list[str]:
    """Return one line for each rollout, and each thing about it, that a review sees otherwise than corpus.json."""
    checks = checks_for()
    _, outcomes = read_corpus(root)
    return [
        f"{outcome.directory} ({outcome.protocol}, {outcome.corruption or 'not damaged'}): {said}"
        for outcome in outcomes
        for said in _differences(outcome, review_rollout(root / outcome.directory, checks))
    ]


def _differences(outcome: Outcome, review: Review) -> Iterator[str]:
    if review.healthy != outcome.healthy:
        messages = "; ".join(f"{finding.check}: {finding.message}" for finding in review.report.errors)
        yield f"healthy is {review.healthy}, not {outcome.healthy} {messages}".rstrip()
    counted = [exchange["index"] for exchange in review.facts["exchanges"] if exchange["selected"]]
    if outcome.corruption in _LOG_DAMAGED:
        if not set(counted) <= set(outcome.counted_exchanges):
            yield f"counts {counted}, of which {outcome.counted_exchanges} may count"
    elif counted != outcome.counted_exchanges:
        yield f"counts {counted}, not {outcome.counted_exchanges}"
    if outcome.corruption is None and review.facts["training_ready"] != outcome.training_ready:
        ready, reason = review.facts["training_ready"], review.facts["training_ready_reason"]
        yield f"training_ready is {ready} ({reason}), not {outcome.training_ready}"
