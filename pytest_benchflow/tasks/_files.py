"""Find the files of a task and refuse those that lead out of it."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_benchflow.errors import TaskError


def inside(root: Path, path: Path, label: str) -> Path:
    """Return `path` when it and every link below it stay inside the task directory `root`. Raises: TaskError."""
    if path.is_symlink():
        _refuse_outside(root, path, label)
    pending = [str(path)] if path.is_dir() else []
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    _refuse_outside(root, Path(entry.path), label)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return path


def _refuse_outside(root: Path, link: Path, label: str) -> None:
    name = link.relative_to(root)
    try:
        target = link.resolve()
    except (OSError, RuntimeError):
        raise TaskError(f"{label}: {name} is a link that leads back to itself; put a file in its place") from None
    if not target.is_relative_to(root.resolve()):
        raise TaskError(
            f"{label}: {name} is a link to {link.readlink()}, outside of the task directory; "
            "allowed: files, and links to what is inside of it"
        )


def subdirectory(root: Path, name: str, label: str) -> Path | None:
    """Return the directory `name` of a task, its links checked, or None when there is none. Raises: TaskError."""
    path = root / name
    # A link that leads out is refused even where nothing is at its end now.
    return inside(root, path, label) if path.is_dir() or path.is_symlink() else None
