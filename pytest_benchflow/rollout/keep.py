"""Keep what a task asked for after its agent ended."""

from __future__ import annotations

import asyncio
import fnmatch
import shutil
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.rollout.scrub import scrub

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import Sandbox
    from pytest_benchflow.records.redact import Redactor
    from pytest_benchflow.tasks.task import Artifact, Step, Task

# Where a task may always leave something to keep.
_ALWAYS = "/logs/artifacts"


async def collect(step: Step, sandbox: Sandbox, target: Path, redactor: Redactor) -> list[str]:
    """Run the commands that a task's verifier wants run once the agent has ended; their output is kept.

    Returns a warning for each that failed or took too long.
    """
    warnings = []
    for number, item in enumerate(step.verifier.collect, 1):
        done = await sandbox.exec(
            ["sh", "-c", item.command], cwd=sandbox.workdir, user=item.user, timeout=item.timeout_sec
        )
        folder = target / "collect" / (step.name or "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_text(redactor.text(done.stdout + done.stderr), encoding="utf-8")
        if done.exit_code != 0:
            ended = f"took longer than {item.timeout_sec:g} s" if done.timed_out else f"exited with {done.exit_code}"
            warnings.append(f"the collect command {item.command!r} {ended}")
    return warnings


async def keep_artifacts(task: Task, sandbox: Sandbox, target: Path, redactor: Redactor) -> list[str]:
    """Copy the declared artifacts and /logs/artifacts out of the sandbox; what is not there is left out.

    Returns a warning for each one that could not be kept: what an agent leaves there must not undo its score.
    """
    declared = [*task.artifacts, *(artifact for step in task.steps for artifact in step.artifacts)]
    warnings = await _keep(sandbox, _ALWAYS, target)
    for artifact in declared:
        source = str(PurePosixPath(sandbox.workdir) / artifact.source)
        warnings += await _keep(sandbox, source, _place(target, artifact))
        _exclude(_place(target, artifact), artifact.exclude)
    return warnings + await asyncio.to_thread(scrub, target, redactor)


async def _keep(sandbox: Sandbox, source: str, target: Path) -> list[str]:
    try:
        await sandbox.download(source, target)
    except FileNotFoundError:
        return []
    except (SandboxError, OSError) as error:
        return [f"the artifact {source} was not kept whole: {error}"]
    return []


def _place(target: Path, artifact: Artifact) -> Path:
    """Return where an artifact goes; a destination never leads out of the artifacts directory."""
    wanted = PurePosixPath(artifact.destination or PurePosixPath(artifact.source).name)
    return target.joinpath(*(part for part in wanted.parts if part not in ("/", "..", ".")))


def _exclude(root: Path, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        for path in sorted(root.rglob("*")) if root.is_dir() else []:
            name = path.relative_to(root).as_posix()
            if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(path.name, pattern):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
