"""Look at a rollout through what it left on disk."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.records.trajectory import read_events, read_exchanges, read_rows, whole
from pytest_benchflow.records.values import reward_of

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.trajectory import Log

HEALTHY_VERDICTS = ("pass", "fail", "normal_timeout")


class Rollout:
    """A finished rollout; everything is read from its directory, on first use. Raises: RecordError when torn."""

    def __init__(self, path: Path) -> None:
        self.dir = RunDir(path)

    def __repr__(self) -> str:
        return f"<Rollout {self.dir.path.name}>"

    @property
    def path(self) -> Path:
        """Return the rollout's directory."""
        return self.dir.path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return config.json: what was asked."""
        return read_json(self.dir.config)

    @cached_property
    def result(self) -> dict[str, Any]:
        """Return result.json: what came out."""
        return read_json(self.dir.result)

    @cached_property
    def exchange_log(self) -> Log:
        """Return the lines of llm_trajectory.jsonl, those that are no records too; empty when there is no file."""
        return read_exchanges(self.dir.llm) if self.dir.llm.is_file() else []

    @cached_property
    def event_log(self) -> Log:
        """Return the lines of acp_trajectory.jsonl, those that are no records too; empty when there is no file."""
        return read_events(self.dir.acp) if self.dir.acp.is_file() else []

    @cached_property
    def exchanges(self) -> list[dict[str, Any]]:
        """Return the records of llm_trajectory.jsonl, in the order they ended; empty when no model was called.

        A message that several requests carry is the same object in each of them.
        """
        return whole(self.exchange_log)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Return the records of acp_trajectory.jsonl; empty when the agent speaks no protocol."""
        return whole(self.event_log)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Return the records of results.jsonl: one row, where all went well.

        A message that several steps' prompts hold is the same object in each of them.
        """
        return whole(read_rows(self.dir.row)) if self.dir.row.is_file() else []

    @property
    def reward(self) -> float | None:
        """Return the reward, None when the verifier gave no finite one."""
        return reward_of(self.result)

    @property
    def verdict(self) -> str:
        """Return pass, fail, normal_timeout, unhealthy or skipped."""
        return str(self.result.get("verdict"))

    @property
    def healthy(self) -> bool:
        """Tell whether the verdict is one of a healthy rollout."""
        return self.verdict in HEALTHY_VERDICTS
