"""Say in few words what a rollout, or many, came to: the numbers of the table and the evidence line."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.usage import tokens_of
from pytest_benchflow.records.values import integer, mapping, number, sequence
from pytest_benchflow.report.text import (
    NONE,
    UNKNOWN,
    cost_text,
    count_text,
    counted,
    one_line,
    printable,
    reward_text,
    seconds_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_benchflow.records.rollout import Rollout

_WARNING = 200  # characters of a warning that travel
_WARNINGS = 5  # different ones that are told of
# What a person reads for a verdict.
OUTCOMES = {"pass": "solved", "fail": "unsolved", "normal_timeout": "timeout"}


@dataclass(frozen=True, slots=True)
class Summary:
    """What a rollout came to; None: not known. Plain values, so that it travels between processes."""

    task: str
    agent: str
    model: str
    skills: str
    trial: int | None
    verdict: str
    category: str | None  # of an unhealthy rollout
    reward: float | None
    steps: int | None  # exchanges that count
    tool_calls: int | None
    calls_model: bool
    tokens: int | None  # as far as they are known
    cost: float | None
    completed: int | None
    with_usage: int | None
    truncated: int | None
    effort: tuple[int, int] | None  # requests with the effort asked for, of all; None: none was asked for
    training_ready: bool | None
    seconds: float | None
    directory: str
    kept: str | None = None  # where the sandbox's files are, when they were to stay
    phases: tuple[tuple[str, float], ...] = ()
    unpriced: str | None = None  # why the cost is not known
    earlier: bool = False  # it was kept from an earlier session of the job, and did not run now
    attempt: int = 1
    agent_version: str | None = None
    warnings: tuple[str, ...] = ()  # what a reader should know of it, each once and short
    tokens_whole: bool = True  # False: what some exchange took is not known, and no part of `tokens`

    @property
    def outcome(self) -> str:
        """Return solved, unsolved, timeout or unhealthy."""
        return OUTCOMES.get(self.verdict, self.verdict)

    @property
    def healthy(self) -> bool:
        """Tell whether the verdict is one of a healthy rollout."""
        return self.verdict in OUTCOMES

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a test report."""
        return asdict(self)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Summary:
        """Return the summary that `as_dict` was made from, also after a journey as JSON."""
        effort = values["effort"]
        phases = tuple((str(name), float(seconds)) for name, seconds in values["phases"])
        warnings = tuple(map(str, values["warnings"]))
        return cls(**{**values, "effort": effort and (effort[0], effort[1]), "phases": phases, "warnings": warnings})

    @property
    def score(self) -> float | None:
        """Return the reward that counts: an unhealthy rollout has none, whatever its verifier wrote."""
        return self.reward if self.healthy else None

    @property
    def paid(self) -> bool:
        """Tell whether its model costs something: recorded answers do not, and what they did cost is another run's."""
        return self.calls_model and self.model != "replay"

    @property
    def name(self) -> str:
        """Return the name of the rollout's directory."""
        return self.directory.rpartition("/")[2]

    def cells(self) -> dict[str, str]:
        """Return the row of the table by column: who, what came out, what it took, and where it is."""
        unmodelled = not self.calls_model
        return {
            "task": one_line(self.task),
            "agent": one_line(self.agent),
            "model": NONE if unmodelled else one_line(self.model),
            "skills": one_line(self.skills),
            "trial": count_text(self.trial),
            "verdict": one_line(f"{self.outcome} ({self.category})" if self.category else self.outcome),
            "reward": reward_text(self.score) if self.healthy else NONE,
            "steps": NONE if unmodelled else count_text(self.steps),
            "tokens": NONE if unmodelled else _sum_text([self.tokens], whole=self.tokens_whole),
            "cost": cost_text(self.cost) if self.paid else NONE,
            "time": seconds_text(self.seconds),
            "directory": one_line(self.name),
        }

    def properties(self) -> list[tuple[str, object]]:
        """Return the row as JUnit properties; numbers as they are, "unknown" where nothing is known."""
        values = {
            "task": self.task,
            "agent": self.agent,
            "model": self.model,
            "verdict": self.verdict,
            "reward": self.score,
            "steps": self.steps if self.calls_model else 0,
            "tokens": (self.tokens if self.tokens_whole else None) if self.calls_model else 0,
            "cost": self.cost if self.calls_model else 0,
            "time": self.seconds,
            "directory": self.directory,
        }
        values |= {"kept": "of an earlier session"} if self.earlier else {}
        if self.category is not None:
            values["category"] = self.category
        shown = {name: UNKNOWN if value is None else printable(value) for name, value in values.items()}
        return [(f"benchflow_{name}", value) for name, value in shown.items()]


