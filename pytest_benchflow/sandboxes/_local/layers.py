"""Build what a Dockerfile's commands make of this machine, a layer for each RUN, and keep the layers for every session.

A layer's name tells its content: what it lies on, and the steps that made it with all they read.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import SandboxSpec
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._context import Ignore, find_sources, read_ignore
from pytest_benchflow.sandboxes._files import InsideRoot
from pytest_benchflow.sandboxes._install import locked
from pytest_benchflow.sandboxes._local.base import base_digest, parts, write_base
from pytest_benchflow.sandboxes._local.buildsteps import STAGES, Workshop
from pytest_benchflow.sandboxes._local.bwrap import SPAWNER
from pytest_benchflow.sandboxes._local.image import Placed, Run
from pytest_benchflow.sandboxes._local.overlay import Tree, sync_files
from pytest_benchflow.sandboxes._local.programs import restore_programs
from pytest_benchflow.sandboxes._remove import remove_entry
from pytest_benchflow.settings import cache_dir
from pytest_benchflow.tasks.task import Environment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from pytest_benchflow.sandboxes._local.image import Image
    from pytest_benchflow.sandboxes.local import LocalSandbox
    from pytest_benchflow.tasks.task import Task

    # Makes a sandbox over a stack of layers whose changes go to a directory, with other stacks to copy from.
    OpenBench = Callable[[SandboxSpec, "Stack", Path, Sequence["Stack"]], Awaitable[LocalSandbox]]

_MARKER = "layer.json"
_DRAFT = ".draft-"
_EMPTY = ".empty"

# A build that failed is not tried again by the next rollout of the same session.
_failed: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Stack:
    """The names of layers, the lowest first."""

    names: tuple[str, ...]

    def lowers(self, name: str, host: Path | None) -> list[Path]:
        """Return what `name` is made of from the topmost down: paths relative to the layers, and the host's own."""
        found = [Path(layer, name) for layer in reversed(self.names) if (layers_dir() / layer / name).is_dir()]
        return [*found, host] if host else found

    def restore(self, changes: Path) -> None:
        """Take back what was changed of the programs that a program's start depends on; nothing may be mounted."""
        for number, part in enumerate(parts()):
            name = f"p{number}"
            restore_programs(changes / name, part, [layers_dir() / lower for lower in self.lowers(name, part)])

    def trees(self, target: Path, changes: Path | None) -> list[Tree]:
        """Return what shows the layers at `target`; changes go to directories made below `changes`."""
        trees = []
        for place, name, host in ((target, "root", None), *_part_places(target)):
            lowers = self.lowers(name, host)
            upper = work = None
            if changes is not None:
                upper, work = changes / name, changes / "work" / name
                upper.mkdir(exist_ok=True)
                upper.chmod(stat.S_IMODE((layers_dir() / lowers[0]).stat().st_mode))
                shutil.rmtree(work, ignore_errors=True)  # a second mount over the same changes needs it new
                work.mkdir(parents=True)
            elif len(lowers) == 1:
                lowers.insert(0, Path(_EMPTY))  # without an upper one, an overlay wants two
            trees.append(Tree(place, lowers, upper, work))
        return trees


def _part_places(target: Path) -> Iterator[tuple[Path, str, Path]]:
    for number, part in enumerate(parts()):
        yield target / part.relative_to("/"), f"p{number}", part


def layers_dir() -> Path:
    """Return where layers are kept."""
    return cache_dir() / "layers"


async def have_layers(image: Image, task: Task, bench: OpenBench) -> Stack:
    """Return the layers of an image, after building those that are not there yet.

    Raises: SandboxError with the step that failed and the last it said, TaskError for a source that is not there.
    """
    try:
        (layers_dir() / _EMPTY).mkdir(parents=True, exist_ok=True)
        return await _Builder(task, bench).stack(image)
    except OSError as error:
        raise SandboxError(
            f"the image of {task.dockerfile} cannot be kept below {layers_dir()}: {error.strerror or error}; "
            "make room there, or set BENCHFLOW_CACHE_DIR to a directory that can be written"
        ) from error


