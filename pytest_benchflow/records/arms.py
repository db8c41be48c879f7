"""Gather a job's rollouts by what is compared: agent, model and skill mode, each with its rewards by task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.coverage import Coverage, planned_cells
from pytest_benchflow.records.rollout import HEALTHY_VERDICTS
from pytest_benchflow.records.statistics import Estimate, difference, estimate, pass_all, pass_at
from pytest_benchflow.records.usage import tokens_of
from pytest_benchflow.records.values import mapping, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout

_SKILLS = {"with-skill": "with", "no-skill": "without"}


@dataclass(slots=True)
class Arm:
    """The rollouts of one agent, model and skill mode; a cell without a rollout is among its verdicts."""

    agent: str
    model: str
    skills: str
    verdicts: dict[str, Counter[str]] = field(default_factory=dict)  # by task
    rewards: dict[str, list[float]] = field(default_factory=dict)  # by task; of healthy rollouts
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by phase
    tokens: int = 0  # as far as they are known
    unknown_tokens: int = 0  # rollouts with a model of which nobody knows how many
    cost_usd: float = 0.0
    paid: int = 0  # rollouts of a model that costs something
    unpriced: int = 0  # those of them of which nobody knows what
    versions: Counter[str | None] = field(default_factory=Counter)  # rollouts by the version of their agent

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what tells it from others."""
        return self.agent, self.model, self.skills

    @property
    def reward(self) -> Estimate:
        """Return the mean reward of its healthy rollouts, over the tasks' means."""
        return estimate(self.rewards)

    @property
    def trials(self) -> dict[str, tuple[int, int]]:
        """Return by task how many rollouts were healthy, and how many of these solved it."""
        return {
            task: (sum(counts[verdict] for verdict in HEALTHY_VERDICTS), counts["pass"])
            for task, counts in self.verdicts.items()
        }

    @property
    def planned(self) -> dict[str, int]:
        """Return by task how many rollouts were to run, whatever became of them; what was skipped could not."""
        return {task: counts.total() - counts["skipped"] for task, counts in self.verdicts.items()}

    def note(self, task: str, verdict: str, reward: float | None) -> None:
        """Count one cell; only a healthy rollout has a reward that counts."""
        self.verdicts.setdefault(task, Counter())[verdict] += 1
        if verdict in HEALTHY_VERDICTS and reward is not None:
            self.rewards.setdefault(task, []).append(reward)

    def as_dict(self) -> dict[str, Any]:
        """Return its numbers for summary.json. `solved.of` is all that was planned, whatever became of it."""
        counts = sum(self.verdicts.values(), Counter())
        trials, planned = self.trials, self.planned
        return {
            "agent": self.agent,
            "model": self.model,
            "skills": self.skills,
            "agent_versions": [
                {"version": version, "rollouts": count}
                for version, count in sorted(self.versions.items(), key=lambda each: each[0] or "")
            ],
            "solved": {
                "count": counts["pass"],
                "of": counts.total() - counts["skipped"],
                **{name: counts[name] for name in ("unhealthy", "missing", "skipped")},
            },
            "reward": {**self.reward.as_dict(), "of": sum(count > 0 for count in planned.values())},
            "pass_at": _by_k(pass_at, trials, planned),
            "pass_all": _by_k(pass_all, trials, planned),
            "tokens": token_record(self.tokens, self.unknown_tokens),
            "cost_usd": cost_record(self.cost_usd, self.unpriced),
            "seconds": {name: sum(values) / len(values) for name, values in sorted(self.seconds.items())},
            "tasks": {
                task: {
                    "verdicts": dict(sorted(self.verdicts[task].items())),
                    "mean_reward": estimate({task: self.rewards.get(task, [])}).mean,
                }
                for task in sorted(self.verdicts)
            },
        }


def arms_of(job_dir: Path, rollouts: Iterable[Rollout], found: Coverage) -> list[Arm]:
    """Return the arms of a job in the order of their names; `found` tells of the cells without a rollout."""
    planned = {str(cell.get("rollout")): cell for cell in planned_cells(job_dir / "job.json")}
    arms: dict[tuple[str, str, str], Arm] = {}
    for rollout in rollouts:
        config, result = _read(rollout)
        told = planned.get(rollout.path.name) or {**config, "task": result.get("task_name") or config.get("task_name")}
        arm = _arm(arms, told)
        arm.note(str(told.get("task")), counted_as(result), rollout.reward if result else None)
        _add_use(arm, rollout, result)
        arm.versions[version if isinstance(version := config.get("agent_version"), str) else None] += 1
        for name, value in mapping(result.get("timing")).items():
            if (seconds := number(value)) is not None:
                arm.seconds.setdefault(name, []).append(seconds)
    for verdict, names in (("skipped", found.skipped), ("missing", found.missing)):
        for name in names:
            cell = planned.get(name, {})
            _arm(arms, cell).note(str(cell.get("task")), verdict, None)
    return [arms[key] for key in sorted(arms)]


