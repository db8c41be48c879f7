"""Treat the files of a run as what strangers may have put there: refuse what is no plain file of its own."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir

# Directories of a rollout whose files are read, beside its own; artifacts/ is never opened.
_READ = ("trajectory", "agent", "verifier")


def strange_files(rundir: RunDir) -> list[str]:
    """Say what in a rollout must not be read: links that lead out of it, and what is neither file nor directory."""
    root = str(rundir.path)
    found: list[str] = []
    for name, entry in _entries(root):
        found += _strange(name, entry, root)
        # A link is named right here, or leads to what is looked at where it is.
        if name in _READ and not entry.is_symlink():
            for inner, each in _entries(entry.path):
                found += _strange(f"{name}/{inner}", each, root)
    return sorted(found)


def _entries(place: str) -> list[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(place) as entries:
            return [(entry.name, entry) for entry in entries]
    except OSError:
        return []


def open_plain(path: Path, flags: int, mode: int = 0o644) -> int:
    """Open a file to write to, never through a link; the descriptor is not inherited. Raises: OSError."""
    found = 0
    try:
        # A pipe that nobody reads would hold the process up.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
    else:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISREG(found):
            return descriptor
        os.close(descriptor)
    raise OSError(errno.ELOOP, f"{path} is no plain file, and nothing is written to or through it; remove it")


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


def _strange(name: str, entry: os.DirEntry[str], root: str) -> list[str]:
    """Return what is wrong with an entry, nothing for a file or directory of the rollout's own."""
    if entry.is_symlink():
        target, within = os.path.realpath(entry.path), os.path.realpath(root)
        if os.path.commonpath((within, target)) != within:
            return [f"{name} is a link that leads out of the rollout"]
        return [] if os.path.isfile(target) or os.path.isdir(target) else [f"{name} is a link to no file"]  # noqa: PTH112, PTH113
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
        return []
    kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
    return [f"{name} is a {'pipe' if kind == stat.S_IFIFO else 'socket' if kind == stat.S_IFSOCK else 'device'}"]