class _Builder:
    def __init__(self, task: Task, bench: OpenBench) -> None:
        self._task = task
        self._bench = bench
        self._context = (task.environment_dir or task.path).resolve()
        self._ignore = read_ignore(self._context, task.dockerfile) if task.dockerfile else Ignore([])
        self._spent = 0.0

    async def stack(self, image: Image) -> Stack:
        if image.below is not None:
            stack = await self.stack(image.below)
        else:
            stack = Stack(())
            name = await self._layer(f"base\0{base_digest()}", _write_base)
            stack = Stack((name,))
        for chunk in _chunks(image.steps):
            stages = [await self.stack(step.stage) for step in chunk if isinstance(step, Placed) and step.stage]
            said = await asyncio.to_thread(self._describe, chunk, stack, stages)

            async def work(
                draft: Path,
                chunk: Sequence[Placed | Run | str] = chunk,
                below: Stack = stack,
                stages: Sequence[Stack] = stages,
            ) -> None:
                await self._build(draft, chunk, below, stages)

            stack = Stack((*stack.names, await self._layer(said, work)))
        return stack

    async def _layer(self, said: str, work: Callable[[Path], Awaitable[None]]) -> str:
        """Return the name of the layer that `said` describes; `work` makes it in a draft where it is not there."""
        name = hashlib.sha256(said.encode()).hexdigest()[:24]
        final = layers_dir() / name
        if (final / _MARKER).is_file():
            return name
        if name in _failed:
            raise SandboxError(_failed[name])
        await asyncio.to_thread(_sweep)
        async with locked(layers_dir() / f".{name}.lock"):
            if name in _failed:
                raise SandboxError(_failed[name])
            if not (final / _MARKER).is_file():
                await asyncio.to_thread(_remove, final)
                draft = final.with_name(f".{name}{_DRAFT}{secrets.token_hex(4)}")
                draft.mkdir(mode=0o700)
                try:
                    await work(draft)
                    await asyncio.to_thread(_complete, draft, final)
                except SandboxError as error:
                    _failed[name] = str(error)
                    raise
                finally:
                    await asyncio.to_thread(_remove, draft)
        return name

    def _describe(self, chunk: Sequence[Placed | Run | str], below: Stack, stages: Sequence[Stack]) -> str:
        words: list[object] = [below.names, [stage.names for stage in stages]]
        for step in chunk:
            if isinstance(step, str):
                words.append(step)
            elif isinstance(step, Run):
                words += [step.argv, step.script, sorted(step.env.items()), step.cwd, step.user, step.network]
            else:
                copy = step.copy
                words += [copy.keyword, copy.sources, step.target, step.into, copy.chown, copy.chmod, copy.exclude]
                words += [[(doc.name, doc.text) for doc in copy.heredocs], self._content(step)]
        return json.dumps(words, default=repr)

    def _content(self, placed: Placed) -> str:
        """Return a digest of the files that a COPY takes from the build context."""
        digest = hashlib.sha256()
        for source in placed.copy.sources if placed.stage is None else ():
            for top in find_sources(self._context, source, placed.said):
                for path in (top, *(sorted(top.rglob("*")) if top.is_dir() else ())):
                    relative = path.relative_to(self._context).as_posix()
                    if relative == "." or self._ignore.keeps(relative):
                        _add(digest, path, relative)
        return digest.hexdigest()

    async def _build(
        self, draft: Path, chunk: Sequence[Placed | Run | str], below: Stack, stages: Sequence[Stack]
    ) -> None:
        """Do the steps in a sandbox over the layers below; what they change stays in `draft`."""
        scratch = draft / "scratch"
        scratch.mkdir(mode=0o700)
        # What a task asks for its agent's machine does not bound its build.
        task = replace(self._task, environment=Environment())
        spec = SandboxSpec(id=f"build-{secrets.token_hex(4)}", task=task, scratch=scratch)
        begun = time.monotonic()
        sandbox = await self._bench(spec, below, draft, stages)
        workshop = Workshop(sandbox, self._task, begun + self._task.environment.build_timeout_sec - self._spent)
        try:
            used = 0
            for step in chunk:
                await workshop.do(step, f"{STAGES}/{used}")
                used += isinstance(step, Placed) and step.stage is not None
        finally:
            await asyncio.shield(sandbox.stop())
            self._spent += time.monotonic() - begun


async def _write_base(draft: Path) -> None:
    await asyncio.to_thread(write_base, draft)


def _chunks(steps: Sequence[Placed | Run | str]) -> Iterator[list[Placed | Run | str]]:
    """Yield the steps in groups, each of which becomes a layer: a RUN with what precedes it."""
    chunk: list[Placed | Run | str] = []
    for step in steps:
        chunk.append(step)
        if isinstance(step, Run):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _add(digest: hashlib._Hash, path: Path, relative: str) -> None:
    found = path.lstat()
    digest.update(f"{relative}\0{stat.S_IMODE(found.st_mode) & 0o777:o}\0{stat.S_IFMT(found.st_mode):o}\0".encode())
    if stat.S_ISLNK(found.st_mode):
        digest.update(os.fsencode(path.readlink()))
    elif stat.S_ISREG(found.st_mode):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)


def _complete(draft: Path, final: Path) -> None:
    """Give a draft its name, when all it holds is on disk; parts that nothing was changed in stay out."""
    inside = InsideRoot(draft / "root")
    for path in (STAGES, SPAWNER):
        inside.remove(path)
    for name in ("scratch", "work"):
        _remove(draft / name)
    for name in ("root", *(f"p{number}" for number in range(len(parts())))):
        if (draft / name).is_dir() and not any((draft / name).iterdir()) and name != "root":
            (draft / name).rmdir()
    (draft / _MARKER).write_text(json.dumps({"parts": [str(part) for part in parts()]}), "utf-8")
    sync_files(draft)
    draft.rename(final)


def _sweep() -> None:
    """Remove what builds that were killed left: the drafts whose lock nobody holds."""
    for draft in layers_dir().glob(f".*{_DRAFT}*"):
        lock = os.open(
            draft.with_name(f"{draft.name.partition(_DRAFT)[0]}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(draft)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    if path.exists():
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_entry(directory, path.name)
        finally:
            os.close(directory)