def skill_lifts(arms: Iterable[Arm]) -> list[dict[str, Any]]:
    """Return for each agent and model run with and without skills what they add, paired by task.

    A task that was to run both ways and has no healthy rollout of one of them makes no pair, and is `left_out`.
    """
    by_key = {arm.key: arm for arm in arms}
    found = []
    for (agent, model, skills), arm in by_key.items():
        without = by_key.get((agent, model, "without"))
        if skills != "with" or without is None:
            continue
        both = [task for task, count in arm.planned.items() if count and without.planned.get(task)]
        found.append(
            {
                "agent": agent,
                "model": model,
                "lift": {**difference(without.rewards, arm.rewards).as_dict(), "of": len(both)},
                "left_out": sorted(task for task in both if not (arm.rewards.get(task) and without.rewards.get(task))),
            }
        )
    return found


def is_paid(rollout: Rollout) -> bool:
    """Tell whether a rollout asks a model that costs something, also one of which nothing else can be read."""
    try:
        return rollout.config.get("model") not in ("none", "replay")
    except RecordError:
        return True


def cost_record(known: float, unpriced: int) -> dict[str, float | int | None]:
    """Return a sum of costs in US dollars for a JSON file; there is no total where one of them is not known."""
    known = round(known, 10)
    return {"total": None if unpriced else known, "priced_subtotal": known, "unpriced": unpriced}


def counted_as(result: Mapping[str, Any]) -> str:
    """Return the verdict that a result counts as: what is not known to be healthy is not."""
    verdict = result.get("verdict")
    return verdict if isinstance(verdict, str) and verdict in HEALTHY_VERDICTS else "unhealthy"


def calls_model(rollout: Rollout) -> bool:
    """Tell whether a rollout has a model, also one of which nothing else can be read."""
    try:
        return rollout.config.get("model") != "none"
    except RecordError:
        return True


def token_record(known: int, unknown: int) -> dict[str, int | None]:
    """Return a sum of tokens for a JSON file; there is no total where those of one rollout are not known."""
    return {"total": None if unknown else known, "subtotal": known, "unknown": unknown}


def _add_use(arm: Arm, rollout: Rollout, result: Mapping[str, Any]) -> None:
    tokens = tokens_of(result)
    arm.tokens += tokens.known
    arm.unknown_tokens += not tokens.whole and calls_model(rollout)
    cost = number(mapping(result.get("agent_result")).get("cost_usd"))
    arm.cost_usd += cost or 0.0
    paid = is_paid(rollout)
    arm.paid += paid
    arm.unpriced += paid and cost is None


def arm_key(told: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return agent, model and skill mode of a planned cell, or of a rollout's config.json."""
    recorded = str(told.get("skill_mode"))
    return str(told.get("agent")), str(told.get("model")), str(told.get("skills") or _SKILLS.get(recorded, recorded))


def _arm(arms: dict[tuple[str, str, str], Arm], told: Mapping[str, Any]) -> Arm:
    key = arm_key(told)
    return arms.setdefault(key, Arm(*key))


def _read(rollout: Rollout) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return config.json and result.json, empty where they cannot be read."""
    found: list[dict[str, Any]] = []
    for name in ("config", "result"):
        try:
            found.append(getattr(rollout, name))
        except RecordError:
            found.append({})
    return found[0], found[1]


def _by_k(
    chance: Any, trials: Mapping[str, tuple[int, int]], planned: Mapping[str, int]
) -> dict[str, dict[str, float | int | None]]:
    """Return a chance for each k up to the most trials planned of a task, with over how many tasks of all it is."""
    found = {k: chance(k, trials) for k in range(1, max(planned.values(), default=0) + 1)}
    return {
        str(k): {"chance": value, "tasks": tasks, "of": sum(count >= k for count in planned.values())}
        for k, (value, tasks) in found.items()
    }
