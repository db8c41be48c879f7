"""Tell one rollout of a report: its line in the table, and all that is shown when it is opened."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._evidence import rebuilt
from pytest_benchflow.records.arms import arm_key
from pytest_benchflow.records.attempts import attempts_of
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.records.usage import tokens_of
from pytest_benchflow.records.values import integer, mapping, number, reward_of, sequence
from pytest_benchflow.report.html.cut import Cut
from pytest_benchflow.report.html.exchanges import event_facts, exchange_facts
from pytest_benchflow.report.review import part_of, review_of
from pytest_benchflow.report.text import UNKNOWN
from pytest_benchflow.training.row import agent_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytest_benchflow.checks._check import Check
    from pytest_benchflow.report.review import Review

# Bytes of a file that is read whole; more is no record of ours, and none that a browser opens.
_WHOLE = 16 << 20
_LOG = 2 << 30
_LISTED = 500
_ERRORS = ("error", "verifier_error", "export_error")


@dataclass(slots=True)
class Told:
    """What a report tells of a rollout: `entry` is its line, `detail` is shown when it is opened; both plain JSON."""

    entry: dict[str, Any]
    detail: dict[str, Any]
    differs: bool = field(default=False)  # a review finds another verdict than the one that was recorded


def tell(path: Path, cell: Mapping[str, Any], checks: Mapping[str, Check]) -> Told:
    """Read the rollout in a directory; `cell` is what the job planned there, empty where it did not.

    Never raises for what the directory holds: what cannot be read is told as such.
    """
    try:
        reason = refused(path)
        if reason is None:
            return _read(path, cell, checks)
    except Exception as error:
        # One rollout that nobody foresaw must not cost the report of all others.
        reason = f"it cannot be read: {type(error).__name__}: {error}"
    return _unread(path, cell, reason)


def refused(path: Path) -> str | None:
    """Say why a directory is not read at all, None when it may be."""
    if path.is_symlink():
        return f"{path.name} is a link, and links in a job are not followed"
    for name, limit in (("config.json", _WHOLE), ("result.json", _WHOLE), ("results.jsonl", _LOG)):
        if (size := _size(path / name)) > limit:
            return f"{name} has {size:,} bytes; at most {limit:,} are read"
    for name in ("llm_trajectory.jsonl", "acp_trajectory.jsonl"):
        if (size := _size(path / "trajectory" / name)) > _LOG:
            return f"trajectory/{name} has {size:,} bytes; at most {_LOG:,} are read"
    return "; ".join(strange_files(RunDir(path))) or None


def _size(path: Path) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size  # noqa: PTH116 - of the link itself, were it one
    except OSError:
        return 0


def _unread(path: Path, cell: Mapping[str, Any], reason: str) -> Told:
    finding = {
        "check": "files_are_plain",
        "severity": "error",
        "message": _relative(path, reason),
        "category": "capture",
    }
    agent, model, skills = arm_key(cell) if cell else (UNKNOWN,) * 3
    entry = {
        **_EMPTY,
        "name": path.name,
        "task": str(cell.get("task") or UNKNOWN),
        "agent": agent,
        "model": model,
        "skills": skills,
        "trial": integer(cell.get("trial")),
        "canary": cell.get("canary") is True,
        "verdict": "unhealthy",
        "category": "capture",
        "errors": 1,
        "unread": True,
        "said": finding["message"],
    }
    return Told(entry, {"name": path.name, "findings": [finding], "unread": finding["message"]})


_EMPTY: dict[str, Any] = dict.fromkeys(
    ("reward", "steps", "tool_calls", "tokens", "tokens_known", "cost", "seconds", "begun", "review", "said"),
    None,
) | {"errors": 0, "warnings": 0, "calls_model": True, "paid": True, "unread": False}


def _read(path: Path, cell: Mapping[str, Any], checks: Mapping[str, Check]) -> Told:
    rollout = Rollout(path)
    review = review_of(rollout, checks)
    config, result = part_of(rollout, "config"), part_of(rollout, "result")
    entry = _entry(rollout, cell, review, config, result)
    return Told(entry, _detail(rollout, review, config, result), differs=entry["review"] is not None)


def _entry(
    rollout: Rollout, cell: Mapping[str, Any], review: Review, config: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the rollout's line: the verdict as it was recorded, and the review's own where that is another."""
    summary, tokens = review.summary, tokens_of(result)
    agent, model, skills = arm_key(cell or {**config, **result})
    verdict, category = _recorded(result)
    judged = (summary.verdict, summary.category)
    said = next((result[name] for name in _ERRORS if result.get(name)), None)
    if said is None and review.report.errors:
        said = _relative(rollout.path, review.report.errors[0].message)
    return {
        **_EMPTY,
        "name": rollout.path.name,
        "task": str(cell.get("task") or result.get("task_name") or config.get("task_name") or UNKNOWN),
        "agent": agent,
        "model": model,
        "skills": skills,
        "trial": integer(cell.get("trial") or config.get("trial")),
        "canary": cell.get("canary") is True,
        "verdict": verdict or judged[0],
        "category": category if verdict else judged[1],
        "review": {"verdict": judged[0], "category": judged[1]} if verdict and verdict != judged[0] else None,
        "reward": reward_of(result),
        "steps": summary.steps,
        "tool_calls": integer(result.get("n_tool_calls")),
        "calls_model": summary.calls_model,
        "paid": summary.paid,
        "tokens": tokens.known if tokens.whole else None,
        "tokens_known": tokens.known,
        "cost": number(mapping(result.get("agent_result")).get("cost_usd")),
        "seconds": number(mapping(result.get("timing")).get("total")),
        "begun": _text(result.get("started_at") or config.get("started_at")),
        "errors": len(review.report.errors),
        "warnings": len(review.report.findings) - len(review.report.errors),
        "said": None if said is None else str(said)[:300],
    }


