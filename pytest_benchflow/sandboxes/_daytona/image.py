"""Say what Daytona makes a sandbox from: the task's Dockerfile or image, its size, and how long it may live."""

from __future__ import annotations

import hashlib
import math
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._context import find_sources, read_ignore
from pytest_benchflow.sandboxes._files import CopyIn, InsideRoot, is_directory
from pytest_benchflow.tasks.dockerfile import parse_dockerfile
from pytest_benchflow.tasks.instructions import Command, Copy, From, Onbuild, User, Workdir

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_benchflow.tasks.instructions import Instruction
    from pytest_benchflow.tasks.task import Environment, Task

DEFAULT_IMAGE = "python:3.12-slim"
MAX_DISK_GB = 10
_GB = 1024
# Of a rollout whose length nobody knows: an installation's script, say.
_UNKNOWN_SEC = 4 * 3600.0
_MARGIN_MIN = 30


@dataclass(frozen=True, slots=True)
class Plan:
    """What a task's image amounts to: the text that Daytona builds, and files that are copied in afterwards."""

    text: str | None  # None: the Dockerfile as it is, with its context
    workdir: str
    user: str | None
    copies: tuple[tuple[Copy, str], ...] = ()  # with the absolute target

    def digest(self, task: Task) -> str:
        """Name all that an installation in this image depends on."""
        if self.text is not None:
            return hashlib.sha256(self.text.encode()).hexdigest()[:16]
        assert task.dockerfile is not None
        context = task.environment_dir or task.path
        known = hashlib.sha256(task.dockerfile.read_bytes())
        for path in sorted(path for path in context.rglob("*") if path.is_file()):
            known.update(f"\0{path.relative_to(context)}\0".encode() + path.read_bytes())
        return known.hexdigest()[:16]


def plan(task: Task) -> Plan:
    """Read what a task asks for. Raises: TaskError on a broken Dockerfile.

    Where no step of the Dockerfile needs the files that are copied, they stay out of the image: tasks that differ in
    nothing else share one, and its context need not be sent to Daytona's own store.
    """
    asked = task.environment.workdir or "/app"
    if task.dockerfile is None:
        image = task.environment.docker_image or DEFAULT_IMAGE
        return Plan(f"FROM {image}\n", posixpath.normpath(posixpath.join("/", asked)), None)
    text = task.dockerfile.read_text(errors="replace")
    found = parse_dockerfile(text, name=str(task.dockerfile))
    workdir, user, copies = "", None, []
    for instruction in found:
        if isinstance(instruction, From):
            workdir, user = "", None
        elif isinstance(instruction, Workdir):
            workdir = posixpath.join(workdir or "/", instruction.path)
        elif isinstance(instruction, User):
            user = instruction.user
        elif isinstance(instruction, Copy):
            target = posixpath.normpath(posixpath.join(workdir or "/", instruction.target))
            copies.append((instruction, target))
    whole = posixpath.normpath(posixpath.join("/", workdir or asked))
    if not _copied_last(found, text):
        return Plan(None, whole, user)
    kept = [each for each in found if not isinstance(each, Copy)]
    return Plan("".join(f"{each.keyword} {each.text}\n" for each in kept), whole, user, tuple(copies))


def _copied_last(found: Sequence[Instruction], text: str) -> bool:
    """Tell whether every file that is copied could as well be copied into a sandbox of the finished image."""
    if text.lstrip().startswith("#") and any(word in text.partition("\n")[0] for word in ("syntax=", "escape=")):
        return False
    # A variable in FROM has its value from before it, which is lost where the text is taken apart.
    if not found or not isinstance(found[0], From) or "$" in found[0].text:
        return False
    if sum(isinstance(each, From) for each in found) != 1 or any(isinstance(each, Onbuild) for each in found):
        return False
    seen = False
    for each in found:
        if isinstance(each, Copy):
            seen = True
            plain = not (each.heredocs or each.chown or each.chmod or each.from_stage or each.exclude or each.flags)
            if not plain or "$" in each.target or any(_is_remote(source) for source in each.sources):
                return False
        elif isinstance(each, Command) and (each.heredocs or (seen and each.keyword == "RUN")):
            return False
    return True


