"""Read what a task's Dockerfile asks for here, and do what of it needs no command: files and directories."""

from __future__ import annotations

import functools
import os
import platform
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError, UnsupportedError
from pytest_benchflow.sandboxes._context import Ignore, find_sources, read_ignore
from pytest_benchflow.sandboxes._files import CopyIn, InsideRoot, is_directory, new_file
from pytest_benchflow.sandboxes._local.bwrap import search_path
from pytest_benchflow.tasks.dockerfile import parse_dockerfile
from pytest_benchflow.tasks.instructions import Arg, Command, Copy, Env, From, Shell, User, Volume, Workdir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_benchflow.tasks.instructions import Instruction
    from pytest_benchflow.tasks.task import Task

# Images for which this machine's own /usr stands in; the tag is noted, never promised.
_BASES = ("debian", "ubuntu", "python", "buildpack-deps")
_ARCHIVE = re.compile(r"\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst))\Z")
_REMOTE = re.compile(r"https?://|git@|git://|ssh://|[^/]+\.git(#|\Z)")
_SHELL = ("/bin/sh", "-c")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Image:
    """What a stage of a Dockerfile amounts to here; a str among `steps` is a directory to make."""

    base: str | None
    workdir: str | None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    steps: tuple[Placed | Run | str, ...] = ()
    below: Image | None = None  # the stage it is built on
    shell: tuple[str, ...] = _SHELL
    reason: str | None = None  # why it cannot be had here

    @property
    def runs(self) -> str | None:
        """Return the first instruction for which a command must run in the image, None when none must."""
        own = (step.said for step in self.steps if not isinstance(step, str) and step.is_command)
        return next(own, None) or (self.below.runs if self.below else None)

    def why_not(self) -> str | None:
        """Return why this image, or one that it is made from, cannot be had here."""
        others = (step.stage for step in self.steps if isinstance(step, Placed))
        needed = (self.below, *others)
        return self.reason or next((reason for image in needed if image and (reason := image.why_not())), None)


@dataclass(frozen=True, slots=True)
class Placed:
    """A COPY or ADD whose target is absolute."""

    copy: Copy
    target: str
    into: bool  # the target is a directory because the instruction says so
    stage: Image | None = None  # where the sources are, if not in the build context

    @property
    def said(self) -> str:
        """Return the instruction as it is written, on one line."""
        return _shorten(f"{self.copy.keyword} {self.copy.text}")

    @property
    def is_archive(self) -> bool:
        """Tell whether a source is an archive that ADD unpacks."""
        return self.copy.keyword == "ADD" and any(_ARCHIVE.search(source) for source in self.copy.sources)

    @property
    def is_command(self) -> bool:
        """Tell whether it takes programs of the image."""
        return self.stage is not None or self.is_archive


@dataclass(frozen=True, slots=True)
class Run:
    """A RUN with all it runs with; `script` is for a program that the instruction holds itself."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    user: str | None
    line: int
    said: str
    network: bool = True
    script: str | None = None
    is_command = True


def plan_image(task: Task) -> Image:
    """Read a task's Dockerfile. Raises: UnsupportedError with what needs docker, TaskError."""
    if task.dockerfile is None:
        base = task.environment.docker_image
        if base is not None and not is_stand_in(base):
            raise UnsupportedError(f"needs docker: image {base}")
        return Image(base=base, workdir=None)
    text = task.dockerfile.read_text(errors="replace")
    image = _Planner().plan(parse_dockerfile(text, name=str(task.dockerfile), env={"PATH": search_path()}))
    if reason := image.why_not():
        raise UnsupportedError(reason)
    return image


def is_stand_in(image: str) -> bool:
    """Tell whether this machine's own programs stand in for an image: plain Debian, Ubuntu and Python ones."""
    name = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    return re.split(r"[-_.\d]", name, maxsplit=1)[0] in _BASES or name in _BASES


