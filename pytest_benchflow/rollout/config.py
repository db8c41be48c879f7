"""Say what one rollout is asked to be."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_benchflow.errors import UsageError
from pytest_benchflow.pricing import Prices
from pytest_benchflow.settings import AGENT_NETWORKS, EFFORT_VARIABLE, host_variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.contracts import Agent, Backend
    from pytest_benchflow.tasks.task import Task

SkillMode = Literal["default", "with", "without"]

_LONGEST_SLUG = 60


def slug(text: str) -> str:
    """Make a text safe in a file name, a test id and a URL; a long one keeps its end and gets a digest of the whole."""
    safe = re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "x"
    if len(safe) <= _LONGEST_SLUG:
        return safe
    return f"{hashlib.sha256(text.encode()).hexdigest()[:8]}-{safe[9 - _LONGEST_SLUG :].lstrip('-.')}"


def asked_effort(option: str | None, agent_env: Mapping[str, str]) -> str | None:
    """Return the reasoning effort asked for; LLM_REASONING_EFFORT for the agent or of the host means the option.

    Raises: UsageError when they disagree.
    """
    given = {
        "--benchflow-reasoning-effort": option,
        f"{EFFORT_VARIABLE} for the agent (--benchflow-agent-env)": agent_env.get(EFFORT_VARIABLE),
        f"{EFFORT_VARIABLE} of this host": host_variable(EFFORT_VARIABLE),
    }
    asked = {place: value.strip().lower() for place, value in given.items() if value and value.strip()}
    if len(set(asked.values())) > 1:
        said = ", ".join(f"{place} is {value!r}" for place, value in asked.items())
        raise UsageError(f"the reasoning effort is asked for in different ways: {said}; name one, or the same")
    return next(iter(asked.values()), None)


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """One cell of the matrix: everything `run_rollout` needs to know.

    `task` may be a path, `agent` and `sandbox` names or objects. Times are seconds. Raises: UsageError.
    """

    task: Task | Path | str
    agent: str | Agent = "baseline"
    model: str = "replay"
    sandbox: str | Backend = "local"
    skills: SkillMode = "default"
    trial: int = 1
    jobs_dir: Path = Path("jobs")
    job_name: str = ""
    agent_timeout: float | None = None
    idle_timeout: float | None = None
    model_timeout: float | None = None
    reasoning_effort: str | None = None
    keep_sandbox: bool = False
    agent_network: str = "declared"  # or proxy or environment: where the network of its phase is taken from
    agent_env: Mapping[str, str] = field(default_factory=dict)
    replay_strict: bool = False
    record: bool = False
    canary: bool = False  # the rest of its arm starts after it
    arm: tuple[str, str, str] | None = None  # agent, model and skill mode as planned, whatever a test makes of them
    prices: Prices = field(default_factory=Prices)
    # Added to the rollout's name where two tasks of a job share a directory name.
    distinguish: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be run before anything starts."""
        if self.trial < 1:
            raise UsageError(f"trial is {self.trial}; trials count from 1")
        if self.skills not in ("default", "with", "without"):
            raise UsageError(f"skills is {self.skills!r}; it takes default, with or without")
        if self.agent_network not in AGENT_NETWORKS:
            raise UsageError(f"agent_network is {self.agent_network!r}; it takes {', '.join(AGENT_NETWORKS)}")
        for name in ("agent_timeout", "idle_timeout", "model_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"{name} is {value}; it takes a number of seconds above 0")

    @property
    def agent_name(self) -> str:
        """Return the agent's name, whether it was given as a name or as an object."""
        return self.agent if isinstance(self.agent, str) else self.agent.name

    @property
    def cell_id(self) -> str:
        """Return `agent-model-skills-n`, the part of a test id that tells rollouts of one task apart."""
        return "-".join((slug(self.agent_name), slug(self.model), self.skills, str(self.trial)))

    def rollout_name(self, task: Task) -> str:
        """Return the name of the rollout's directory."""
        name = "__".join((slug(task.slug), slug(self.agent_name), slug(self.model), self.skills, str(self.trial)))
        if self.distinguish:
            name += "__" + hashlib.sha256(str(task.path).encode()).hexdigest()[:8]
        return name
