"""What a session tells of a rollout whose records cannot be written to their end."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.agents.nop import Nop
from pytest_benchflow.errors import RecordError
from pytest_benchflow.rollout.cell import settled
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.progress import Progress
from pytest_benchflow.rollout.session import RolloutSession
from pytest_benchflow.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "task__nop__none__default__1"


class Removes(Nop):
    """An agent during whose work somebody removes the job."""

    def __init__(self, job: Path) -> None:
        super().__init__()
        self.job = job

    async def run(self, context: Any) -> Any:
        shutil.rmtree(self.job)
        return await super().run(context)


@pytest.fixture
def config(tmp_path: Path) -> RolloutConfig:
    task = tmp_path / "task"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text("", "utf-8")
    (task / "instruction.md").write_text("Do it.\n", "utf-8")
    (task / "tests/test.sh").write_text("#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n", "utf-8")
    jobs = tmp_path / "jobs"
    return settled(RolloutConfig(task, agent="nop", model="none", sandbox="scripted", jobs_dir=jobs, job_name="job"))


@contextmanager
def session_of(config: RolloutConfig, told: list[dict[str, Any]]) -> Iterator[RolloutSession]:
    settings = Settings(jobs_dir=config.jobs_dir, job_name=config.job_name, sandbox="scripted")
    session = RolloutSession(settings, session_id="this", planned=lambda: [config], progress=Progress(told.append))
    try:
        session.open()
        yield session
    finally:
        session.close()


def test_a_rollout_that_cannot_have_its_directory_is_not_waited_for(config: RolloutConfig) -> None:
    told: list[dict[str, Any]] = []
    with session_of(config, told) as session:
        (config.jobs_dir / "job" / NAME).write_text("in its place", "utf-8")
        with pytest.raises(RecordError, match=f"{NAME}: its records could not be completed"):
            session.get(config)
    assert {"without": NAME} in told
    assert not any("rollout" in each for each in told)


def test_a_job_that_is_removed_meanwhile_is_told_of_as_gone(config: RolloutConfig) -> None:
    job = config.jobs_dir / "job"
    config = replace(config, agent=Removes(job))
    with session_of(config, []) as session, pytest.raises(RecordError) as caught:
        session.get(config)
    assert str(caught.value).endswith(
        f"{NAME}: it was removed while the rollout ran, and what had been captured is gone; run it again"
    )
    assert session.incomplete is not None
    assert session.incomplete.startswith(f"{job}: its job.json was removed while this session ran")
