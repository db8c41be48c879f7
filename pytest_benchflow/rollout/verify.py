"""Score what an agent left: bring the tests in, run them, read the reward. A dead verifier is never a 0."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import shutil
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.errors import SandboxError, TaskError, VerifierError
from pytest_benchflow.records.turns import in_turn
from pytest_benchflow.records.verifier import dead_bootstrap
from pytest_benchflow.rollout.aside import aside
from pytest_benchflow.rollout.scrub import scrub
from pytest_benchflow.rollout.tasktext import task_text
from pytest_benchflow.settings import host_variable
from pytest_benchflow.tasks.env import expand_env
from pytest_benchflow.tasks.shebang import interpreter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from pytest_benchflow.contracts import ExecResult, Sandbox
    from pytest_benchflow.records.redact import Redactor
    from pytest_benchflow.rollout.needs import Policy
    from pytest_benchflow.tasks.task import Step, Task

LOGS = "/logs/verifier"
_OUTPUT = ("test-stdout.txt", "test-stderr.txt")
_USER_BASE = "/var/lib/benchflow-verifier"
# Where a test runner looks for settings above the tests; nothing of a task's lies there.
_ROOT_SETTINGS = (
    *("/conftest.py", "/pytest.ini", "/.pytest.ini", "/pytest.toml", "/.pytest.toml"),
    *("/pyproject.toml", "/tox.ini", "/setup.cfg"),
)

_NUMBER = re.compile(r"(?=.{1,100}\Z)[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_LONGEST_REWARD = 200
_LARGEST_REWARDS = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Score:
    """The rewards of one step. Either `rewards` holds a finite "reward", or `error` says why there is none."""

    rewards: Mapping[str, float] | None
    error: str | None = None
    category: str | None = None
    warnings: tuple[str, ...] = field(default=())


async def verify(
    task: Task, step: Step, sandbox: Sandbox, *, policy: Policy, timeout_sec: float, keep: Path, redactor: Redactor
) -> Score:
    """Run a step's verifier in the same sandbox after its agent's processes are dead; files go to `keep`.

    Raises: SandboxError when the sandbox itself fails; everything else is in the score.
    """
    tests = step.tests
    if tests is None:
        return Score({})
    try:
        await sandbox.enter("verifier", policy.network, policy.hosts)
        try:
            result = await _run_tests(task, step, tests, sandbox, timeout_sec)
        except SandboxError as error:
            await aside(_keep_output, keep, error.said, redactor)
            raise
        await aside(_keep_output, keep, (result.stdout, result.stderr), redactor)
        await _fetch(sandbox, keep, redactor)
        return Score(await asyncio.to_thread(in_turn, _score, task, step, keep, result, timeout_sec))
    except VerifierError as error:
        return Score(None, str(error), error.category)


async def _run_tests(task: Task, step: Step, tests: Path, sandbox: Sandbox, timeout_sec: float) -> ExecResult:
    target = task.tests_target
    await _clear_the_way(sandbox, target)
    for part in (step.shared_tests, tests):
        if part:
            await sandbox.upload(part, target)
    variables = expand_env(step.verifier.env, host_variable)
    return await sandbox.exec(
        await aside(_command, step.test_script, target),
        env={**_places(target), **variables},
        cwd=sandbox.workdir,
        user=step.verifier.user,
        timeout=timeout_sec,
    )


async def _clear_the_way(sandbox: Sandbox, target: str) -> None:
    """Empty what an agent may have planted so that it is not what scores it; nothing of the sandbox's runs meanwhile.

    These are the tests' place, the reward directory, the site-packages of the verifier's user and a test runner's
    settings above the tests. A working directory that is gone is made again: its agent failed, not the verifier.
    """
    at_root = sandbox.workdir == "/"
    for place in (target, LOGS, _USER_BASE, *(() if at_root else _ROOT_SETTINGS)):
        await sandbox.remove(place)
    async with _empty_directory() as empty:
        await sandbox.upload(empty, LOGS)
        if at_root:
            return
        try:
            await sandbox.upload(empty, sandbox.workdir)
        except SandboxError:
            await sandbox.remove(sandbox.workdir)
            await sandbox.upload(empty, sandbox.workdir)


@asynccontextmanager
async def _empty_directory() -> AsyncIterator[Path]:
    """Make an empty directory that everybody may write into, and remove it."""
    made: list[Path] = []

    def make() -> None:
        made.append(Path(tempfile.mkdtemp()))
        made[0].chmod(0o777)

    try:
        await aside(make)
        yield made[0]
    finally:
        for each in made:
            await aside(shutil.rmtree, each)


def _command(script: Path | None, target: str) -> list[str]:
    """Run test.sh as its first line says, so that a lost executable bit does not matter."""
    if script is None:
        raise VerifierError("the task has no test.sh", category="crash")
    try:
        return [*interpreter(script), f"{target}/{script.name}"]
    except TaskError as error:
        raise VerifierError(str(error), category="crash") from None


def _places(target: str) -> dict[str, str]:
    return {
        "PYTHONUSERBASE": _USER_BASE,
        "BENCHFLOW_VERIFIER_DIR": target,
        "BENCHFLOW_REWARD_TEXT": f"{LOGS}/reward.txt",
        "BENCHFLOW_REWARD_JSON": f"{LOGS}/reward.json",
        "BENCHFLOW_REWARD_DETAILS_JSON": f"{LOGS}/reward-details.json",
        "BENCHFLOW_CTRF_JSON": f"{LOGS}/ctrf.json",
    }


def _keep_output(keep: Path, said: tuple[str, str], redactor: Redactor) -> None:
    keep.mkdir(parents=True, exist_ok=True)
    for name, text in zip(_OUTPUT, said, strict=True):
        (keep / name).write_text(redactor.text(text), encoding="utf-8")


async def _fetch(sandbox: Sandbox, keep: Path, redactor: Redactor) -> None:
    draft = keep / f".incoming-{secrets.token_hex(8)}"
    try:
        await sandbox.download(LOGS, draft)
        await asyncio.to_thread(in_turn, scrub, draft, redactor)
        await asyncio.to_thread(in_turn, _settle, draft, keep)
    except FileNotFoundError:
        raise VerifierError(f"{LOGS} is gone after the verifier ran", category="no_reward") from None
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)


def _settle(draft: Path, keep: Path) -> None:
    """Move what the verifier wrote beside its output, which keeps its name."""
    for entry in sorted(draft.iterdir()):
        if entry.is_symlink() or entry.name == draft.name:
            continue
        target = keep / (f"own-{entry.name}" if entry.name in _OUTPUT else entry.name)
        if target.is_dir():
            shutil.rmtree(target)
        entry.replace(target)


def _score(task: Task, step: Step, keep: Path, result: ExecResult, timeout_sec: float) -> dict[str, float]:
    """Read the fresh reward, which wins over the exit code. Raises: VerifierError.

    A verifier that was killed did not say its last word: many write a 0 first and the real reward at their end.
    """
    if result.timed_out:
        raise VerifierError(f"the verifier did not end within its {timeout_sec:g} s", category="timeout")
    rewards = read_rewards(keep)
    if rewards is None:
        dead = dead_bootstrap(keep, task_text(task, step))
        if dead:
            raise VerifierError(f"the verifier could not start its tests: {dead}", category="bootstrap")
        tail = (result.stderr.strip() or result.stdout.strip())[-400:]
        raise VerifierError(
            f"the verifier wrote neither reward.json nor reward.txt in {LOGS} and exited with {result.exit_code}"
            + (f"; it said last: {tail}" if tail else " without a word"),
            category="no_reward" if result.exit_code == 0 else "crash",
        )
    killed = result.exit_code is None or result.exit_code < 0 or result.exit_code > 128
    if rewards["reward"] == 0 and killed:
        raise VerifierError(f"the verifier was killed (exit code {result.exit_code}) after writing 0", category="crash")
    if rewards["reward"] == 0 and (dead := dead_bootstrap(keep, task_text(task, step))):
        raise VerifierError(f"reward 0 means nothing here, no test was executed: {dead}", category="bootstrap")
    return rewards


def read_rewards(keep: Path) -> dict[str, float] | None:
    """Read reward.json, else reward.txt; None when neither is there. Raises: VerifierError for what is no number."""
    structured, plain = keep / "reward.json", keep / "reward.txt"
    if structured.is_file() and not structured.is_symlink():
        return _rewards_of(structured)
    if plain.is_file() and not plain.is_symlink():
        text = plain.read_bytes()[: _LONGEST_REWARD + 1].decode("utf-8", "replace").strip()
        if not _NUMBER.match(text) or not math.isfinite(float(text)):
            raise VerifierError(
                f"reward.txt holds {text[:60]!r}, where one finite number belongs", category="invalid_reward"
            )
        return {"reward": float(text)}
    return None


def _rewards_of(path: Path) -> dict[str, float]:
    if path.stat().st_size > _LARGEST_REWARDS:
        raise VerifierError("reward.json is larger than 1 MiB", category="invalid_reward")
    try:
        values: Any = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise VerifierError(f"reward.json is not JSON ({error})", category="invalid_reward") from None
    if not isinstance(values, dict) or not values:
        raise VerifierError("reward.json must hold an object of finite numbers", category="invalid_reward")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise VerifierError(
                f"reward.json: {name!r} is {str(value)[:60]!r}, where a finite number belongs",
                category="invalid_reward",
            )
    rewards = {name: float(value) for name, value in values.items()}
    if "reward" not in rewards:
        if len(rewards) > 1:
            raise VerifierError(
                f"reward.json has {', '.join(sorted(rewards))} but no 'reward'; say which number is the reward",
                category="invalid_reward",
            )
        rewards = {"reward": next(iter(rewards.values())), **rewards}
    return rewards


def combine(scores: list[Mapping[str, float]], strategy: str, scored_steps: int) -> dict[str, float]:
    """Combine the rewards of a task's steps: `final` takes the last step's, `mean` the mean of each name.

    `scored_steps` is how many steps the task scores: one that an earlier step's min_reward kept from running counts
    as reward 0, because the agent's work is what kept it.
    """
    reached = len(scores) == scored_steps
    if strategy == "final":
        return dict(scores[-1]) if reached else {"reward": 0.0}
    names = dict.fromkeys(name for score in scores for name in score)
    means = {name: sum(found) / len(found) for name in names if (found := [s[name] for s in scores if name in s])}
    return {**means, "reward": sum(score["reward"] for score in scores) / scored_steps}
