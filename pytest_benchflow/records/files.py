"""Treat the files of a run as what strangers may have put there: refuse what is no plain file of its own."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir

# Directories of a rollout whose files are read; artifacts/ is never opened.
_READ = ("", "trajectory", "agent", "verifier")


def strange_files(rundir: RunDir) -> list[str]:
    """Say what in a rollout must not be read: links that lead out of it, and what is neither file nor directory."""
    found: list[str] = []
    root = os.path.realpath(rundir.path)
    for part in _READ:
        place = rundir.path / part
        if part and place.is_symlink():
            continue  # named already, in the directory that holds it
        try:
            with os.scandir(place) as entries:
                found += [f"{_shown(part, entry.name)} {why}" for entry in entries if (why := _strange(entry, root))]
        except OSError:
            continue
    return sorted(found)


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file whole or not at all, never through a link. Raises: OSError, and what `pieces` does."""
    draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(pieces)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _strange(entry: os.DirEntry[str], root: str) -> str | None:
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        if os.path.commonpath((root, target)) != root:
            return "is a link that leads out of the rollout"
        return None if os.path.isfile(target) or os.path.isdir(target) else "is a link to no file"  # noqa: PTH112, PTH113
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
        return None
    kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
    return f"is a {'pipe' if kind == stat.S_IFIFO else 'socket' if kind == stat.S_IFSOCK else 'device'}"


def _shown(part: str, name: str) -> str:
    return f"{part}/{name}" if part else name
