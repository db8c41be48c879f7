"""Review rollouts from what they left on disk: one engine for pytest's items and for the command line.

A review reads and never writes. Nothing in a run directory is executed, followed out of it, or printed as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._check import Check, CheckReport, Finding, all_checks, run_checks
from pytest_benchflow.checks._evidence import RebuiltRollout, rebuilt, uses_model
from pytest_benchflow.checks.verdict import verdict_of
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.values import integer, mapping, number, reward_of, sequence

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_benchflow.training.row import Row


@dataclass(frozen=True, slots=True)
class Review:
    """What a review found in one rollout; `facts` are the values of its JSON, by name."""

    root: Path
    report: CheckReport
    verdict: str
    category: str | None
    uses_model: bool
    facts: dict[str, Any]

    @property
    def healthy(self) -> bool:
        """Tell whether no check found an error."""
        return self.verdict != "unhealthy"

    def as_json(self) -> dict[str, Any]:
        """Return the review as `pytest-benchflow review --json` prints it."""
        return {
            "root": str(self.root),
            "healthy": self.healthy,
            "verdict": self.verdict,
            "category": self.category,
            "findings": [finding.as_json() for finding in self.report.findings],
            "ran": self.report.ran,
            "not_applicable": self.report.not_applicable,
            **self.facts,
        }


def review_rollout(root: Path, *, rebuild: bool = False, checks: Mapping[str, Check] | None = None) -> Review:
    """Run the checks on the rollout in a directory; with `rebuild`, as if its row were made anew from the raw records.

    Never raises for what the directory holds.
    """
    rollout = RebuiltRollout(root) if rebuild else Rollout(root)
    checks = all_checks() if checks is None else checks
    strange = strange_files(rollout.dir)
    if strange:
        return _unread(root, strange, checks)
    report = run_checks(rollout, checks)
    result, config = _part(rollout, "result"), _part(rollout, "config")
    verdict, category = verdict_of(report.findings, result)
    return Review(root, report, verdict, category, uses_model(rollout), _facts(rollout, result, config))


def _unread(root: Path, strange: list[str], checks: Mapping[str, Check]) -> Review:
    """Return the review of a directory that holds what must not be opened: then nothing in it is."""
    finding = Finding("files_are_plain", "error", f"nothing was read: {'; '.join(strange)}", "capture")
    skipped = dict.fromkeys((name for name in checks if name != finding.check), "nothing was read")
    report = CheckReport([finding], [finding.check], skipped)
    return Review(root, report, "unhealthy", finding.category, True, _no_facts())


def _no_facts() -> dict[str, Any]:
    return {
        "exchanges": [],
        "training_ready": False,
        "training_ready_reason": "unread",
        "tokens": {"billed": None, "selected": None, "excluded": None},
    }


def _facts(rollout: Rollout, result: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    row = rebuilt(rollout)
    usage, source = mapping(result.get("agent_result")), mapping(config.get("source"))
    judged = _judged_row(rollout)
    return {
        "exchanges": row.exchanges,
        "training_ready": row.training_ready,
        "training_ready_reason": row.reason,
        "tokens": row.tokens,
        "reward": reward_of(result),
        "n_tool_calls": integer(result.get("n_tool_calls")),
        "responses": {key: row.summary[key] for key in ("completed", "with_usage")},
        "truncated_steps": sum(
            mapping(step).get("is_truncated") is True for step in sequence(judged.get("trajectory"))
        ),
        "effort": _effort(rollout, row, config),
        "acp_transport": _text(config.get("acp_transport")),
        "task_skills_loading": integer(result.get("task_skills_loading")),
        "timing_total_s": number(mapping(result.get("timing")).get("total")),
        "cost_usd": number(usage.get("cost_usd")),
        "price_source": _text(usage.get("price_source")),
        "source_commit": _text(source.get("commit")),
    }


def _effort(rollout: Rollout, row: Row, config: Mapping[str, Any]) -> dict[str, Any]:
    """Count the policy's requests with the effort asked for, and the answers that say it back."""
    asked = _text(config.get("reasoning_effort"))
    matching = echoing = 0
    if asked is None:
        return {"asked": None, "requests_matching": None, "responses_echoing": None}
    policy = {exchange["index"] for exchange in row.exchanges if exchange["role"] == "policy"}
    try:
        records = list(enumerate(rollout.exchanges))
    except RecordError:
        records = []
    for index, record in records:
        request = mapping(record.get("request"))
        dialect = dialect_for(str(request.get("path"))) if index in policy else None
        if dialect is not None:
            matching += dialect.effort(mapping(request.get("body"))) == asked
            echoing += dialect.effort(mapping(mapping(record.get("response")).get("body"))) == asked
    return {"asked": asked, "requests_matching": matching, "responses_echoing": echoing}


def _judged_row(rollout: Rollout) -> dict[str, Any]:
    try:
        return rollout.rows[0] if rollout.rows else {}
    except RecordError:
        return {}


def _part(rollout: Rollout, part: str) -> dict[str, Any]:
    try:
        return mapping(getattr(rollout, part))
    except RecordError:
        return {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
