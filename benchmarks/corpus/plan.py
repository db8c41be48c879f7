"""What a corpus is to hold: its options, and the kind of every rollout before any is written."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from benchmarks.corpus.protocols import PROTOCOLS

CORRUPTIONS = (
    "llm-truncated-line",  # the last exchange is cut in the middle of its line
    "llm-missing",  # no llm_trajectory.jsonl
    "llm-no-usage",  # the provider reported no token usage
    "results-missing",  # no results.jsonl
    "results-missing-step",  # the trainer row lacks the step of one exchange
    "acp-empty",  # acp_trajectory.jsonl has no line
    "result-no-reward",  # result.json has no reward
)


@dataclass(frozen=True)
class Options:
    """What decides the bytes of a corpus, in the order in which corpus.json has it."""

    rollouts: int = 10
    exchanges: int = 30  # per rollout, retries excluded
    tool_bytes: int = 3000  # mean tool output of a step
    system_bytes: int = 4000  # size of the system prompt
    tools: int = 12  # offered in every request
    protocol: str = "chat"  # one of PROTOCOLS, or "mixed": all in turn
    retry_fraction: float = 0.0  # of the exchanges
    incomplete_fraction: float = 0.0  # of the rollouts
    corrupt_fraction: float = 0.0  # of the rollouts
    results: str = "builtin"  # "none" leaves results.jsonl out
    seed: int = 0


@dataclass(frozen=True)
class Spec:
    """What to write for one rollout."""

    index: int
    name: str
    task: str
    protocol: str
    exchanges: int
    incomplete: bool
    corruption: str | None


@dataclass
class Outcome:
    """What was written for one rollout: an entry of corpus.json."""

    directory: str
    protocol: str
    healthy: bool
    training_ready: bool
    corruption: str | None
    exchanges: int
    counted_exchanges: list[int] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)


def plan(options: Options) -> list[Spec]:
    rng = random.Random(f"{options.seed}/plan")
    specs: list[Spec] = []
    corrupted = 0
    for index in range(options.rollouts):
        corruption = None
        incomplete = rng.random() < options.incomplete_fraction
        if rng.random() < options.corrupt_fraction:
            corruption = CORRUPTIONS[corrupted % len(CORRUPTIONS)]
            corrupted += 1
        task = f"task-{index // 4:04d}"
        specs.append(
            Spec(
                index=index,
                name=f"{task}__trial-{index:05d}",
                task=task,
                protocol=PROTOCOLS[index % 3] if options.protocol == "mixed" else options.protocol,
                exchanges=options.exchanges,
                incomplete=incomplete and corruption is None,
                corruption=corruption,
            )
        )
    return specs
