"""The sandbox that answers: its script, its files, and that it never passes for one that runs anything."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_benchflow.agents.baseline import agent as baseline
from pytest_benchflow.agents.nop import agent as nop
from pytest_benchflow.contracts import Installation
from pytest_benchflow.errors import AgentError, SandboxError, TaskError
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.doctor import describe
from pytest_benchflow.rollout.needs import why_unable
from pytest_benchflow.rollout.run import run_rollout
from pytest_benchflow.sandboxes.scripted import WARNING, backend
from tests.contracts.sandboxrig import Rig, make_task

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

T = TypeVar("T")

SCRIPT = """
[[answer]]
command = "sh *test.sh"
phase = "verifier"
stdout = "checked"
files = {"/logs/verifier/reward.txt" = "1", "/app/new/file" = "made"}
[[answer]]
command = "slow*"
seconds = 60
files = {"/app/late" = "never"}
[[answer]]
command = "fails *"
exit_code = 3
stderr = "no"
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(backend, tmp_path) as made:
        yield made


def scripted(rig: Rig, text: str = SCRIPT) -> Any:
    task = make_task(rig.base / "task")
    (rig.base / "task/environment/scripted.toml").write_text(text, "utf-8")
    return rig.create(task)


def read(rig: Rig, sandbox: Any, path: str) -> str:
    target = rig.base / "out"
    rig.run(sandbox.download(path, target))
    return target.read_text("utf-8")


def test_the_first_answer_that_fits_counts(rig: Rig) -> None:
    sandbox = scripted(rig)
    failed = rig.run(sandbox.exec(["fails", "here"]))
    assert (failed.exit_code, failed.stdout, failed.stderr, failed.timed_out) == (3, "", "no", False)
    unknown = rig.run(sandbox.exec(["sh", "/tests/test.sh"], stdin=b"x" * 100_000))
    assert (unknown.exit_code, unknown.stdout, unknown.stderr) == (0, "", "")
    rig.run(sandbox.enter("verifier", "none"))
    assert rig.run(sandbox.exec(["sh", "/tests/test.sh"])).stdout == "checked"
    assert read(rig, sandbox, "/app/new/file") == "made"


def test_time_runs_out_and_nothing_is_left_of_it(rig: Rig) -> None:
    sandbox = scripted(rig)
    late = rig.run(sandbox.exec(["slow"], timeout=0.05))
    assert (late.exit_code, late.timed_out) == (None, True)
    with pytest.raises(FileNotFoundError):
        rig.run(sandbox.download("/app/late", rig.base / "late"))


def test_a_phase_ends_what_the_one_before_began(rig: Rig) -> None:
    sandbox = scripted(rig)

    async def outlive() -> int:
        process = await sandbox.spawn(["slow"])
        await sandbox.enter("verifier", "none")
        return int(await process.wait())

    assert rig.run(outlive()) == -9
    rig.run(sandbox.stop())
    with pytest.raises(SandboxError, match="stopped"):
        rig.run(sandbox.exec(["true"]))


def test_a_verifier_leaves_a_reward_of_nothing_unless_its_script_says_more(rig: Rig) -> None:
    sandbox = scripted(rig, "")
    place = {"BENCHFLOW_REWARD_TEXT": "/logs/verifier/reward.txt"}
    rig.run(sandbox.exec(["sh", "/tests/test.sh"], env=place))
    assert read(rig, sandbox, "/logs/verifier/reward.txt") == "0\n"
    sandbox = scripted(rig)
    rig.run(sandbox.enter("verifier", "none"))
    rig.run(sandbox.exec(["sh", "/tests/test.sh"], env=place))
    assert read(rig, sandbox, "/logs/verifier/reward.txt") == "1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("answer = 3", "tables [[answer]]"),
        ("[[answers]]\ncommand = 'x'", "has answers"),
        ("[[answer]]\nstout = 'x'", "'stout'; it takes command, phase"),
        ("[[answer]]\nexit_code = 'x'", "exit_code is 'x'; it takes int"),
        ("[[answer]]\nseconds = -1", "seconds is -1"),
        ("[[answer]]\nphase = 'tests'", "phase is 'tests'; it takes setup, agent, verifier"),
        ("[[answer]]\nfiles = {'here' = 'x'}", "texts by absolute path"),
        ("answer = [", "scripted.toml"),
    ],
)
def test_a_faulty_script_says_what_it_takes(rig: Rig, text: str, says: str) -> None:
    with pytest.raises(TaskError) as error:
        scripted(rig, text)
    assert says in str(error.value)


def test_no_agent_that_needs_a_program_runs_in_it(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task")
    assert why_unable(backend, nop("nop"), task, "declared") is None
    assert "answers from a script" in str(why_unable(backend, baseline("baseline"), task, "declared"))
    with pytest.raises(AgentError, match="runs no program"):
        run(backend.install(Installation("some", None, "true", 1.0), task, tmp_path / "log"))


def test_its_rollouts_say_what_they_are(tmp_path: Path) -> None:
    task = tmp_path / "quiet"
    for name, text in {
        "task.toml": '[verifier]\nnetwork_mode = "no-network"\n',
        "instruction.md": "Do nothing.\n",
        "tests/test.sh": "exit 1\n",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text, "utf-8")
    rollout = run(run_rollout(RolloutConfig(task=task, agent="nop", sandbox="scripted", jobs_dir=tmp_path / "jobs")))
    assert (rollout.healthy, rollout.reward, rollout.verdict) == (True, 0.0, "fail")
    config = json.loads((rollout.path / "config.json").read_text("utf-8"))
    assert config["environment"] == "scripted"
    assert config["limits"]["sandbox"]["programs"]["warning"] == WARNING
    assert WARNING in rollout.result["warnings"]
    assert any("for tests, never for results" in line for line in describe("scripted")[1])


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