def _is_remote(source: str) -> bool:
    return "://" in source or "$" in source or source.endswith((".tar", ".tgz", ".gz", ".xz", ".bz2", ".zst"))


def lay_out_copies(task: Task, copies: Sequence[tuple[Copy, str]], top: Path) -> None:
    """Place what COPY and ADD name below the host directory `top`, as it is to be in the sandbox.

    Raises: TaskError, SandboxError naming the instruction.
    """
    assert task.dockerfile is not None
    context = (task.environment_dir or task.path).resolve()
    ignore = read_ignore(context, task.dockerfile)
    inside = InsideRoot(top)
    copier = CopyIn(context, inside, ignore.keeps)
    for copy, target in copies:
        where = f"{copy.keyword} in line {copy.line} of the Dockerfile"
        into = copy.target.endswith(("/", "/.")) or copy.target == "." or len(copy.sources) > 1
        for source in copy.sources:
            for path in find_sources(context, source, where):
                if path.is_dir():
                    copier.copy(path, target)
                    continue
                if not ignore.keeps(path.relative_to(context).as_posix()):
                    raise SandboxError(f"{where}: .dockerignore leaves {path.relative_to(context)} out")
                within = into or is_directory(inside, target)
                copier.copy(path, f"{target}/{path.name}" if within else target)


def why_unsupported(task: Task) -> str | None:
    """Return the reason to skip a task in the daytona sandbox, None when it can run. Raises: TaskError."""
    environment = task.environment
    if environment.os.lower() != "linux":
        return f"needs {environment.os}: the daytona sandbox is linux"
    if environment.gpus or environment.tpu:
        return "needs a GPU or TPU, which the daytona sandbox does not ask for"
    if task.compose_file is not None:
        return f"a Daytona sandbox is one container: {task.compose_file.name} describes several services"
    plan(task)
    return None


def resources(environment: Environment, limits: dict[str, Any]) -> dict[str, int]:
    """Return cpu, memory and disk (whole units, GiB) to ask for; what became of each wish is noted in `limits`."""
    asked: dict[str, int] = {}
    if environment.cpus is not None:
        asked["cpu"] = max(1, math.ceil(environment.cpus))
        limits["cpus"] = {"asked": environment.cpus, "applied": f"{asked['cpu']} by Daytona"}
    if environment.memory_mb is not None:
        asked["memory"] = max(1, math.ceil(environment.memory_mb / _GB))
        limits["memory_mb"] = {"asked": environment.memory_mb, "applied": f"{asked['memory'] * _GB} by Daytona"}
    if environment.storage_mb is not None:
        wanted = max(1, math.ceil(environment.storage_mb / _GB))
        asked["disk"] = min(wanted, MAX_DISK_GB)
        limits["storage_mb"] = {"asked": environment.storage_mb, "applied": f"{asked['disk'] * _GB} by Daytona"}
        if wanted > MAX_DISK_GB:
            limits["storage_mb"]["warning"] = (
                f"the task asks for {environment.storage_mb} MiB of disk; Daytona gives at most {MAX_DISK_GB} GB"
            )
    return asked


def intervals(lifetime_sec: float | None) -> dict[str, int]:
    """Return Daytona's minutes for a sandbox that is needed for so long.

    None of them ends it earlier, and the last removes it whatever became of us and of it.
    """
    needed = math.ceil((lifetime_sec or _UNKNOWN_SEC) / 60) + _MARGIN_MIN
    return {
        "auto_stop_interval": needed,
        "auto_delete_interval": needed,
        "ttl_minutes": needed + _MARGIN_MIN,
    }