def _recorded(result: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the verdict of result.json; one that cannot be read, or was never given, is none."""
    return _text(result.get("verdict")), _text(result.get("verdict_category"))


def _detail(rollout: Rollout, review: Review, config: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    cut, path = Cut(), rollout.path
    row = rebuilt(rollout)
    shown = {name: value for name, value in result.items() if name not in ("checks", "timing", "error_details")}
    findings = [
        {**finding.as_json(), "message": _relative(path, finding.message)} for finding in review.report.findings
    ]
    return {
        "name": path.name,
        "findings": findings,
        "ran": review.report.ran,
        "not_applicable": review.report.not_applicable,
        "audit": review.audit.as_json() if review.audit else None,
        "training": {"ready": review.facts["training_ready"], "reason": review.facts["training_ready_reason"]},
        "rewards": mapping(result.get("rewards")) or None,
        "faults": [
            {"what": name, "category": _text(result.get(f"{name}_category")), "text": cut.text(result[name])}
            for name in _ERRORS
            if result.get(name)
        ],
        "error_details": cut.text(result["error_details"]) if result.get("error_details") else None,
        "warnings": [cut.text(warning) for warning in sequence(result.get("warnings"))[:_LISTED]],
        "timing": mapping(result.get("timing")),
        "unpriced": _text(mapping(result.get("cost")).get("unpriced")),
        "prompts": [cut.text(prompt) for prompt in agent_prompts(rollout.dir, rollout.event_log)],
        "exchanges": exchange_facts(rollout.exchange_log, row.records, config.get("price"), cut),
        **event_facts(rollout.event_log, cut),
        "verifier": _shown(rollout.dir.verifier, cut),
        "agent_logs": _shown(rollout.dir.agent_logs, cut),
        "config": cut.text(config),
        "result": cut.text(shown),
        "files": list(_sizes(path)),
        "attempts": [each.path.name for each in attempts_of(rollout.dir)[:_LISTED]],
        "earlier": _text(mapping(config.get("earlier")).get("why")),
    }


def _relative(path: Path, message: str) -> str:
    return message.replace(f"{path}/", "")


def _shown(place: Path, cut: Cut) -> list[dict[str, Any]]:
    return [file for path in _files_in(place) if (file := cut.file(path)) is not None]


def _files_in(place: Path) -> list[Path]:
    """Return the files of a directory, sorted, at most so many; none where it is a link."""
    if place.is_symlink():
        return []
    try:
        with os.scandir(place) as entries:
            return sorted(place / entry.name for entry in entries if entry.is_file(follow_symlinks=False))[:_LISTED]
    except OSError:
        return []


def _sizes(path: Path) -> Iterator[tuple[str, int | None]]:
    """Yield each file below a rollout with its size in bytes, at most so many; earlier attempts are left out."""
    count = 0
    for place, directories, files in os.walk(path):
        directories[:] = sorted(name for name in directories if name != "attempts")
        for name in sorted(files):
            count += 1
            if count > _LISTED:
                yield "and more", None
                return
            file = os.path.join(place, name)  # noqa: PTH118 - os.walk gives texts
            if name != ".lock" and not os.path.islink(file):  # noqa: PTH114
                yield os.path.relpath(file, path), os.lstat(file).st_size


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
