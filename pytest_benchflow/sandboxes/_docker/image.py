"""Have the image that a task asks for: built from its Dockerfile once per content, or pulled."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import platform
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError, TaskError, UnsupportedError
from pytest_benchflow.sandboxes._context import read_ignore
from pytest_benchflow.sandboxes._docker.compose import Recipe, read_compose
from pytest_benchflow.tasks.dockerfile import parse_dockerfile
from pytest_benchflow.tasks.instructions import Command, Copy, From

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.sandboxes._docker.engine import Engine
    from pytest_benchflow.tasks.task import Task

REPOSITORY = "pytest-benchflow"
LABEL = "benchflow.managed"
_DENIED = (
    "denied",
    "no basic auth",
    "unauthorized",
    "authentication required",
    "does not exist",
    "not found",
    "manifest unknown",
)
_LAST_LINES = 8
_MEMORY_BYTES = 16 << 20

_turns: dict[str, threading.Lock] = {}
_turns_turn = threading.Lock()


def why_unsupported(task: Task) -> str | None:
    """Return the reason to skip a task in the docker sandbox, None when it can run. Raises: TaskError."""
    environment = task.environment
    if environment.os.lower() != "linux":
        return f"needs {environment.os}: the docker sandbox runs linux containers"
    if environment.tpu:
        return "needs a TPU, which the docker sandbox does not pass on"
    try:
        sources = [source_of(task)]
        if task.compose_file is not None:
            sources += [each.image for each in read_compose(task).side]
    except UnsupportedError as error:
        return str(error)
    if not sources[0]:
        return "names no image: environment/Dockerfile or environment.docker_image"
    reasons = (_why_not_built(each.dockerfile) for each in sources if isinstance(each, Recipe))
    return next(filter(None, reasons), None)


def source_of(task: Task) -> Recipe | str | None:
    """Return what the image of a task's own container comes from: a recipe, or the name of an image.

    Raises: UnsupportedError, TaskError for a compose file that says it.
    """
    said = read_compose(task).main.image if task.compose_file is not None else None
    if said:
        return said
    if task.environment.docker_image and task.dockerfile is None:
        return task.environment.docker_image
    return None if task.dockerfile is None else Recipe(task.dockerfile, task.environment_dir or task.path)


def _why_not_built(dockerfile: Path) -> str | None:
    """Return what only BuildKit builds: the engine's own interface offers the classic builder."""
    for found in parse_dockerfile(dockerfile.read_text(errors="replace"), name=str(dockerfile)):
        modern: tuple[object, ...] = ()
        if isinstance(found, Command):
            modern = (found.flags, found.heredocs)
        elif isinstance(found, Copy):
            modern = (found.heredocs, found.chmod, found.exclude, found.flags)
        if any(modern):
            said = " ".join(f"{found.keyword} {found.text}".split())
            return f"needs BuildKit, which the docker sandbox does not build with yet: {said[:80]}"
    return None


def wanted_image(source: Recipe | str | None) -> str:
    """Return the name of an image; for a recipe it is told by the content of its context."""
    if not isinstance(source, Recipe):
        return _with_tag(source or "")
    with _context(source) as (_, digest):
        return f"{REPOSITORY}:{digest[:24]}"


def fingerprint(task: Task) -> str:
    """Name what an agent install depends on, safe in a file name."""
    digest = hashlib.sha256(wanted_image(source_of(task)).encode()).hexdigest()[:16]
    return f"docker-{platform.machine()}-{digest}"


async def have_image(engine: Engine, source: Recipe | str | None, limit: float) -> dict[str, Any]:
    """Return what the engine knows of an image, after building or pulling it where it is not there.

    Raises: SandboxError with the step that failed, why it cannot be pulled, or that it took over `limit` seconds.
    """
    name = await asyncio.to_thread(wanted_image, source)
    if isinstance(source, Recipe):
        work, what = functools.partial(_build, engine, source, name), f"building {source.dockerfile}"
    else:
        work, what = functools.partial(_pull, engine, name), f"pulling {name}"
    try:
        found: dict[str, Any] = await engine.call("inspect_image", name)
    except FileNotFoundError:
        await engine.long(work, limit, what)
        found = await engine.call("inspect_image", name)
    return found


def _pull(engine: Engine, name: str, given_up: threading.Event) -> None:
    with _turn(name):
        if _is_there(engine, name):
            return
        lines = engine.progress("/images/create", {"fromImage": name}, engine.registry_header(name), given_up)
        with contextlib.closing(lines):
            for line in lines:
                if "error" in line:
                    raise SandboxError(_why_not_pulled(name, str(line["error"])))
                if given_up.is_set():
                    return


