"""Decide for each rollout whether it goes: judged anew by what is on disk, and never by the verdict that it keeps."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError, UsageError
from pytest_benchflow.publish.staging import clean, copy_rollout, describe, prune, published
from pytest_benchflow.records.audit import trace_digest
from pytest_benchflow.records.coverage import runs_of
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.records.secrets import secrets_in
from pytest_benchflow.records.slots import claimed_name
from pytest_benchflow.records.values import integer, mapping
from pytest_benchflow.report.review import review_rollout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_benchflow.checks._check import Check
    from pytest_benchflow.publish.naming import Template
    from pytest_benchflow.publish.staging import File
    from pytest_benchflow.records.redact import Redactor
    from pytest_benchflow.report.review import Review

_SAID = 300
_LISTED = 5


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A rollout that stays here: a reason that is counted, and the facts."""

    root: Path
    reason: str
    detail: str


class Skipped(Exception):  # noqa: N818 - it is no error of the publication
    """A rollout is left out: a reason that is counted, and the facts."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Chosen:
    """A rollout that goes: to which directory, with which files, and what its manifest says beside them."""

    root: Path
    place: str
    dataset: str
    files: tuple[File, ...]
    left: Mapping[str, str]  # files of it that stay here, with the reason
    redacted: Mapping[str, int]  # secrets taken out, by file
    facts: Mapping[str, Any]

    @property
    def canary(self) -> bool:
        """Tell whether the rollout was one to try the setting with."""
        return self.facts["canary"] is True


@dataclass(frozen=True, slots=True)
class Rules:
    """What a user wants to go, and as what."""

    template: Template
    checks: Mapping[str, Check]
    dataset: str | None = None
    require_audit: bool = False
    redact: bool = False  # also what only looks like a secret, instead of keeping the rollout here
    scratch: Path | None = None  # where copies are made (None: where the system keeps what is temporary)


def choose(root: Path, rules: Rules, redactor: Redactor) -> Chosen | LeftOut:
    """Return what of a rollout goes, or why it stays. Raises: UsageError when its directory cannot be named."""
    try:
        with copied(root, rules, redactor) as (chosen, _):
            return chosen
    except Skipped as skip:
        detail: str = redactor.text(str(skip))
        return LeftOut(root, skip.reason, detail)
    except OSError as error:
        return LeftOut(root, "unreadable", f"{error.filename or root}: {error.strerror}")


@contextmanager
def copied(root: Path, rules: Rules, redactor: Redactor) -> Iterator[tuple[Chosen, Path]]:
    """Yield what of a rollout goes and the directory that holds it, redacted, as long as the context lasts.

    Raises: Skipped, OSError, UsageError when its directory cannot be named.
    """
    if not root.is_dir():
        raise Skipped("missing", "the job planned this rollout, and nothing of it is here")
    _check_done(root)
    for strange in strange_files(RunDir(root)):
        raise Skipped("unhealthy_capture", strange)
    with tempfile.TemporaryDirectory(prefix="benchflow-publish-", dir=rules.scratch) as directory:
        rundir = RunDir(Path(directory) / root.name)
        rundir.path.mkdir()
        left = copy_rollout(root, rundir.path)
        if (own := claimed_name(rundir.path)) != root.name:
            raise Skipped("copy", f"its records are those of {own}, which counts where it was made")
        review = _judged(rundir.path, rules, "unhealthy")
        _check_audit(review, rules)
        # Before anything is taken out of it: the id stays when more is known of what a secret looks like.
        trace = trace_digest(rundir)
        redacted = _cleaned(rundir, redactor, rules, audited=review.audit is not None)
        files = tuple(describe(path, path.relative_to(rundir.path).as_posix()) for path in published(rundir))
        fields, facts = _facts(root, rundir, trace, review, rules)
        place = rules.template.path(fields)
        if redactor.text(place) != place or secrets_in(place.encode()):
            raise Skipped("secret", "the name of its directory")
        yield Chosen(root, place, fields["dataset"], files, left, redacted, redactor.value(facts)), rundir.path


def _check_done(root: Path) -> None:
    """Refuse a rollout that a session is at work on. Raises: Skipped."""
    try:
        descriptor = os.open(root / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Skipped("running", "a session is at work on this rollout") from None
    finally:
        os.close(descriptor)


def _judged(path: Path, rules: Rules, reason: str) -> Review:
    """Review a copy of a rollout. Raises: Skipped when it is not healthy, or no model worked in it."""
    review = review_rollout(path, rules.checks)
    if not review.healthy:
        errors = [finding for finding in review.report.findings if finding.severity == "error"]
        said = "; ".join(f"{error.check}: {error.message}" for error in errors[:_LISTED])
        raise Skipped(f"{reason}_{review.category}", said.replace(f"{path}/", "")[:_SAID])
    if not review.uses_model:
        raise Skipped("no_model", "no model worked in this rollout")
    return review


def _check_audit(review: Review, rules: Rules) -> None:
    audit = review.audit
    if audit is None:
        if rules.require_audit:
            raise Skipped("no_audit", "there is no audit.json")
        return
    if audit.verdict in ("quarantine", "not-publishable"):
        raise Skipped(f"audit_{audit.verdict}", f"{audit.by} said so: {audit.note}"[:_SAID])
    if audit.void is not None:
        raise Skipped("audit_void", f"its audit does not stand: {audit.void.replace(f'{review.root}/', '')}")


def _cleaned(rundir: RunDir, redactor: Redactor, rules: Rules, *, audited: bool) -> dict[str, int]:
    """Redact a copied rollout and return how often, by file. Raises: Skipped when that does not make it fit to go."""
    before = trace_digest(rundir)
    done = clean(rundir, redactor, thorough=rules.redact)
    if done.secrets:
        more = f" and {len(done.secrets) - _LISTED} more" if len(done.secrets) > _LISTED else ""
        raise Skipped("secret", f"{'; '.join(done.secrets[:_LISTED])}{more}")
    if done.broken:
        raise Skipped("redaction_breaks", f"without its secrets {done.broken[0]} would be no JSON any more")
    if audited and done.redacted and trace_digest(rundir) != before:
        raise Skipped("audit_void", "the trace that was audited holds secrets, and would go without them")
    if prune(rundir) or done.redacted:
        _judged(rundir.path, rules, "unhealthy_as_published")
    return done.redacted


def _facts(
    root: Path, rundir: RunDir, trace: str, review: Review, rules: Rules
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the fields that name a rollout, and what its manifest says. Raises: UsageError."""
    rollout = Rollout(rundir.path)
    config, result = rollout.config, rollout.result
    task_path = _text(config.get("task_path"))
    task = _text(config.get("task_name")) or _text(result.get("task_name")) or (task_path and Path(task_path).name)
    dataset = rules.dataset or (Path(task_path).parent.name if task_path else None)
    if not dataset:
        raise UsageError(f"{root}: config.json names no directory of tasks to take the dataset's name from; --dataset")
    canary = config.get("canary") is True
    agent = _text(config.get("agent")) or "unknown"
    facts = {
        "id": trace,
        "job": root.resolve().parent.name,
        "rollout": root.name,
        "canary": canary,
        "task": task,
        "task_digest": _text(config.get("task_digest")),
        "agent": agent,
        "agent_version": _text(config.get("agent_version")),
        "agent_digest": _agent_digest(root, agent, config),
        "model": _text(config.get("model")),
        "reasoning_effort": _text(config.get("reasoning_effort")),
        "skill_mode": _text(config.get("skill_mode")),
        "trial": integer(config.get("trial")),
        "made_by_plugin_version": _text(config.get("plugin_version")),
        "verdict": review.verdict,
        "reward": review.facts["reward"],
        "audit": review.audit.as_json() if review.audit else None,
    }
    fields = {
        "dataset": dataset,
        "model": facts["model"] or "unknown",
        "agent": agent,
        "agent_version": facts["agent_version"] or "unknown",
        "effort": facts["reasoning_effort"] or "default",
        "canaries": "canaries" if canary else "",
        "skills": facts["skill_mode"] or "unknown",
        "task": task or "unknown",
        "trial": str(facts["trial"] or "unknown"),
        "job": facts["job"],
        "id8": trace[:8],
    }
    return fields, facts


def _agent_digest(root: Path, agent: str, config: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of the agent's manifest: its own, or that of the catalogue by the job's record."""
    own = _text(mapping(config.get("agent_manifest")).get("sha256"))
    job = root.resolve().parent / "job.json"
    if own or job.is_symlink() or not job.is_file():
        return own
    try:
        runs = runs_of(read_json(job))
    except RecordError:
        return None
    mine = [run for run in runs if run.get("session_id") == config.get("session_id")]
    found = (mapping(mapping(run.get("digests")).get("agents")).get(agent) for run in [*mine, *runs])
    return next((digest for digest in found if isinstance(digest, str)), None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
