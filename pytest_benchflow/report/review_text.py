"""Write a review for a person: a rollout in a few lines, and what all of them came to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_benchflow.report.summary import evidence_line
from pytest_benchflow.report.table import wrapped
from pytest_benchflow.report.text import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_benchflow.records.audit import Audit
    from pytest_benchflow.report.review import Review

_LONGEST = 1000


def review_lines(review: Review, width: int) -> Iterator[str]:
    """Yield what a review found: verdict, evidence, findings with the errors first, and the audit."""
    report, summary = review.report, review.summary
    verdict = f"{summary.outcome} ({summary.category})" if summary.category else summary.outcome
    counted = f"{len(report.ran)} of {len(report.ran) + len(report.not_applicable)} checks apply"
    yield f"{printable(review.root)}: {one_line(verdict)} · {counted}"
    for part in wrapped(evidence_line([summary]), width - 2):
        yield f"  {part}"
    for severity in ("error", "warning"):
        for finding in report.findings:
            if finding.severity == severity:
                said = finding.message.replace(f"{review.root}/", "")
                yield f"  {severity}: {one_line(finding.check)}: {one_line(said, limit=_LONGEST)}"
    if review.audit is not None:
        yield f"  audit: {one_line(audit_text(review.audit), limit=_LONGEST)}"


def total_lines(reviews: Sequence[Review], width: int) -> Iterator[str]:
    """Yield how many rollouts are healthy, what is at fault in the others, and the evidence of all."""
    healthy = sum(review.healthy for review in reviews)
    faults = Counter(review.category for review in reviews if not review.healthy)
    named = ", ".join(f"{count} {category}" for category, count in sorted(faults.items(), key=str))
    rollouts = f"{len(reviews)} rollout{'s' if len(reviews) != 1 else ''}"
    parts = [f"{rollouts}: {healthy} healthy", f"{len(reviews) - healthy} unhealthy{f' ({named})' if named else ''}"]
    free = sum(not review.uses_model for review in reviews)
    parts += [f"{free} of an agent without a model"] if free else []
    yield ", ".join(parts)
    yield from wrapped(evidence_line([review.summary for review in reviews]), width)


def audit_text(audit: Audit) -> str:
    """Return an audit in a line."""
    said = f"{audit.verdict}, by {audit.by}{f', {audit.at}' if audit.at else ''}"
    said += f": {audit.note}" if audit.note else ""
    return said if audit.void is None else f"void, as {audit.void}{f' ({said})' if audit.verdict else ''}"
