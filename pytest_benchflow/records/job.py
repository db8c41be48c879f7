"""Gather a job's rollouts into its own results.jsonl and summary.json."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.arms import (
    arms_of,
    calls_model,
    cost_record,
    counted_as,
    is_paid,
    skill_lifts,
    token_record,
)
from pytest_benchflow.records.attempts import earlier_attempts
from pytest_benchflow.records.coverage import coverage, planned_cells
from pytest_benchflow.records.files import write_whole
from pytest_benchflow.records.journal import write_json
from pytest_benchflow.records.rollout import HEALTHY_VERDICTS, Rollout
from pytest_benchflow.records.rows import row_chunks
from pytest_benchflow.records.trajectory import read_rows, whole
from pytest_benchflow.records.usage import tokens_of
from pytest_benchflow.records.values import mapping, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


# Of summary.json, whose form summary.schema.json tells: another one where a reader of the old would misread the new.
SCHEMA_VERSION = 1


def rollouts_of(job_dir: Path) -> list[Rollout]:
    """Return the job's rollouts, sorted by name, also one that left no more than its lock; no earlier attempts."""
    begun = (
        path for path in sorted(job_dir.iterdir()) if (path / "config.json").is_file() or (path / ".lock").is_file()
    )
    return [Rollout(path) for path in begun]


def without_copies(rollouts: Iterable[Rollout]) -> tuple[list[Rollout], list[str]]:
    """Return the rollouts that lie where they were made, and the names of directories that hold another's records.

    A copy would be counted twice, and what a link leads to is of some other place.
    """
    own, copies = [], []
    for rollout in rollouts:
        if _name_of(rollout) in (None, rollout.path.name) and not rollout.path.is_symlink():
            own.append(rollout)
        else:
            copies.append(rollout.path.name)
    return own, copies


def _name_of(rollout: Rollout) -> str | None:
    """Return the name that a rollout was given when it began, None where its records tell of none."""
    try:
        name = rollout.config.get("rollout_name")
    except RecordError:
        return None
    return name if isinstance(name, str) else None


def is_ours(job: dict[str, Any]) -> bool:
    """Tell whether a job.json is one of this package: other programs use the name too."""
    return "pytest_benchflow" in mapping(job.get("versions"))


def write_job_files(job_dir: Path) -> dict[str, Any]:
    """Write results.jsonl, summary.json and, where a row cannot be read, results.errors.json; return the summary."""
    rollouts = rollouts_of(job_dir)
    _write_rows(job_dir, without_copies(rollouts)[0])
    summary = summary_of(job_dir, rollouts)
    write_json(job_dir / "summary.json", summary)
    return summary


def summary_of(job_dir: Path, rollouts: list[Rollout]) -> dict[str, Any]:
    """Return what summary.json holds of a job with these rollouts."""
    rollouts, copies = without_copies(rollouts)
    found = coverage(job_dir, {rollout.path.name: _healthy(rollout) for rollout in rollouts})
    summary = summarise(rollouts, skipped=len(found.skipped), missing=len(found.missing))
    arms = arms_of(job_dir, rollouts, found)
    summary |= {"arms": [arm.as_dict() for arm in arms], "skill_lift": skill_lifts(arms)}
    canaries = {str(cell.get("rollout")) for cell in planned_cells(job_dir / "job.json") if cell.get("canary")}
    summary |= {"coverage": found.counts(), "canaries": found.counts(canaries), **found.left_out()}
    summary |= {"copies": copies, "earlier_attempts": earlier_attempts(rollouts)}
    return {"schema_version": SCHEMA_VERSION, **summary}


def summarise(rollouts: Iterable[Rollout], *, skipped: int = 0, missing: int = 0) -> dict[str, Any]:
    """Count verdicts, rewards, tokens and cost. Unhealthy rollouts and missing ones stay in `asked`, out of every mean.

    Cells that were skipped, or are missing, are a verdict, and no rollouts.
    """
    verdicts: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    rewards: list[float] = []
    unpriced = without_tokens = 0
    cost = 0.0
    tokens = 0
    for rollout in rollouts:
        try:
            result = rollout.result
        except RecordError:
            verdicts["unhealthy"] += 1
            categories["capture"] += 1
            unpriced += is_paid(rollout)
            without_tokens += calls_model(rollout)
            continue
        verdict = counted_as(result)
        verdicts[verdict] += 1
        if verdict not in HEALTHY_VERDICTS:
            categories[str(result.get("verdict_category") or "unknown")] += 1
        elif rollout.reward is not None:
            rewards.append(rollout.reward)
        if (priced := number(mapping(result.get("agent_result")).get("cost_usd"))) is not None:
            cost += priced
        else:
            unpriced += is_paid(rollout)
        used = tokens_of(result)
        tokens += used.known
        without_tokens += not used.whole and calls_model(rollout)
    ran = sum(verdicts.values())
    asked = ran + missing
    healthy = sum(verdicts[name] for name in HEALTHY_VERDICTS)
    return {
        "rollouts": {"asked": asked, "healthy": healthy, "unhealthy": ran - healthy, "missing": missing},
        "solved": {"count": verdicts["pass"], "of": asked, "rate": verdicts["pass"] / asked if asked else None},
        "verdicts": dict(sorted((+(verdicts + Counter(skipped=skipped, missing=missing))).items())),
        "unhealthy_categories": dict(sorted(categories.items())),
        "reward": {"scored": len(rewards), "asked": asked, "mean": sum(rewards) / len(rewards) if rewards else None},
        "tokens": token_record(tokens, without_tokens),
        "cost_usd": cost_record(cost, unpriced),
    }


def _healthy(rollout: Rollout) -> bool:
    try:
        return rollout.healthy
    except RecordError:
        return False


def _write_rows(job_dir: Path, rollouts: list[Rollout]) -> None:
    """Join the rollouts' rows; example_id counts the tasks in the order of their names."""
    tasks = {rollout.path.name: _task_of(rollout) for rollout in rollouts}
    numbers = {task: number for number, task in enumerate(sorted(set(tasks.values())))}
    errors: list[dict[str, str]] = []

    def lines() -> Iterator[bytes]:
        for rollout in rollouts:
            try:
                rows = whole(read_rows(rollout.dir.row))
            except (RecordError, OSError) as error:
                errors.append({"rollout": rollout.path.name, "error": str(error)})
                continue
            for row in rows:
                yield from row_chunks({**row, "example_id": numbers[tasks[rollout.path.name]]})
                yield b"\n"

    write_whole(job_dir / "results.jsonl", lines())
    failures = job_dir / "results.errors.json"
    if errors:
        write_json(failures, {"errors": errors})
    else:
        failures.unlink(missing_ok=True)


def _task_of(rollout: Rollout) -> str:
    try:
        return str(rollout.result.get("task_name"))
    except RecordError:
        return ""