def _why_not_pulled(name: str, said: str) -> str:
    said = " ".join(said.split())[:300]
    if "no space left" in said.lower():
        return f"image {name} cannot be pulled: the Docker engine's disk is full; `docker system prune` makes room"
    if any(word in said.lower() for word in _DENIED):
        return f"image {name} cannot be pulled: it does not exist, or needs `docker login` on this machine ({said})"
    return f"image {name} cannot be pulled: its registry cannot be reached ({said}); `docker pull` it by hand, or retry"


def _build(engine: Engine, recipe: Recipe, name: str, given_up: threading.Event) -> None:
    for base in _bases(recipe):
        _pull(engine, base, given_up)
    with _turn(name), _context(recipe) as (context, _digest):
        if _is_there(engine, name):
            return
        said: list[str] = []
        params = {"dockerfile": _DOCKERFILE, "t": name, "rm": "1", "forcerm": "1", "labels": json.dumps({LABEL: "1"})}
        params |= {"buildargs": json.dumps(recipe.args)} if recipe.args else {}
        params |= {"target": recipe.target} if recipe.target else {}
        lines = engine.progress("/build", params, {"Content-Type": "application/x-tar"}, given_up, context)
        with contextlib.closing(lines):
            for line in lines:
                if "error" in line:
                    raise SandboxError(_why_not_built_here(recipe, str(line["error"]), said))
                if given_up.is_set():
                    return
                said.extend(str(line.get("stream", "")).splitlines())


def _bases(recipe: Recipe) -> list[str]:
    """Return the images that a build begins with; pulled beforehand, what keeps them away is told as for any other."""
    stages: set[str] = set()
    bases = []
    for found in parse_dockerfile(recipe.dockerfile.read_text(errors="replace"), name=str(recipe.dockerfile)):
        if isinstance(found, From):
            if found.image.lower() not in (*stages, "scratch") and found.platform is None and "$" not in found.image:
                bases.append(_with_tag(found.image))
            stages.add((found.alias or "").lower())
    return bases


def _with_tag(image: str) -> str:
    """Return an image's whole name: a name alone would mean all the tags there are."""
    return image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:latest"


def _why_not_built_here(recipe: Recipe, error: str, said: list[str]) -> str:
    error = " ".join(error.split())[:300]
    if "no space left" in error:
        return (
            f"{recipe.dockerfile} cannot be built: the Docker engine's disk is full; `docker system prune` makes room"
        )
    last = "\n".join([line for line in said if line.strip()][-_LAST_LINES:])
    return f"{recipe.dockerfile} cannot be built: {error}; the last lines:\n{last}"


def _is_there(engine: Engine, name: str) -> bool:
    try:
        engine.ask("inspect_image", name)
    except FileNotFoundError:
        return False
    return True


def _turn(name: str) -> threading.Lock:
    with _turns_turn:
        return _turns.setdefault(name, threading.Lock())


# Given as a name of our own: the engine wants it in the context, whatever .dockerignore says.
_DOCKERFILE = ".benchflow.Dockerfile"


@contextlib.contextmanager
def _context(recipe: Recipe) -> Iterator[tuple[IO[bytes], str]]:
    """Yield a build context as a tar that is the same for the same content, and its SHA-256."""
    top = recipe.context
    with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as file:
        try:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _add(tar, recipe.dockerfile, _DOCKERFILE)
                ignore = read_ignore(top, recipe.dockerfile)
                for path in sorted(_below(top)):
                    relative = path.relative_to(top).as_posix()
                    if ignore.keeps(relative):
                        _add(tar, path, relative)
        except OSError as error:
            raise TaskError(f"{top} cannot be read: {error.strerror or error}") from error
        more = [recipe.target, sorted(recipe.args.items())] if recipe.args or recipe.target else None
        digest = hashlib.sha256(json.dumps(more).encode() if more else b"")
        file.seek(0)
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        file.seek(0)
        yield file, digest.hexdigest()


def _below(top: Path) -> Iterator[Path]:
    for directory, directories, files in os.walk(top):
        for name in (*directories, *files):
            yield Path(directory, name)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add one entry without what differs from one checkout to the next."""
    info = tar.gettarinfo(path, name)
    if info is None:  # a socket, which no image can hold
        return
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
    info.pax_headers = {}
    if info.isreg() or info.islnk():
        info.type = tarfile.REGTYPE  # what is a hard link here is a file of its own there
        with path.open("rb") as file:
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, file)
    else:
        tar.addfile(info)
