"""Set two jobs side by side: what one solved and the other did not, rewards and cost, with intervals."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError, UsageError
from pytest_benchflow.records.arms import Arm, arms_of, cost_record, token_record
from pytest_benchflow.records.coverage import coverage
from pytest_benchflow.records.job import rollouts_of, without_copies
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.statistics import CONFIDENCE, Estimate, difference
from pytest_benchflow.report.text import NONE, UNKNOWN, cost_text, one_line, reward_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

HELP = "compare two jobs, task by task"
TEXT = """\
Compare two jobs: the tasks that only one of them solved, the mean rewards and their difference paired by task (with its
95 % interval, a bootstrap over tasks), cost and tokens. Rollouts of the same agent, model and skill mode are compared;
two jobs with one such group each are compared whatever their names, as for two versions of an agent.
A task counts as solved when more than half of its healthy trials solved it. Unhealthy, missing and skipped cells are
counted and have no reward; tasks without a healthy rollout in both jobs are named and not compared.
Exit codes: 0 compared; 1 a record cannot be read; 2 wrong use, or nothing to compare."""

_LISTED = 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms side by side; tasks are those that both have healthy trials of."""

    before: Arm
    after: Arm

    @property
    def tasks(self) -> list[str]:
        """Return the tasks of which both have healthy trials."""
        return sorted(
            task for task, (n, _) in self.before.trials.items() if n and self.after.trials.get(task, (0, 0))[0]
        )

    @property
    def left_out(self) -> dict[str, str]:
        """Return the tasks that are not compared, each with the reason."""
        tasks = sorted({*self.before.verdicts, *self.after.verdicts} - set(self.tasks))
        return {task: self._why_left_out(task) for task in tasks}

    def _why_left_out(self, task: str) -> str:
        sides = (("before", self.before), ("after", self.after))
        lacking = [side for side, arm in sides if task not in arm.verdicts]
        if lacking:
            return f"not in the job {lacking[0]}"
        return f"no healthy rollout {' and '.join(side for side, arm in sides if not arm.trials[task][0])}"

    @property
    def solved(self) -> list[str]:
        """Return the tasks that only the second solved."""
        return [task for task in self.tasks if _solves(self.after, task) and not _solves(self.before, task)]

    @property
    def regressed(self) -> list[str]:
        """Return the tasks that only the first solved."""
        return [task for task in self.tasks if _solves(self.before, task) and not _solves(self.after, task)]

    @property
    def change(self) -> Estimate:
        """Return by how much the reward differs, paired by task."""
        return difference(self.before.rewards, self.after.rewards)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it for a JSON file."""
        return {
            "before": _side(self.before),
            "after": _side(self.after),
            "tasks_compared": len(self.tasks),
            "left_out": self.left_out,
            "solved": self.solved,
            "regressed": self.regressed,
            "reward_change": self.change.as_dict(),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("before", type=Path, metavar="JOB", help="a job's directory, such as jobs/NAME")
    parser.add_argument("after", type=Path, metavar="JOB", help="the job to compare it with")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of text")


def run(options: argparse.Namespace) -> int:
    """Print the comparison and return the exit code. Raises: UsageError, RecordError."""
    before, after = read_arms(options.before), read_arms(options.after)
    compared = compare(before, after)
    if not compared:
        raise UsageError(
            f"{options.before} has {_names(before)}, {options.after} has {_names(after)}: nothing is the same in both"
        )
    alone = _alone(before, after, compared)
    if options.json:
        facts = {"comparisons": [each.as_dict() for each in compared], "only_in_one": alone}
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
        return 0
    lines = [line for each in compared for line in (*comparison_lines(each), "")]
    lines += [f"not compared, for only one job has it: {one_line(name)}" for name in alone]
    sys.stdout.write("\n".join(lines).rstrip("\n") + "\n")
    return 0


def read_arms(job_dir: Path) -> list[Arm]:
    """Return what a job's rollouts came to.

    Raises: UsageError when there are none, RecordError when the job's plan is there and cannot be read.
    """
    rollouts = without_copies(rollouts_of(job_dir))[0] if job_dir.is_dir() else []
    if not rollouts:
        raise UsageError(f"{job_dir} is no job with rollouts; name a directory such as jobs/NAME")
    if (job_dir / "job.json").is_file():
        try:
            read_json(job_dir / "job.json")
        except RecordError as error:
            raise RecordError(f"{error}; without it nobody knows what was planned, and what of it is missing") from None
    healthy = {}
    for rollout in rollouts:
        try:
            healthy[rollout.path.name] = rollout.healthy
        except RecordError:
            healthy[rollout.path.name] = False
    return arms_of(job_dir, rollouts, coverage(job_dir, healthy))


def compare(before: Sequence[Arm], after: Sequence[Arm]) -> list[Comparison]:
    """Pair the arms of two jobs: those of one name, or the only ones."""
    second = {arm.key: arm for arm in after}
    if len(before) == len(after) == 1:
        return [Comparison(before[0], after[0])]
    return [Comparison(arm, second[arm.key]) for arm in before if arm.key in second]


def comparison_lines(compared: Comparison) -> Iterator[str]:
    """Yield what a person reads of one comparison."""
    before, after, change = compared.before, compared.after, compared.change
    same = before.key == after.key
    yield _name(before) if same else f"{_name(before)} → {_name(after)}"
    yield f"  {'':<8}{'before':>12}{'after':>12}"
    rows = {
        "solved": [f"{counts['pass']}/{counts['planned']}" for counts in map(_counts, (before, after))],
        "reward": [reward_text(arm.reward.mean) if arm.rewards else NONE for arm in (before, after)],
        "cost": [_cost(arm) for arm in (before, after)],
        "tokens": [f"{arm.tokens:,}{'+?' if arm.unknown_tokens else ''}" for arm in (before, after)],
    }
    for name in ("unhealthy", "missing", "skipped"):
        if any(_counts(arm)[name] for arm in (before, after)):
            rows[name] = [str(_counts(arm)[name]) for arm in (before, after)]
    yield from (f"  {name:<10}{first:>10}{second:>12}" for name, (first, second) in rows.items())
    for side, arm in (("before", before), ("after", after)):
        if len(arm.versions) > 1:
            yield f"  {side}: {_versions(arm)}"
    yield f"  {_change_text(change, change.tasks + len(compared.left_out))}"
    yield from _listed("solved now", compared.solved)
    yield from _listed("regressed", compared.regressed)
    if left_out := compared.left_out:
        yield from _listed("not compared", [f"{task}: {why}" for task, why in left_out.items()])


def _listed(word: str, items: Sequence[str]) -> Iterator[str]:
    yield f"  {word}: {len(items) or 'none'}"
    yield from (f"    {one_line(item)}" for item in items[:_LISTED])
    if len(items) > _LISTED:
        yield f"    and {len(items) - _LISTED} more, which --json lists"


def _side(arm: Arm) -> dict[str, Any]:
    return {
        "agent": arm.agent,
        "model": arm.model,
        "skills": arm.skills,
        **_counts(arm),
        "agent_versions": arm.as_dict()["agent_versions"],
        "reward": arm.reward.as_dict(),
        "cost_usd": cost_record(arm.cost_usd, arm.unpriced),
        "tokens": token_record(arm.tokens, arm.unknown_tokens),
    }


def _versions(arm: Arm) -> str:
    """Say which versions of its agent an arm mixes."""
    parts = sorted((version or UNKNOWN, count) for version, count in arm.versions.items())
    return "versions mixed, " + ", ".join(f"{count} of {one_line(version)}" for version, count in parts)


def _counts(arm: Arm) -> Mapping[str, int]:
    """Return how many cells were planned to run, and what became of them."""
    numbers = {name: sum(counts[name] for counts in arm.verdicts.values()) for name in _COUNTED}
    total = sum(counts.total() for counts in arm.verdicts.values())
    return {"planned": total - numbers["skipped"], **numbers}


_COUNTED = ("pass", "unhealthy", "missing", "skipped")


def _cost(arm: Arm) -> str:
    return cost_text(None if arm.unpriced else arm.cost_usd) if arm.paid else NONE


def _solves(arm: Arm, task: str) -> bool:
    trials, solved = arm.trials[task]
    return 2 * solved > trials


def _change_text(change: Estimate, tasks: int) -> str:
    """Say by how much the reward changed, and over how many of all tasks."""
    if change.mean is None:
        return "nothing is known of a change: no task has healthy rollouts in both"
    over = f"{change.tasks} of {tasks} tasks" if change.tasks < tasks else f"{tasks} task{'' if tasks == 1 else 's'}"
    spread = "" if change.low is None else f" ({CONFIDENCE:.0%} interval {change.low:+.3f} to {change.high:+.3f})"
    return f"reward changed by {change.mean:+.3f}{spread} over {over}"


def _alone(before: Sequence[Arm], after: Sequence[Arm], compared: Sequence[Comparison]) -> list[str]:
    met = {id(arm) for each in compared for arm in (each.before, each.after)}
    return [_name(arm) for arm in (*before, *after) if id(arm) not in met]


def _name(arm: Arm) -> str:
    return one_line(" · ".join(part for part in arm.key if part not in ("none", "default")))


def _names(arms: Sequence[Arm]) -> str:
    return ", ".join(map(_name, arms))
