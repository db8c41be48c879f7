"""Review rollouts from what they left on disk: one engine for pytest's items and for the command line.

A review reads and never writes. Nothing in a run directory is executed, followed out of it, or printed as it is.
"""

from __future__ import annotations

import gc
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._baseline import SHIPPED
from pytest_benchflow.checks._catalogue import skill_facts
from pytest_benchflow.checks._check import Check, CheckReport, Finding, all_checks, run_checks
from pytest_benchflow.checks._evidence import RebuiltRollout, rebuilt, strange, uses_model
from pytest_benchflow.checks.verdict import verdict_of
from pytest_benchflow.errors import RecordError, UsageError
from pytest_benchflow.records.audit import Audit, read_audit
from pytest_benchflow.records.find import find_missing, find_rollouts
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.values import integer, mapping, number, reward_of, sequence
from pytest_benchflow.report.summary import Summary
from pytest_benchflow.report.text import UNKNOWN
from pytest_benchflow.training.account import effort_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.training.row import Row

_COMMIT = re.compile(r"[0-9a-f]{7,64}\Z")
# Faults of the run itself: no later look at the records makes them undone.
_FACTS = ("infra", "verifier")


@dataclass(frozen=True, slots=True)
class Review:
    """What a review found in one rollout; `facts` are the values that its JSON has beside the findings."""

    root: Path
    report: CheckReport
    verdict: str
    category: str | None
    summary: Summary
    facts: dict[str, Any]
    audit: Audit | None = None

    @property
    def healthy(self) -> bool:
        """Tell whether no check found an error."""
        return self.verdict != "unhealthy"

    @property
    def uses_model(self) -> bool:
        """Tell whether a model worked in the rollout."""
        return self.summary.calls_model

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
            "audit": self.audit.as_json() if self.audit else None,
        }


