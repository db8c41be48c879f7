"""Try Daytona live: make a sandbox, run a hundred short commands in it, count what they leave, and remove it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import SandboxSpec
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._daytona.image import DEFAULT_IMAGE
from pytest_benchflow.sandboxes.daytona import backend
from pytest_benchflow.tasks.task import AgentPhase, Environment, Step, Task, VerifierPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchflow.sandboxes.daytona import DaytonaSandbox

COMMANDS = 100
_AT_ONCE = 4
_LIFETIME_SEC = 900.0
_COMMAND_SEC = 60.0


async def probe(say: Callable[[str], None]) -> bool:
    """Say how each part of it goes, and return whether all was in order; nothing is left at Daytona."""
    say(f"Daytona at {backend.place}: making a sandbox of {DEFAULT_IMAGE}")
    with tempfile.TemporaryDirectory(prefix="benchflow-probe-") as place:
        scratch = Path(place)
        spec = SandboxSpec(id="probe", task=_task(scratch), scratch=scratch, lifetime_sec=_LIFETIME_SEC)
        began = time.monotonic()
        try:
            sandbox = await backend.make(spec)
        except SandboxError as error:
            say(f"no sandbox could be made: {error}")
            return False
        say(f"made {sandbox.name} in {time.monotonic() - began:.1f} s")
        try:
            found = await _try_commands(sandbox, say)
        except SandboxError as error:
            say(f"the probe broke off: {error}")
            found = False
        finally:
            gone = await asyncio.shield(_remove(sandbox, say))
    return found and gone


async def _try_commands(sandbox: DaytonaSandbox, say: Callable[[str], None]) -> bool:
    before = await sandbox.sessions()
    say(f"sessions before: {len(before)}")
    began = time.monotonic()
    wrong = 0
    for start in range(0, COMMANDS, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, COMMANDS))
        jobs = (sandbox.exec(["sh", "-c", f"exit {number}"], timeout=_COMMAND_SEC) for number in numbers)
        codes = [result.exit_code for result in await asyncio.gather(*jobs)]
        wrong += sum(code != number for code, number in zip(codes, numbers, strict=True))
    seconds = time.monotonic() - began
    say(f"{COMMANDS} commands in {seconds:.1f} s, {seconds / COMMANDS:.2f} s each; wrong exit codes: {wrong}")
    after = await sandbox.sessions()
    say(f"sessions after: {len(after)}")
    return wrong == 0 and len(after) == len(before)


async def _remove(sandbox: DaytonaSandbox, say: Callable[[str], None]) -> bool:
    try:
        await sandbox.stop()
    except SandboxError as error:
        say(f"the sandbox {sandbox.name} was not removed: {error}")
        return False
    say("removed the sandbox")
    return True


def _task(place: Path) -> Task:
    step = Step(name=None, instruction="", agent=AgentPhase(), verifier=VerifierPhase(), tests=None, solution=None)
    return Task(
        path=place,
        file=place / "task.toml",
        name="probe",
        form="harbor",
        schema_version="1.0",
        steps=(step,),
        environment=Environment(),
        environment_dir=None,
        dockerfile=None,
        compose_file=None,
        skills=(),
        skills_path=None,
        solution_env={},
        metadata={},
    )
