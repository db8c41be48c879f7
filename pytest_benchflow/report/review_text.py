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
    from pytest_benchflow.report.summary import Summary

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
        yield f"  audit: {audit_text(review.audit)}"


def total_lines(summaries: Sequence[Summary], width: int) -> Iterator[str]:
    """Yield how many rollouts are healthy, what is at fault in the others, and the evidence of all."""
    healthy = sum(summary.healthy for summary in summaries)
    faults = Counter(summary.category for summary in summaries if not summary.healthy)
    named = ", ".join(f"{count} {category}" for category, count in sorted(faults.items(), key=str))
    rollouts = f"{len(summaries)} rollout{'s' if len(summaries) != 1 else ''}"
    parts = [f"{rollouts}: {healthy} healthy", f"{len(summaries) - healthy} unhealthy{f' ({named})' if named else ''}"]
    free = sum(not summary.calls_model for summary in summaries)
    parts += [f"{free} of an agent without a model"] if free else []
    yield ", ".join(parts)
    yield from wrapped(evidence_line(summaries), width)


def audit_text(audit: Audit) -> str:
    """Return an audit in a line that a terminal can show."""
    said = f"{audit.verdict}, by {audit.by}{f', {audit.at}' if audit.at else ''}"
    said += f": {audit.note}" if audit.note else ""
    said = said if audit.void is None else f"void, as {audit.void}{f' ({said})' if audit.verdict else ''}"
    return one_line(said, limit=_LONGEST)
