"""Verify kept workspaces again: no agent runs, what happened stays as it was, and the first record is kept whole."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks.execution import TIMEOUT_CATEGORIES
from pytest_benchflow.contracts import SandboxSpec
from pytest_benchflow.errors import BenchflowError, RecordError
from pytest_benchflow.records.attempts import is_number
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.journal import Journal, read_json, read_records, write_json
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.values import mapping, now, number
from pytest_benchflow.rollout.cell import resolve
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.ledger import facts_of
from pytest_benchflow.rollout.limits import time_limits
from pytest_benchflow.rollout.needs import verifier_policy
from pytest_benchflow.rollout.outcome import complete, empty_result
from pytest_benchflow.rollout.verify import verify
from pytest_benchflow.sandboxes._local.sessions import base_directory
from pytest_benchflow.settings import host_variable
from pytest_benchflow.tasks.load import is_task, load_task, task_digest

if TYPE_CHECKING:
    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.rollout.cell import Cell
    from pytest_benchflow.rollout.host import Host
    from pytest_benchflow.rollout.verify import Score
    from pytest_benchflow.tasks.task import Task

# What the first record holds of a rollout that a verifier decides on.
_FIRST = ("result.json", "results.jsonl", "verifier")
_DRAFT = ".draft"
_RECORD = "regrade.json"
_KEPT_NAME = re.compile(r"bf-[0-9]+-[0-9a-f]{8}")
_NEXT_TIME = "--benchflow-keep-sandbox keeps it the next time"


@dataclass(frozen=True, slots=True)
class Ready:
    """A rollout whose workspace can be verified again."""

    rundir: RunDir
    cell: Cell
    kept: Path


class NotRegradedError(BenchflowError, ValueError):
    """A rollout cannot be verified again; the text is the reason."""


def prepare(rollout: Rollout) -> Ready:
    """Look whether a rollout can be verified again. Raises: NotRegradedError with the reason, RecordError."""
    config, result = rollout.config, rollout.result
    if result.get("verdict") is None:
        raise NotRegradedError("it has no verdict yet; --benchflow-resume fills it")
    category = result.get("error_category")
    if (category or result.get("error")) and category not in TIMEOUT_CATEGORIES:
        raise NotRegradedError(f"its run failed ({category}), and no verifier undoes that; --benchflow-resume fills it")
    if result.get("verdict") == "unhealthy" and result.get("verdict_category") != "verifier":
        raise NotRegradedError(
            f"it is unhealthy for another reason than its verifier ({result.get('verdict_category')}), and stays so"
        )
    kept = _kept(result)
    task = _task(config)
    if len(task.steps) != 1 or task.steps[0].tests is None:
        raise NotRegradedError("its task has no tests, or several steps that were each verified before the next began")
    cell = resolve(RolloutConfig(task, agent="nop", sandbox=str(config.get("environment"))))
    if not hasattr(cell.backend, "reopen"):
        raise NotRegradedError(f"the {cell.backend.name} sandbox keeps no workspace; the local one does")
    return Ready(rollout.dir, cell, kept)


def check_plain(rundir: RunDir) -> None:
    """Refuse a rollout that has a link or a pipe where files are read and written. Raises: RecordError."""
    strange = strange_files(rundir)
    strange += [f"{path.name} is a link" for path in (rundir.path, rundir.regrades) if path.is_symlink()]
    for each in strange:
        raise RecordError(f"{rundir.path}: neither read nor written, as {each}")


def _kept(result: dict[str, Any]) -> Path:
    """Return the kept workspace: by its name in the place where this user's are, whatever path a record may hold."""
    named = result.get("sandbox_kept")
    if not named:
        raise NotRegradedError(f"its workspace was not kept; {_NEXT_TIME}")
    base = base_directory()
    path = base.with_name(f"{base.name}-kept") / Path(str(named)).name
    if not _KEPT_NAME.fullmatch(path.name) or path.name != result.get("sandbox_id"):
        raise NotRegradedError(f"its record names {str(named)!r} as the workspace, which is none that was kept here")
    if path.is_symlink() or not path.is_dir():
        raise NotRegradedError(f"its workspace is gone from {path}; {_NEXT_TIME}")
    return path


def _task(config: dict[str, Any]) -> Task:
    place = Path(str(config.get("task_path")))
    if not place.is_absolute() or not is_task(place):
        raise NotRegradedError(f"its task is not at {place} any more")
    task = load_task(place)
    found = task_digest(task)
    if found != config.get("task_digest"):
        was, now_is = str(config.get("task_digest"))[:12], found[:12]
        raise NotRegradedError(
            f"its task is another one now (digest {now_is}, not {was}): a score by other tests is no score of this "
            "rollout; restore the task"
        )
    return task


