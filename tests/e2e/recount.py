"""Work every number of a job's summary.json out again from what its rollouts left, with nothing of the package.

    python recount.py jobs/NAME

Prints what differs, a line each, and exits with 1; prints how many numbers agree, and exits with 0.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

HEALTHY = ("pass", "fail", "normal_timeout")
# A bootstrap draws; here all that it could draw is gone through.
DRAWN = 0.06
RESAMPLES = 0.025


def load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()] if path.is_file() else []


class Attempt:
    """One attempt at a rollout, by its raw files alone: the gateway's log, the verifier's own file, the timing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = load(path / "config.json")
        result = load(path / "result.json") if (path / "result.json").is_file() else {}
        self.error, self.category = result.get("error_category"), result.get("verdict_category")
        self.verifier_error = result.get("verifier_error_category")
        self.faults = [each for each in result.get("checks", {}).get("findings", []) if each["severity"] == "error"]
        text = path / "verifier" / "reward.txt"
        self.reward = float(text.read_text()) if text.is_file() and not self.verifier_error else None
        self.answers = [
            (each["response"] or {}).get("body")
            for each in lines(path / "trajectory" / "llm_trajectory.jsonl")
            if (each["response"] or {}).get("status_code") == 200
        ]
        self.open = sum(each["response"] is None for each in lines(path / "trajectory" / "llm_trajectory.jsonl"))
        self.timing = load(path / "timing.json") if (path / "timing.json").is_file() else {}

    @property
    def verdict(self) -> str:
        if self.reward is None or self.faults or self.error not in (None, "timeout"):
            return "unhealthy"
        return "normal_timeout" if self.error else "pass" if self.reward >= 1 else "fail"

    @property
    def asks(self) -> bool:
        return bool(self.config["model"] != "none")

    @property
    def usage(self) -> list[dict[str, Any]]:
        return [body["usage"] for body in self.answers if body and body.get("usage")]

    @property
    def tokens(self) -> int | None:
        """None: a request was cut or an answer has no usage, and nobody knows what it took; or no model was asked."""
        if not self.asks or self.open or len(self.usage) < len(self.answers):
            return None
        return sum(int(each["prompt_tokens"]) + int(each["completion_tokens"]) for each in self.usage)

    @property
    def cost(self) -> float | None:
        if not self.asks:
            return 0.0
        if self.tokens is None:
            return None
        (rate,) = self.config["price"]["usd_per_million_tokens"]
        total = 0.0
        for each in self.usage:
            cached = (each.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            fresh = each["prompt_tokens"] - cached
            total += fresh * rate["input"] + cached * rate["cache_read"] + each["completion_tokens"] * rate["output"]
        return total / 1e6


def spread(means: list[float]) -> tuple[float | None, float | None]:
    """Return the bounds of a bootstrap interval by going through each resample there can be."""
    if len(means) < 2:
        return None, None
    every = sorted(sum(each) / len(means) for each in itertools.product(means, repeat=len(means)))
    cut = int(len(every) * RESAMPLES)
    return every[cut], every[-1 - cut]


def mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def tokens_of(attempts: list[Attempt]) -> dict[str, Any]:
    known = [each.tokens for each in attempts if each.asks]
    total = sum(each for each in known if each is not None)
    unknown = sum(each is None for each in known)
    return {"total": None if unknown else total, "subtotal": total, "unknown": unknown}


def cost_of(attempts: list[Attempt]) -> dict[str, Any]:
    known = [each.cost for each in attempts]
    total = sum(each for each in known if each is not None)
    unpriced = sum(each is None for each in known)
    return {"total": None if unpriced else total, "priced_subtotal": total, "unpriced": unpriced}


def recount(job: Path) -> dict[str, Any]:
    plan = load(job / "job.json")
    runs = [plan, *plan["further_runs"]]
    cells = {cell["rollout"]: cell for run in runs for cell in run["matrix"] or ()}
    found = {name: Attempt(job / name) for name in cells if (job / name / "config.json").is_file()}
    missing = sorted(set(cells) - set(found), key=list(cells).index)
    verdicts = Counter(each.verdict for each in found.values())
    healthy = sum(verdicts[name] for name in HEALTHY)
    rewards = [each.reward for each in found.values() if each.verdict in HEALTHY and each.reward is not None]
    before = [Attempt(path) for name in cells for path in sorted((job / name).glob("attempts/[0-9]*"))]
    arms: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, cell in cells.items():
        arm = arms.setdefault((cell["agent"], cell["model"], cell["skills"]), defaultdict(list))
        arm[cell["task"]].append(found.get(name))
    count = len(cells)
    totals = {"planned": count, "healthy": healthy, "unhealthy": len(found) - healthy, "skipped": 0}
    totals["missing"] = len(missing)
    return {
        "schema_version": 1,
        "rollouts": {
            "asked": count,
            "healthy": healthy,
            "unhealthy": len(found) - healthy,
            "missing": len(missing),
        },
        "solved": {"count": verdicts["pass"], "of": count, "rate": verdicts["pass"] / count},
        "verdicts": {**verdicts, **({"missing": len(missing)} if missing else {})},
        "unhealthy_categories": dict(Counter(e.category for e in found.values() if e.verdict == "unhealthy")),
        "reward": {"scored": len(rewards), "asked": count, "mean": mean(rewards)},
        "tokens": tokens_of(list(found.values())),
        "cost_usd": cost_of(list(found.values())),
        "arms": [arm_of(key, arms[key]) for key in sorted(arms)],
        "skill_lift": [],
        "coverage": totals,
        "canaries": dict.fromkeys(totals, 0),
        "skipped": [],
        "missing": [{"rollout": name, "reason": None} for name in missing],
        "copies": [],
        "earlier_attempts": {
            "count": len(before),
            "by_end": dict(Counter(each.category or each.verdict for each in before)),
            "tokens": tokens_of(before),
            "cost_usd": cost_of(before),
        },
    }


def arm_of(key: tuple[str, str, str], tasks: dict[str, list[Attempt | None]]) -> dict[str, Any]:
    each = [(task, attempt) for task, attempts in tasks.items() for attempt in attempts]
    ran = [attempt for _, attempt in each if attempt]
    counts = Counter(attempt.verdict if attempt else "missing" for _, attempt in each)
    by_task: dict[str, list[float]] = defaultdict(list)
    for task, attempt in each:
        if attempt and attempt.verdict in HEALTHY and attempt.reward is not None:
            by_task[task].append(attempt.reward)
    means = [sum(by_task[task]) / len(by_task[task]) for task in sorted(by_task)]
    low, high = spread(means)
    trials = {
        task: (
            sum(attempt is not None and attempt.verdict in HEALTHY for attempt in attempts),
            sum(attempt is not None and attempt.verdict == "pass" for attempt in attempts),
            len(attempts),
        )
        for task, attempts in tasks.items()
    }
    phases: dict[str, list[float]] = defaultdict(list)
    for attempt in ran:
        for name, value in attempt.timing.items():
            if isinstance(value, int | float):
                phases[name].append(value)
    versions = Counter(attempt.config["agent_version"] for attempt in ran)
    return {
        "agent": key[0],
        "model": key[1],
        "skills": key[2],
        "agent_versions": [{"version": version, "rollouts": number} for version, number in sorted(versions.items())],
        "solved": {
            "count": counts["pass"],
            "of": len(each),
            **{name: counts[name] for name in ("unhealthy", "missing", "skipped")},
        },
        "reward": {
            "mean": mean(means),
            "low": low,
            "high": high,
            "confidence": 0.95,
            "tasks": len(means),
            "of": len(tasks),
        },
        "pass_at": chances(trials, at_least_one=True),
        "pass_all": chances(trials, at_least_one=False),
        "tokens": tokens_of(ran),
        "cost_usd": cost_of(ran),
        "seconds": {name: sum(values) / len(values) for name, values in phases.items()},
        "tasks": {
            task: {
                "verdicts": dict(Counter(attempt.verdict if attempt else "missing" for attempt in attempts)),
                "mean_reward": mean(by_task[task]),
            }
            for task, attempts in tasks.items()
        },
    }


def chances(trials: dict[str, tuple[int, int, int]], *, at_least_one: bool) -> dict[str, Any]:
    """Return the chances by going through each choice of k trials, and not by a formula."""
    found = {}
    for k in range(1, max(planned for _, _, planned in trials.values()) + 1):
        shares = []
        for healthy, solved, _ in trials.values():
            outcomes = [True] * solved + [False] * (healthy - solved)
            chosen = list(itertools.combinations(outcomes, k))
            if chosen:
                shares.append(sum((any if at_least_one else all)(each) for each in chosen) / len(chosen))
        of = sum(planned >= k for _, _, planned in trials.values())
        found[str(k)] = {"chance": mean(shares), "tasks": len(shares), "of": of}
    return found


def differences(place: str, told: Any, worked_out: Any) -> list[str]:
    """Return what is not equal; a bound that was drawn may lie a little beside the exact one."""
    if isinstance(told, dict) and isinstance(worked_out, dict):
        keys = sorted(set(told) | set(worked_out))
        return [
            line for key in keys for line in differences(f"{place}.{key}", told.get(key, "-"), worked_out.get(key, "-"))
        ]
    if isinstance(told, list) and isinstance(worked_out, list) and len(told) == len(worked_out):
        pairs = enumerate(zip(told, worked_out, strict=True))
        return [line for number, (a, b) in pairs for line in differences(f"{place}[{number}]", a, b)]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (told, worked_out))
    bound = place.endswith((".low", ".high"))
    if numbers and math.isclose(told, worked_out, rel_tol=1e-6, abs_tol=DRAWN if bound else 1e-9):
        return []
    return [] if told == worked_out else [f"{place}: summary.json has {told!r}, and {worked_out!r} was worked out"]


def numbers_in(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(numbers_in, value.values()))
    if isinstance(value, list):
        return sum(map(numbers_in, value))
    return isinstance(value, int | float)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    told = load(place / "summary.json")
    wrong = differences("summary", told, recount(place))
    sys.stdout.write(("\n".join(wrong) or f"{numbers_in(told)} numbers agree") + "\n")
    sys.exit(bool(wrong))
