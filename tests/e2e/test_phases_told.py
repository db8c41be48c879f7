"""Who watches a rollout hears of an installation only when there is one to wait for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout
from tests.e2e.program import ProgramAgent

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import Backend, Mount
    from pytest_benchflow.tasks.task import Task
    from tests.e2e.conftest import MakeTask


class Installed(ProgramAgent):
    """An agent whose installation takes a while, or is there already."""

    def __init__(self, seconds: float) -> None:
        super().__init__("answer()")
        self._seconds = seconds

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:  # noqa: ARG002
        await asyncio.sleep(self._seconds)
        return ()


@pytest.mark.parametrize(("seconds", "told"), [(0.0, []), (1.0, ["agent_setup"])], ids=["there-already", "installs"])
def test_an_installation_is_told_of_when_it_takes_time(
    make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, told: list[str]
) -> None:
    monkeypatch.setattr("pytest_benchflow.rollout.run._LOOKED_UP_SEC", 0.5)
    heard: list[str] = []
    config = RolloutConfig(task=make_task(), agent=Installed(seconds), jobs_dir=tmp_path / "jobs")
    rollout = asyncio.run(run_rollout(config, watch=heard.append))
    assert rollout.result["error"] is None
    assert [phase for phase in heard if phase == "agent_setup"] == told
    assert rollout.result["timing"]["agent_setup"] >= seconds
