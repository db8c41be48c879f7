"""Name everything a rollout leaves on disk, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class RunDir:
    """The directory of one rollout; attributes are the paths of its artifacts, none of which need exist."""

    path: Path

    @cached_property
    def config(self) -> Path:
        """What was asked."""
        return self.path / "config.json"

    @cached_property
    def result(self) -> Path:
        """What came out."""
        return self.path / "result.json"

    @cached_property
    def row(self) -> Path:
        """Exactly one trainer-facing row."""
        return self.path / "results.jsonl"

    @cached_property
    def audit(self) -> Path:
        """What a person or another program thinks of the rollout."""
        return self.path / "audit.json"

    @cached_property
    def prompts(self) -> Path:
        """The prompts the agent was given."""
        return self.path / "prompts.json"

    @cached_property
    def timing(self) -> Path:
        """Seconds by phase."""
        return self.path / "timing.json"

    @cached_property
    def rewards(self) -> Path:
        """One line per score the verifier gave."""
        return self.path / "rewards.jsonl"

    @cached_property
    def llm(self) -> Path:
        """One line per model exchange, in the order they ended."""
        return self.path / "trajectory" / "llm_trajectory.jsonl"

    @cached_property
    def llm_pending(self) -> Path:
        """Requests begun and not ended; empty or gone after a clean end."""
        return self.path / "trajectory" / "llm_pending.jsonl"

    @cached_property
    def acp(self) -> Path:
        """One line per agent-protocol event."""
        return self.path / "trajectory" / "acp_trajectory.jsonl"

    @cached_property
    def agent_logs(self) -> Path:
        """Output of installing and running the agent."""
        return self.path / "agent"

    @cached_property
    def verifier(self) -> Path:
        """Reward files, ctrf.json and output of the verifier."""
        return self.path / "verifier"

    @cached_property
    def artifacts(self) -> Path:
        """What the task asked to keep."""
        return self.path / "artifacts"

    @cached_property
    def attempts(self) -> Path:
        """Earlier attempts, kept whole and never counted."""
        return self.path / "attempts"

    @cached_property
    def regrades(self) -> Path:
        """What each further run of the verifier gave, and what was there before it."""
        return self.path / "regrades"

    @cached_property
    def lock(self) -> Path:
        """Held while a process works on this rollout."""
        return self.path / ".lock"

    def create(self) -> RunDir:
        """Make the directory and those of its parts that are always there."""
        for directory in (self.llm.parent, self.agent_logs, self.verifier, self.artifacts):
            directory.mkdir(parents=True, exist_ok=True)
        return self


def new_job_name(jobs_dir: Path) -> str:
    """Return the time as a name that no job there has yet."""
    name = datetime.now(UTC).strftime("%Y-%m-%d__%H-%M-%S")
    taken = 0
    while (jobs_dir / (name + (f"-{taken}" if taken else ""))).exists():
        taken += 1
    return name + (f"-{taken}" if taken else "")


def check_job(job: Path) -> None:
    """Raise UsageError for a directory that is no job of this program."""
    file = job / "job.json"
    if file.is_symlink() or not file.is_file() or not is_run(job):
        said = "its job.json is none that says so, or broken" if os.path.lexists(file) else "it has no job.json"
        raise UsageError(f"{job} is no job of this program: {said}; name one, such as jobs/NAME")


def is_run(path: Path) -> bool:
    """Tell the directory of a job or of a rollout: it holds copies of files that agents wrote."""
    if (path / "config.json").is_file() and ((path / "result.json").exists() or (path / "trajectory").exists()):
        return True
    if RunDir(path).llm.exists() or RunDir(path).acp.exists():
        return True
    if not (path / "job.json").is_file():  # a pipe would never end
        return False
    try:
        with (path / "job.json").open("rb") as stream:
            return b"pytest_benchflow" in stream.read(65536)
    except OSError:
        return False