def summarize(rollout: Rollout, directory: str) -> Summary:
    """Read what a rollout came to; `directory` is how to name its place. Raises: RecordError."""
    config, result = rollout.config, rollout.result
    usage = mapping(result.get("agent_result"))
    exchanges = mapping(result.get("exchanges"))
    timing = mapping(result.get("timing"))
    tokens = tokens_of(result)
    return Summary(
        task=str(result.get("task_name") or config.get("task_name")),
        agent=str(result.get("agent") or config.get("agent")),
        model=str(result.get("model") or config.get("model")),
        skills=str(result.get("skill_mode") or config.get("skill_mode")),
        trial=integer(config.get("trial")),
        verdict=rollout.verdict,
        category=result.get("verdict_category"),
        reward=rollout.reward,
        steps=integer(exchanges.get("selected")),
        tool_calls=integer(result.get("n_tool_calls")),
        calls_model=result.get("proxy") is not None,
        tokens=tokens.known,
        tokens_whole=tokens.whole,
        cost=number(usage.get("cost_usd")),
        completed=integer(exchanges.get("completed")),
        with_usage=integer(exchanges.get("with_usage")),
        truncated=integer(exchanges.get("truncated")),
        effort=_effort(rollout),
        training_ready=result.get("training_ready"),
        seconds=number(timing.get("total")),
        directory=directory,
        kept=result.get("sandbox_kept"),
        phases=tuple((name, seconds) for name, value in timing.items() if (seconds := _phase(name, value)) is not None),
        unpriced=mapping(result.get("cost")).get("unpriced"),
        attempt=integer(config.get("attempt")) or 1,
        agent_version=text if isinstance(text := config.get("agent_version"), str) else None,
        warnings=tuple(dict.fromkeys(one_line(each, limit=_WARNING) for each in sequence(result.get("warnings")))),
    )


def evidence_line(summaries: Sequence[Summary], seconds: float | None = None) -> str:
    """Return the evidence of one or many rollouts; `seconds` is how long they took, their sum when not given."""
    modelled = [summary for summary in summaries if summary.calls_model]
    effort = [summary.effort for summary in summaries if summary.effort]
    took = seconds if seconds is not None else _sum([summary.seconds for summary in summaries])
    parts = [f"{sum(summary.healthy for summary in summaries)}/{len(summaries)} healthy"]
    if modelled:
        whole = all(summary.tokens_whole for summary in modelled)
        parts.append(f"{_sum_text([summary.tokens for summary in modelled], whole=whole)} tokens")
    calls = _sum_text([summary.tool_calls for summary in summaries])
    parts.append(f"{calls} tool call{'' if calls == '1' else 's'}")
    parts.append(_reward_part(summaries))
    if modelled:
        parts.append(f"{_pair([(summary.with_usage, summary.completed) for summary in modelled])} usage")
        parts.append(f"{_sum_text([summary.truncated for summary in modelled])} truncated")
    if effort:
        parts.append(f"effort {_pair(effort)}")
    if modelled:
        parts.append(f"training_ready {sum(summary.training_ready is True for summary in modelled)}")
    parts.append(seconds_text(took))
    return " · ".join(parts)