class _Planner:
    """Hold what a build would know of the stage it is in; what cannot be done counts only where it is needed."""

    def __init__(self) -> None:
        self.stages: dict[str, Image] = {}
        self.count = 0
        self._begin(None)

    def _begin(self, below: Image | None, base: str | None = None, reason: str | None = None) -> None:
        self.below = below
        self.base = base
        self.reason = reason
        self.workdir = below.workdir if below else None
        self.env = dict(below.env) if below else {}
        self.user = below.user if below else None
        self.shell = below.shell if below else _SHELL
        self.args: dict[str, str] = {}
        self.steps: list[Placed | Run | str] = []

    def plan(self, instructions: list[Instruction]) -> Image:
        name = ""
        begun = False
        for instruction in instructions:
            if isinstance(instruction, From):
                if begun:
                    self._keep(name)
                self._from(instruction)
                name, begun = (instruction.alias or "").lower(), True
            elif begun and self.reason is None:
                try:
                    self._take(instruction)
                except UnsupportedError as error:
                    self.reason = str(error)
        return self._image()

    def _image(self) -> Image:
        return Image(
            self.base, self.workdir, self.env, self.user, tuple(self.steps), self.below, self.shell, self.reason
        )

    def _keep(self, name: str) -> None:
        # A number and, if it has one, a name mean the same stage.
        self.stages[str(self.count)] = image = self._image()
        self.stages[name or str(self.count)] = image
        self.count += 1

    def _from(self, instruction: From) -> None:
        below = self.stages.get(instruction.image.lower())
        if below is not None:
            self._begin(below, below.base)
            return
        reason = None if is_stand_in(instruction.image) else f"needs docker: FROM {instruction.image}"
        machine = _MACHINES.get(platform.machine(), platform.machine())
        if instruction.platform and instruction.platform.partition("/")[2].partition("/")[0] not in ("", machine):
            reason = f"needs docker: FROM --platform={instruction.platform} on {machine}"
        self._begin(None, instruction.image, reason)

    def _take(self, instruction: Instruction) -> None:
        if isinstance(instruction, Env):
            self.env.update(instruction.values)
        elif isinstance(instruction, Arg):
            self.args.update({name: value for name, value in instruction.values.items() if value is not None})
        elif isinstance(instruction, Workdir):
            self.workdir = self._absolute(instruction.path)
            self.steps.append(self.workdir)
        elif isinstance(instruction, User):
            self.user = instruction.user
        elif isinstance(instruction, Shell):
            self.shell = instruction.argv
        elif isinstance(instruction, Volume):
            self.steps.extend(self._absolute(path) for path in instruction.paths)
        elif isinstance(instruction, Copy):
            self.steps.append(self._place(instruction))
        elif isinstance(instruction, Command) and instruction.keyword == "RUN":
            made = self._made_directories(instruction)
            self.steps.extend([self._run(instruction)] if made is None else made)

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.workdir or "/", path))

    def _place(self, copy: Copy) -> Placed:
        into = copy.target.endswith(("/", "/.")) or copy.target == "." or len(copy.sources) + len(copy.heredocs) > 1
        stage = self.stages.get(copy.from_stage.lower()) if copy.from_stage is not None else None
        placed = Placed(copy, self._absolute(copy.target), into, stage)
        remote = copy.keyword == "ADD" and any(_REMOTE.match(source) for source in copy.sources)
        flags = [f"--{name}" for name in copy.flags if name != "link"]
        mode = copy.chmod is not None and not re.fullmatch(r"[0-7]{3,4}", copy.chmod)
        elsewhere = copy.from_stage is not None and stage is None
        if elsewhere or remote or flags or mode or (placed.is_command and copy.exclude):
            raise UnsupportedError(f"needs docker: {placed.said}")
        return placed

    def _made_directories(self, run: Command) -> list[str] | None:
        """Return the directories that a RUN of nothing but `mkdir` makes, None for any other."""
        if run.argv is not None or run.shell is None or run.heredocs or run.flags or self.shell != _SHELL:
            return None
        paths: list[str] = []
        for command in re.split(r"&&|;", run.shell):
            words = command.split()
            plain = all(re.fullmatch(r"[\w./-]+", word) for word in words)
            if not plain or words[:1] != ["mkdir"] or words[1:2] == ["--help"]:
                return None
            operands = [word for word in words[1:] if word not in ("-p", "--parents", "-pv", "-v")]
            if not operands or any(word.startswith("-") for word in operands):
                return None
            paths.extend(map(self._absolute, operands))
        return paths

    def _run(self, run: Command) -> Run:
        said = _shorten(f"RUN {run.text}")
        network = True
        for flag in run.flags:
            name, _, value = flag.partition("=")
            if name == "--network" and value in ("default", "none"):
                network = value == "default"
            elif not (name == "--mount" and _is_cache(value)):
                raise UnsupportedError(f"needs docker: {said}")
            else:
                # Without the cache of other builds the step does the same, only slower.
                self.steps.extend(
                    self._absolute(path) for path in re.findall(r"(?:target|dst|destination)=([^,]+)", value)
                )
        argv, script = self._argv(run)
        cwd = self.workdir or "/"
        return Run(argv, {**self.args, **self.env}, cwd, self.user, run.line, said, network, script)

    def _argv(self, run: Command) -> tuple[tuple[str, ...], str | None]:
        """Return what is executed, and the text of a program that the instruction itself holds."""
        if run.argv is not None:
            return run.argv, None
        text = run.shell or ""
        if len(run.heredocs) == 1 and re.fullmatch(r"<<-?\s*[\"']?[^\s\"']+[\"']?", text.strip()):
            body = run.heredocs[0].text
            return ((), body) if body.startswith("#!") else ((*self.shell, body), None)
        lines = [text, *(f"{doc.text}{doc.name}" for doc in run.heredocs)]
        return (*self.shell, "\n".join(lines)), None


def _is_cache(mount: str) -> bool:
    words = mount.split(",")
    return "type=cache" in words and not any(word.startswith(("from=", "source=", "src=")) for word in words)


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
        elif isinstance(step, Placed):
            place_files(step, context, ignore, inside, owner)


def place_files(
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