async def regrade(ready: Ready, host: Host) -> tuple[dict[str, Any], dict[str, Any]]:
    """Verify a workspace again and return result.json as it was and as it is. Raises: SandboxError, RecordError.

    What was there is in regrades/<k>/first/ before anything else changes, and a kill leaves the one or the other.
    """
    rundir, cell = ready.rundir, ready.cell
    rundir.regrades.mkdir(exist_ok=True)
    draft = rundir.regrades / _DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "verifier").mkdir(parents=True)
    names = [*cell.secrets, *(host_variable(name) or "" for name in mapping(read_json(rundir.config).get("agent_env")))]
    redactor = Redactor(names)
    begun = now()
    score, sandbox_id = await _verify(ready, host, draft / "verifier", redactor)
    for name in _FIRST:
        _copy(rundir.path / name, draft / "first" / name)
    record = {
        "begun_at": begun,
        "finished_at": now(),
        "task_digest": task_digest(cell.task),
        "sandbox_id": sandbox_id,
        "workspace": ready.kept.name,
        "rewards": dict(score.rewards) if score.rewards else None,
        "verifier_error": score.error and redactor.text(score.error),
        "verifier_error_category": score.category,
        "redactions": redactor.count,
    }
    write_json(draft / _RECORD, record)
    done = draft.rename(rundir.regrades / str(_last(rundir) + 1))
    return _apply(rundir, done)


def finish_begun(rundir: RunDir) -> bool:
    """Complete the regrade that a kill left half applied; False: there is none."""
    last = _last(rundir)
    if not last:
        return False
    result = read_json(rundir.result)
    if mapping(result.get("regraded")).get("count") == last and result.get("verdict") is not None:
        return False
    _apply(rundir, rundir.regrades / str(last))
    return True


def _last(rundir: RunDir) -> int:
    """Return the number of the latest regrade, 0 where there is none."""
    places = rundir.regrades.iterdir() if rundir.regrades.is_dir() else ()
    return max((int(path.name) for path in places if is_number(path.name) and not path.is_symlink()), default=0)


def _apply(rundir: RunDir, done: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let a regrade count. Everything follows from its own directory, so that it can be done twice."""
    record, first = read_json(done / _RECORD), read_json(done / "first" / "result.json")
    rewards, config = _rewards(done, record), read_json(rundir.config)
    fresh = done / ".fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    _copy(done / "verifier", fresh)
    shutil.rmtree(rundir.verifier, ignore_errors=True)
    fresh.rename(rundir.verifier)
    told = list(read_records(rundir.rewards)) if rundir.rewards.is_file() else []
    if rewards and not any(each.get("regrade") == int(done.name) for each in told):
        journal = Journal(rundir.rewards)
        journal.append(
            {"step": None, "rewards": rewards, "timestamp": record.get("finished_at"), "regrade": int(done.name)}
        )
        journal.close()
    names = {"verdict": "verdict", "category": "verdict_category", "rewards": "rewards"}
    original = {name: first.get(told_as) for name, told_as in names.items()}
    result = {
        **empty_result(rundir, config),
        **first,
        "rewards": rewards,
        "step_rewards": {"task": rewards or {}},
        "verifier_error": record.get("verifier_error"),
        "verifier_error_category": record.get("verifier_error_category"),
        # Written as its last: until then a start completes it.
        "verdict": None,
        "verdict_category": None,
        "regraded": {
            "count": int(done.name),
            "at": record.get("finished_at"),
            "first": mapping(first.get("regraded")).get("first") or original,
        },
    }
    complete(rundir, result, config)
    return first, read_json(rundir.result)


def _rewards(done: Path, record: dict[str, Any]) -> dict[str, float] | None:
    """Return the rewards of a regrade. Raises: RecordError for what is no score, or no reason why there is none."""
    rewards = record.get("rewards")
    if rewards is None and record.get("verifier_error_category"):
        return None
    if isinstance(rewards, dict) and "reward" in rewards and all(number(each) is not None for each in rewards.values()):
        return rewards
    raise RecordError(f"{done / _RECORD}: it tells neither rewards, with numbers, nor why there are none")


async def _verify(ready: Ready, host: Host, keep: Path, redactor: Redactor) -> tuple[Score, str]:
    cell, task, backend = ready.cell, ready.cell.task, ready.cell.backend
    sandbox_id = f"{ready.kept.name}-again"
    scratch = host.scratch.new(sandbox_id)
    spec = SandboxSpec(id=sandbox_id, task=task, scratch=scratch, env=cell.environment)
    facts = facts_of(backend, spec, rollout=ready.rundir.path.name)
    host.ledger.add(ready.rundir.path.parent, "create", **facts)
    try:
        sandbox = await backend.reopen(spec, ready.kept)  # type: ignore[attr-defined] # as `prepare` has seen
        try:
            step = task.steps[0]
            score = await verify(
                task,
                step,
                sandbox,
                policy=verifier_policy(task, step),
                timeout_sec=time_limits(cell.config, task, step).verifier,
                keep=keep,
                redactor=redactor,
            )
        finally:
            await sandbox.stop()
    finally:
        host.scratch.discard(scratch)
        host.ledger.add(ready.rundir.path.parent, "deleted", **facts)
    return score, sandbox_id


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a directory of a rollout, where there is one; what links lead to is left where it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        raise RecordError(f"{source} is a link, and no record of a rollout is one")
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    elif source.is_file():
        shutil.copy2(source, target)
