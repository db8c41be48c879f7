"""Say of each slot of a job, the planned cell that a rollout belongs to, whether it is filled, and how well."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.attempts import attempts_of
from pytest_benchflow.records.coverage import CELLS, notes_of, planned_cells, runs_of
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.find import find_rollouts
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# What a slot may be; a job is complete when every one is healthy.
STATES = ("healthy", "unhealthy", "stale", "duplicate", "missing", "skipped")


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot; `rollout` is the name of its directory, `directories` are those that say they are its rollout."""

    rollout: str
    state: str
    reason: str | None = None
    directories: tuple[str, ...] = ()
    attempts: int = 0  # earlier ones, kept beside the rollout that counts

    def as_json(self) -> dict[str, Any]:
        """Return the slot as `pytest-benchflow coverage --json` prints it."""
        return {
            "rollout": self.rollout,
            "state": self.state,
            "reason": self.reason,
            "directories": list(self.directories),
            "attempts": self.attempts,
        }


def counts_of(slots: list[Slot]) -> dict[str, int]:
    """Return how many slots a job has, and how many are in each state."""
    counts = Counter(slot.state for slot in slots)
    return {"expected": len(slots), **{state: counts[state] for state in STATES}}


def slots_of(job_dir: Path) -> list[Slot]:
    """Return the slots of a job: those that were planned in their order, then rollouts that nobody planned.

    Directories of runs are untrusted: no link is followed, and what cannot be read is unhealthy.
    """
    plan = _read_plan(job_dir)
    claims: dict[str, list[Path]] = {}
    for path in find_rollouts(job_dir):
        claims.setdefault(claimed_name(path), []).append(path)
    slots = []
    for name in plan.names:
        note = plan.notes.get(name, {})
        actual = str(note["rollout"]) if "rollout" in note else name
        slots.append(_slot(job_dir, plan, actual, claims.pop(actual, [])))
    return slots + [_slot(job_dir, plan, name, claims[name]) for name in sorted(claims)]


def claimed_name(path: Path) -> str:
    """Return the name that a rollout was given when it began; that of its directory where its records say none."""
    name = _config(path).get("rollout_name")
    return name if isinstance(name, str) and name else path.name


@dataclass(slots=True)
class _Plan:
    names: list[str] = field(default_factory=list)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)  # of a slot's task
    tasks: dict[str, str] = field(default_factory=dict)  # the latest digest by path
    agents: dict[str, Any] = field(default_factory=dict)  # the latest digest by name
    agents_then: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # those of each session
    mixes: bool = False  # a later session accepted another version of an agent


def _read_plan(job_dir: Path) -> _Plan:
    plan = _Plan(notes={str(note.get("cell")): note for note in notes_of(job_dir / CELLS)})
    for entry in planned_cells(job_dir / "job.json"):
        plan.paths[str(entry.get("rollout"))] = str(entry.get("task_path"))
    plan.names = list(plan.paths)
    try:
        runs = runs_of(read_json(job_dir / "job.json"))
    except RecordError:
        return plan
    for run in runs:
        digests = mapping(run.get("digests"))
        plan.tasks |= mapping(digests.get("tasks"))
        plan.agents |= mapping(digests.get("agents"))
        plan.agents_then[str(run.get("session_id"))] = mapping(digests.get("agents"))
        plan.mixes |= "agent_version" in sequence(mapping(run.get("settings")).get("accept_change"))
    return plan


def _slot(job_dir: Path, plan: _Plan, name: str, paths: list[Path]) -> Slot:
    note, own = plan.notes.get(name, {}), job_dir / name
    places = tuple(str(path.relative_to(job_dir)) for path in paths)
    if not paths:
        if "skipped" in note:
            return Slot(name, "skipped", str(note["skipped"]))
        return Slot(name, "missing", str(note["error"]) if "error" in note else None)
    earlier = sum(len(attempts_of(Rollout(path).dir)) for path in paths)
    if len(paths) > 1:
        return Slot(name, "duplicate", f"{len(paths)} directories hold it: {', '.join(places)}", places, earlier)
    if paths != [own]:
        return Slot(name, "missing", f"its rollout lies in {places[0]}, which must be named {name}", places, earlier)
    reason = next(_why_stale(plan, name, _config(own)), None)
    if reason:
        return Slot(name, "stale", reason, places, earlier)
    state, reason = _health(Rollout(own))
    return Slot(name, state, reason, places, earlier)


def _why_stale(plan: _Plan, name: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a rollout is none of what the job's latest session plans."""
    planned = plan.tasks.get(plan.paths.get(name, ""))
    if planned and config and config.get("task_digest") != planned:
        yield f"its task was {str(config.get('task_digest'))[:12]}, and is planned as {planned[:12]}"
    agent = str(config.get("agent"))
    then = plan.agents_then.get(str(config.get("session_id")), {})
    if not plan.mixes and agent in then and then[agent] != plan.agents.get(agent):
        yield f"the catalogue entry of {agent} was {str(then[agent])[:12]}, and is {str(plan.agents.get(agent))[:12]}"


def _health(rollout: Rollout) -> tuple[str, str | None]:
    try:
        for strange in strange_files(rollout.dir):
            return "unhealthy", strange
        if not rollout.dir.result.exists():
            return "unhealthy", "it has no result: its session is at work on it, or was killed"
        result = rollout.result
    except (RecordError, OSError) as error:
        return "unhealthy", str(error)
    if rollout.healthy:
        return "healthy", None
    said = result.get("error") or result.get("verifier_error")
    if said is None:
        found = map(mapping, sequence(mapping(result.get("checks")).get("findings")))
        said = next((each.get("message") for each in found if each.get("severity") == "error"), None)
    category = result.get("verdict_category") or "no category"
    return "unhealthy", f"{category}: {said}" if said else str(category)


def _config(path: Path) -> Mapping[str, Any]:
    file = Rollout(path).dir.config
    try:
        return read_json(file) if file.is_file() and not file.is_symlink() else {}
    except (RecordError, OSError):
        return {}
