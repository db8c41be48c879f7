"""Find the files of a task and refuse those that lead out of it."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_benchflow.errors import TaskError


def inside(root: Path, path: Path, label: str) -> Path:
    """Return `path` when it and every link below it stay inside the task directory `root`. Raises: TaskError."""
    real_root = root.resolve()
    if path.is_symlink():
        _refuse_outside(real_root, path, label)
    if path.is_dir():
        pending = [str(path)]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        _refuse_outside(real_root, Path(entry.path), label)
                    elif entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
    return path


def _refuse_outside(real_root: Path, link: Path, label: str) -> None:
    try:
        target = link.resolve()
    except (OSError, RuntimeError) as error:
        raise TaskError(
            f"{label}: {link.name} is a link that leads nowhere ({error}); put a file in its place"
        ) from None
    if not target.is_relative_to(real_root):
        raise TaskError(
            f"{label}: {link.name} is a link to {link.readlink()}, outside of the task directory; "
            "allowed: files, and links to files inside of it"
        )


def subdirectory(root: Path, name: str, label: str) -> Path | None:
    """Return the directory `name` of a task, checked, or None when there is none. Raises: TaskError."""
    path = root / name
    if path.is_symlink():
        _refuse_outside(root.resolve(), path, f"{label}: {name}")
    return inside(root, path, f"{label}: {name}") if path.is_dir() else None
