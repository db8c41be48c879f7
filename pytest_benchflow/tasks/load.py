"""Find task directories, load them whichever layout they have, and say what they are made of."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import TaskError
from pytest_benchflow.records.rundir import is_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.tasks.task import Task

TASK_FILES = ("task.md", "task.toml")
_NEVER_TASKS = frozenset({"node_modules", "__pycache__", "build", "_build", "dist", "venv", "site-packages", "CVS"})


def task_file(path: Path) -> Path | None:
    """Return the file that makes `path` a task: task.md before task.toml, None when it is no task."""
    document, harbor = (path / name for name in TASK_FILES)
    try:
        if document.is_file() and _is_document(document):
            return document
        return harbor if harbor.is_file() else None
    except PermissionError:
        return None


def _is_document(file: Path) -> bool:
    """Tell a task from some note that is called task.md."""
    if any((file.parent / name).is_dir() for name in ("verifier", "oracle")):
        return True
    with file.open("rb") as stream:
        return stream.read(6).removeprefix(b"\xef\xbb\xbf").startswith(b"---")


def is_task(path: Path) -> bool:
    """Tell whether `path` is a task directory, without loading it."""
    return task_file(path) is not None


def find_tasks(directory: Path) -> list[Path]:
    """Return the task directories at or below `directory`, sorted.

    Links are not followed. Hidden, version-control and build directories, virtual environments, and the directories
    of jobs and rollouts are not searched; nor is a task searched for others. Raises: TaskError.
    """
    if not directory.is_dir():
        raise TaskError(f"{directory}: there is no such directory; name one that is a task or holds tasks")
    return sorted(_walk(directory))


def _walk(directory: Path) -> Iterator[Path]:
    if is_task(directory):
        yield directory
        return
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
    except OSError as error:
        raise TaskError(f"{directory}: it cannot be searched for tasks: {error.strerror}") from None
    names = {entry.name for entry in found}
    if "pyvenv.cfg" in names or is_run(directory):
        return
    for entry in found:
        skipped = entry.name.startswith(".") or entry.name in _NEVER_TASKS or entry.name.endswith(".egg-info")
        if not skipped and entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def load_task(path: Path | str) -> Task:
    """Load the task directory `path` (or the task.toml or task.md in it).

    Raises: TaskError naming file, key and what is allowed.
    """
    where = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links and rename the task
    if where.name in TASK_FILES and where.is_file():
        where = where.parent
    if not where.is_dir():
        raise TaskError(f"{path}: there is no such directory; a task is a directory with task.toml or task.md")
    file = task_file(where)
    if file is None:
        raise TaskError(f"{path}: it holds neither task.toml nor task.md; a task is a directory with one of them")
    if file.name == "task.md":
        from pytest_benchflow.tasks.document import load_document

        return load_document(where)
    from pytest_benchflow.tasks.harbor import load_harbor

    return load_harbor(where)


def task_digest(task: Task) -> str:
    """Return the SHA-256 over names and content of the task's files, its recordings left out, as 64 hex digits."""
    total = hashlib.sha256()
    for name, path in sorted(_files(task.path, "")):
        encoded = name.encode("utf-8", "surrogateescape")
        # Its length before a name and one size for every content: no two trees run together into the same bytes.
        total.update(b"%d:" % len(encoded) + encoded + _content_digest(path))
    return total.hexdigest()


def _content_digest(path: Path) -> bytes:
    if path.is_symlink():
        return hashlib.sha256(b"link to " + os.fsencode(path.readlink())).digest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _files(directory: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            name = prefix + entry.name
            if name == "recorded":
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path), name + "/")
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                yield name, Path(entry.path)