def cost_lines(summaries: Sequence[Summary]) -> list[str]:
    """Return what the rollouts cost: no total where the cost of one is unknown, but what is known, and why not all."""
    paid = [summary for summary in summaries if summary.paid]
    if not paid:
        return []
    priced = [summary.cost for summary in paid if summary.cost is not None]
    unknown = len(paid) - len(priced)
    if not unknown:
        return [f"cost: {cost_text(sum(priced))}"]
    reasons = list(
        dict.fromkeys(one_line(summary.unpriced or "no reason is recorded") for summary in paid if summary.cost is None)
    )
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    known = f"; {cost_text(sum(priced))} for {len(priced)} priced" if priced else ""
    return [f"cost: unknown, {unknown} of {len(paid)} rollouts unpriced{known}", f"  {reasons[0]}{more}"]


def job_lines(summary: Mapping[str, Any], told: int) -> list[str]:
    """Return a line of what a job's summary.json counts, where that is of other rollouts than the `told` ones."""
    rollouts, solved = mapping(summary.get("rollouts")), integer(mapping(summary.get("solved")).get("count"))
    asked, healthy, unhealthy, missing = (
        integer(rollouts.get(name)) for name in ("asked", "healthy", "unhealthy", "missing")
    )
    if asked is None or asked == told:
        return []
    counts = f"{count_text(solved)}/{asked:,} solved · {count_text(healthy)}/{asked:,} healthy"
    return [f"the whole job: {counts} · {count_text(unhealthy)} unhealthy · {count_text(missing)} missing"]


def history_lines(summaries: Sequence[Summary]) -> list[str]:
    """Return which rollouts were kept, which took several attempts, and where one agent had several versions."""
    told = []
    if kept := sum(summary.earlier for summary in summaries):
        told.append(f"kept: {kept} of {len(summaries)} rollouts, of earlier sessions; {len(summaries) - kept} ran now")
    if again := sum(summary.attempt > 1 for summary in summaries):
        told.append(f"tried again: {again} of {len(summaries)} rollouts; earlier attempts are kept and not counted")
    versions: dict[str, Counter[str]] = {}
    for summary in summaries:
        versions.setdefault(summary.agent, Counter())[summary.agent_version or UNKNOWN] += 1
    for agent, counts in versions.items():
        if len(counts) > 1:
            parts = ", ".join(f"{count} of {one_line(version)}" for version, count in sorted(counts.items()))
            told.append(f"versions of {one_line(agent)}: {parts}")
    return told


def warning_lines(summaries: Sequence[Summary]) -> list[str]:
    """Return what rollouts warn of, each warning once with how many they are that it is of."""
    told = Counter(warning for summary in summaries for warning in summary.warnings)
    lines = []
    for warning, count in list(told.items())[:_WARNINGS]:
        lines.append(f"warning of {counted(count, 'rollout')}: {warning}")
    if len(told) > _WARNINGS:
        more = counted(len(told) - _WARNINGS, "other warning")
        lines.append(f"and {more}, which `pytest-benchflow show` tells of each rollout")
    return lines


def _reward_part(summaries: Sequence[Summary]) -> str:
    present = sum(summary.score is not None for summary in summaries)
    if len(summaries) == 1:
        return f"reward {'present' if present else 'missing' if summaries[0].reward is None else 'not counted'}"
    return f"{present}/{len(summaries)} rewards present"


def _effort(rollout: Rollout) -> tuple[int, int] | None:
    asked = rollout.config.get("reasoning_effort")
    if not isinstance(asked, str):
        return None
    from pytest_benchflow.checks._evidence import rebuilt
    from pytest_benchflow.training.account import effort_counts

    counts = effort_counts(asked, rebuilt(rollout).records, rollout.exchanges)
    return counts["requests_matching"], counts["requests"]


def _phase(name: str, value: Any) -> float | None:
    return None if name == "total" else number(value)


def _pair(pairs: Sequence[tuple[int | None, int | None]]) -> str:
    return f"{_sum_text([pair[0] for pair in pairs])}/{_sum_text([pair[1] for pair in pairs])}"


def _sum_text(values: Sequence[int | None], *, whole: bool = True) -> str:
    known = [value for value in values if value is not None]
    if whole and len(known) == len(values):
        return f"{sum(known):,}"
    return f"{sum(known):,}+?" if any(known) else UNKNOWN


def _sum(values: Sequence[float | None]) -> float | None:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)