def rollouts_at(paths: Sequence[Path], *, planned: bool = False) -> list[Path]:
    """Return the rollouts at or below paths, each once; with `planned`, also those that a job misses.

    Raises: UsageError when there is none at one of the paths.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            said = "is no directory" if path.exists() else "does not exist"
            raise UsageError(f"{path} {said}; name a rollout, a job or a directory of jobs")
        below = find_rollouts(path)
        below += find_missing(path) if planned else []
        if not below:
            raise UsageError(
                f"{path} holds no rollout: neither it nor a directory in it has a result.json, a config.json, "
                "a results.jsonl or a trajectory/ of one"
            )
        for root in sorted(below):
            found.setdefault(root.resolve(), root)
    return list(found.values())


def checks_for(expect_commit: str | None = None) -> dict[str, Check]:
    """Return the checks of a review by name: all, and that of the source where a commit is expected.

    Raises: UsageError when `expect_commit` is none.
    """
    checks = all_checks()
    if expect_commit is not None:
        commit = expect_commit.lower()
        if not _COMMIT.match(commit):
            raise UsageError(f"the expected commit is {expect_commit!r}; it takes at least 7 hexadecimal digits")
        checks["source_is_the_expected_commit"] = _of_commit(commit)
    return checks


def review_rollout(root: Path, checks: Mapping[str, Check], *, rebuild: bool = False) -> Review:
    """Run checks on the rollout in a directory; with `rebuild`, as if its row were made anew from the raw records.

    Never raises for what the directory holds.
    """
    return review_of(RebuiltRollout(root) if rebuild else Rollout(root), checks)


def review_of(rollout: Rollout, checks: Mapping[str, Check]) -> Review:
    """Run checks on a rollout, whose records stay read; never raises for what its directory holds."""
    with _no_collector():
        return _reviewed(rollout, checks)


def _reviewed(rollout: Rollout, checks: Mapping[str, Check]) -> Review:
    root = rollout.path
    if not root.is_dir():
        return _unread(root, ["the job planned this rollout, and nothing of it is here"], checks)
    refused = strange(rollout)
    try:
        return _unread(root, refused, checks) if refused else _read(rollout, checks)
    except OSError as error:
        return _unread(root, [f"{error.filename or root} cannot be read ({error.strerror})"], checks)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep the garbage collector from walking what a review reads: those are trees, freed when they are let go of."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            # Makes all of it old, or the collector would walk it as soon as it may.
            gc.freeze()
            gc.unfreeze()
            gc.enable()


def document(reviews: Iterable[Review]) -> dict[str, Any]:
    """Return the JSON of a review of several rollouts."""
    done = list(reviews)
    healthy = sum(review.healthy for review in done)
    return {
        "healthy": healthy == len(done),
        "summary": {
            "checked": len(done),
            "healthy": healthy,
            "unhealthy": len(done) - healthy,
            "without_model": sum(not review.uses_model for review in done),
        },
        "rollouts": [review.as_json() for review in done],
    }


def _of_commit(commit: str) -> Check:
    def check_source(rollout: Rollout) -> None:
        source = mapping(rollout.config.get("source"))
        found = source.get("commit")
        assert isinstance(found, str), f"config.json names no source commit; {commit} is expected"
        assert found.lower().startswith(commit), f"config.json names the source commit {found}; {commit} is expected"
        assert not source.get("dirty"), f"the source had changes that the commit {found} does not hold"

    claim = f"The rollout was made from commit {commit}, with no change to it."
    return Check(check_source, "source_is_the_expected_commit", claim, category="capture", needs=("config",))


def _read(rollout: Rollout, checks: Mapping[str, Check]) -> Review:
    report = run_checks(rollout, checks)
    result, config = part_of(rollout, "result"), part_of(rollout, "config")
    _let_faults_stand(report, result)
    _miss_no_check(report)
    verdict, category = verdict_of(report.findings, result)
    facts = _facts(rollout, result, config)
    told = {**config, **result}
    summary = _summary(rollout.path, told, facts, (verdict, category), calls_model=uses_model(rollout))
    return Review(rollout.path, report, verdict, category, summary, facts, read_audit(rollout.dir))


def _unread(root: Path, faults: Sequence[str], checks: Mapping[str, Check]) -> Review:
    """Return the review of a directory that holds what must not, or cannot, be read: then nothing is told of it."""
    name = "files_are_plain"
    skipped = dict.fromkeys((each for each in checks if each != name), "nothing was read")
    report = CheckReport([Finding(name, "error", "; ".join(faults))], [name], skipped)
    summary = _summary(root, {}, _UNREAD, ("unhealthy", "capture"), calls_model=True)
    return Review(root, report, "unhealthy", "capture", summary, _UNREAD)


def _let_faults_stand(report: CheckReport, result: Mapping[str, Any]) -> None:
    """Keep a rollout unhealthy whose own run was at fault, though its records no longer say how."""
    category = result.get("verdict_category")
    if result.get("verdict") != "unhealthy" or category not in _FACTS or report.errors:
        return
    name = "verdict_agrees"
    said = f"result.json has the verdict unhealthy ({category}), and nothing in the records says why any more"
    report.findings.append(Finding(name, "error", said, str(category)))
    if report.not_applicable.pop(name, None):
        report.ran.append(name)


def _miss_no_check(report: CheckReport) -> None:
    missing = sorted(set(SHIPPED).difference(report.ran, report.not_applicable))
    if missing:
        said = f"shipped checks did not run: {', '.join(missing)}"
        report.findings.append(Finding("every_check_ran", "error", said, "capture"))


_NO_EFFORT = dict.fromkeys(("asked", "requests", "requests_matching", "responses_echoing"))
# What is known of a rollout of which nothing was read.
_UNREAD: dict[str, Any] = {
    "exchanges": [],
    "training_ready": False,
    "training_ready_reason": "unread",
    "tokens": {"billed": None, "selected": None, "excluded": None},
    "untold": None,
    "reward": None,
    "n_tool_calls": None,
    "responses": {"completed": None, "with_usage": None},
    "truncated_steps": None,
    "effort": _NO_EFFORT,
    "acp_transport": None,
    "task_skills_loading": None,
    "timing_total_s": None,
    "cost_usd": None,
    "price_source": None,
    "source_commit": None,
}


def _facts(rollout: Rollout, result: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    row = rebuilt(rollout)
    reason = _why_not_ready(rollout, row)
    usage = mapping(result.get("agent_result"))
    return {
        "exchanges": row.exchanges,
        "training_ready": reason is None,
        "training_ready_reason": reason,
        "tokens": row.tokens,
        "untold": row.usage["n_untold"],
        "reward": reward_of(result),
        "n_tool_calls": integer(result.get("n_tool_calls")),
        "responses": {key: row.summary[key] for key in ("completed", "with_usage")},
        "truncated_steps": sum(mapping(step).get("is_truncated") is True for step in _steps(rollout)),
        "effort": _effort(rollout, row, config),
        "acp_transport": _text(config.get("acp_transport")),
        "task_skills_loading": skill_facts(rollout)["task_skills_loading"],
        "timing_total_s": number(mapping(result.get("timing")).get("total")),
        "cost_usd": number(usage.get("cost_usd")),
        "price_source": _text(usage.get("price_source")),
        "source_commit": _text(mapping(config.get("source")).get("commit")),
    }


def _why_not_ready(rollout: Rollout, row: Row) -> str | None:
    """Return why the rollout must not train: by its records, or by the row that a trainer would read."""
    if row.reason is not None:
        return row.reason
    judged = _rows(rollout)
    if len(judged) != 1:
        return "no_row"
    info = mapping(judged[0].get("info"))
    return None if info.get("training_ready") is True else _text(info.get("training_ready_reason")) or "row_not_ready"


def _effort(rollout: Rollout, row: Row, config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return effort_counts(_text(config.get("reasoning_effort")), row.records, rollout.exchanges)
    except RecordError:
        return _NO_EFFORT


def _summary(
    root: Path,
    told: Mapping[str, Any],
    facts: Mapping[str, Any],
    verdict: tuple[str, str | None],
    *,
    calls_model: bool,
) -> Summary:
    """Return what a rollout came to; `told` is what config.json and, over it, result.json say."""
    effort, responses = facts["effort"], facts["responses"]
    return Summary(
        task=_text(told.get("task_name")) or _text(told.get("task_path")) or UNKNOWN,
        agent=_text(told.get("agent")) or UNKNOWN,
        model=_text(told.get("model")) or UNKNOWN,
        skills=_text(told.get("skill_mode")) or UNKNOWN,
        trial=integer(told.get("trial")),
        verdict=verdict[0],
        category=verdict[1],
        reward=facts["reward"],
        steps=sum(exchange["selected"] for exchange in facts["exchanges"]),
        tool_calls=facts["n_tool_calls"],
        calls_model=calls_model,
        tokens=facts["tokens"]["billed"],
        tokens_whole=not facts["untold"],
        cost=facts["cost_usd"],
        completed=responses["completed"],
        with_usage=responses["with_usage"],
        truncated=facts["truncated_steps"],
        effort=(effort["requests_matching"], effort["requests"]) if effort["asked"] else None,
        training_ready=facts["training_ready"],
        seconds=facts["timing_total_s"],
        directory=str(root),
    )


def _rows(rollout: Rollout) -> list[dict[str, Any]]:
    try:
        return rollout.rows
    except RecordError:
        return []


def _steps(rollout: Rollout) -> list[Any]:
    return [step for row in _rows(rollout)[:1] for step in sequence(row.get("trajectory"))]


def part_of(rollout: Rollout, part: str) -> dict[str, Any]:
    """Return a record of a rollout, empty where it cannot be read."""
    try:
        return mapping(getattr(rollout, part))
    except RecordError:
        return {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
