"""Do what a task's Dockerfile says, as far as that needs no image: files, directories, variables, the user."""

from __future__ import annotations

import functools
import os
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError, UnsupportedError
from pytest_benchflow.sandboxes._bwrap import search_path
from pytest_benchflow.sandboxes._context import Ignore, find_sources, read_ignore
from pytest_benchflow.sandboxes._files import CopyIn, InsideRoot, is_directory, new_file
from pytest_benchflow.tasks.dockerfile import parse_dockerfile
from pytest_benchflow.tasks.instructions import Command, Copy, Env, From, User, Volume, Workdir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_benchflow.tasks.instructions import Instruction
    from pytest_benchflow.tasks.task import Task

# Images for which this machine's own /usr stands in; the tag is noted, never promised.
_BASES = ("debian", "ubuntu", "python", "buildpack-deps")
_ARCHIVE = re.compile(r"\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst))\Z")
_REMOTE = re.compile(r"https?://|git@|git://|ssh://|[^/]+\.git(#|\Z)")


@dataclass(frozen=True, slots=True)
class Image:
    """What a Dockerfile amounts to here; `steps` are COPY and ADD, or directories to make."""

    base: str | None
    workdir: str | None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    steps: tuple[Placed | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A COPY whose target is absolute."""

    copy: Copy
    target: str
    into: bool  # the target is a directory because the instruction says so


def plan_image(task: Task) -> Image:
    """Read a task's Dockerfile. Raises: UnsupportedError with what needs docker, TaskError."""
    if task.dockerfile is None:
        base = task.environment.docker_image
        if base is not None and not is_stand_in(base):
            raise UnsupportedError(f"needs docker: image {base}")
        return Image(base=base, workdir=None)
    text = task.dockerfile.read_text(errors="replace")
    return _Planner().plan(parse_dockerfile(text, name=str(task.dockerfile), env={"PATH": search_path()}))


def is_stand_in(image: str) -> bool:
    """Tell whether this machine's own programs stand in for an image: plain Debian, Ubuntu and Python ones."""
    name = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    return re.split(r"[-_.\d]", name, maxsplit=1)[0] in _BASES or name in _BASES


class _Planner:
    def __init__(self) -> None:
        self.base: str | None = None
        self.workdir: str | None = None
        self.env: dict[str, str] = {}
        self.user: str | None = None
        self.steps: list[Placed | str] = []

    def plan(self, instructions: list[Instruction]) -> Image:
        for instruction in instructions:
            self._take(instruction)
        return Image(self.base, self.workdir, self.env, self.user, tuple(self.steps))

    def _take(self, instruction: Instruction) -> None:
        if isinstance(instruction, From):
            if self.base is not None:
                raise UnsupportedError("needs docker: a build of several stages")
            if not is_stand_in(instruction.image):
                raise UnsupportedError(f"needs docker: FROM {instruction.image}")
            self.base = instruction.image
        elif isinstance(instruction, Env):
            self.env.update(instruction.values)
        elif isinstance(instruction, Workdir):
            self.workdir = self._absolute(instruction.path)
            self.steps.append(self.workdir)
        elif isinstance(instruction, User):
            self.user = instruction.user
        elif isinstance(instruction, Volume):
            self.steps.extend(self._absolute(path) for path in instruction.paths)
        elif isinstance(instruction, Copy):
            self.steps.append(self._place(instruction))
        elif isinstance(instruction, Command) and instruction.keyword == "RUN":
            self.steps.extend(self._made_directories(instruction))

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.workdir or "/", path))

    def _place(self, copy: Copy) -> Placed:
        said = f"{copy.keyword} {copy.text}"
        remote = copy.keyword == "ADD" and any(_REMOTE.match(source) for source in copy.sources)
        unpacked = copy.keyword == "ADD" and any(_ARCHIVE.search(source) for source in copy.sources)
        flags = [f"--{name}" for name in copy.flags if name != "link"]
        mode = copy.chmod is not None and not re.fullmatch(r"[0-7]{3,4}", copy.chmod)
        if copy.from_stage is not None or remote or unpacked or flags or mode:
            raise UnsupportedError(f"needs docker: {_shorten(said)}")
        into = copy.target.endswith(("/", "/.")) or copy.target == "." or len(copy.sources) + len(copy.heredocs) > 1
        return Placed(copy, self._absolute(copy.target), into)

    def _made_directories(self, run: Command) -> list[str]:
        """Return the directories that a RUN of nothing but `mkdir` makes. Raises: UnsupportedError for any other."""
        paths: list[str] = []
        if run.argv is None and run.shell is not None and not run.heredocs and not run.flags:
            for command in re.split(r"&&|;", run.shell):
                words = command.split()
                plain = all(re.fullmatch(r"[\w./-]+", word) for word in words)
                if not plain or words[:1] != ["mkdir"] or words[1:2] == ["--help"]:
                    break
                operands = [word for word in words[1:] if word not in ("-p", "--parents", "-pv", "-v")]
                if not operands or any(word.startswith("-") for word in operands):
                    break
                paths.extend(map(self._absolute, operands))
            else:
                return paths
        raise UnsupportedError(f"needs docker: {_shorten(f'RUN {run.text}')}")


def _shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 100 else f"{flat[:99]}…"


def build_image(image: Image, task: Task, inside: InsideRoot, owner: Callable[[str], tuple[int, int]] | None) -> None:
    """Place an image's files below `inside`. `owner` turns a --chown into (uid, gid); None: all is one user's here.

    Raises: TaskError and SandboxError naming the instruction.
    """
    context = task.environment_dir or task.path
    ignore = read_ignore(context, task.dockerfile) if task.dockerfile else Ignore([])
    for step in image.steps:
        if isinstance(step, str):
            with inside.directory(step, make=True):
                pass
        else:
            _copy(step, context, ignore, inside, owner)


def _copy(
    placed: Placed,
    context: Path,
    ignore: Ignore,
    inside: InsideRoot,
    owner: Callable[[str], tuple[int, int]] | None,
) -> None:
    copy = placed.copy
    where = f"{copy.keyword} in line {copy.line} of the Dockerfile"
    excluded = Ignore(list(copy.exclude))
    adopt = functools.partial(
        _adopt, ids=owner(copy.chown) if copy.chown and owner else None, mode=int(copy.chmod, 8) if copy.chmod else None
    )
    top = context.resolve()
    copier = CopyIn(top, inside, lambda path: ignore.keeps(path) and excluded.keeps(path), adopt)
    for source in copy.sources:
        for path in find_sources(context, source, where):
            if not path.is_dir():
                if not ignore.keeps(path.relative_to(top).as_posix()):
                    raise SandboxError(f"{where}: .dockerignore leaves {path.relative_to(top)} out")
                into = placed.into or is_directory(inside, placed.target)
                copier.copy(path, f"{placed.target}/{path.name}" if into else placed.target)
            else:
                copier.copy(path, placed.target)
    for heredoc in copy.heredocs:
        with (
            inside.parent(f"{placed.target}/{heredoc.name}" if placed.into else placed.target, make=True) as (
                at,
                name,
            ),
            new_file(at, name) as file,
        ):
            file.write(heredoc.text.encode())
            adopt(file.fileno())


def _adopt(descriptor: int, *, ids: tuple[int, int] | None, mode: int | None) -> None:
    if ids is not None:
        os.fchown(descriptor, *ids)
    if mode is not None:
        os.fchmod(descriptor, mode)
