"""Remove what a directory holds, by descriptor and through no link, however deep it is and whatever its modes are."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_PATH, as on macOS, no sandbox's processes share these files with us.
_PLACE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_entry(directory: int, name: str) -> None:
    """Remove `name` from a directory. Raises: FileNotFoundError, OSError."""
    with _unlocked(directory):
        if _unlink(directory, name):
            return
        top = _open(directory, name)
        try:
            # What is deeper is moved up before it is descended into: depth costs neither descriptors nor stack.
            while names := names_in(top):
                for inner in names:
                    _flatten(top, inner)
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=directory)


def _flatten(top: int, name: str) -> None:
    """Remove a file of `top`, or a directory of which the directories move up to `top`."""
    if _unlink(top, name):
        return
    inner = _open(top, name)
    try:
        for child in names_in(inner):
            if not _unlink(inner, child):
                os.close(_open(inner, child))  # moving a directory takes the right to write to it
                os.rename(child, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def names_in(directory: int) -> list[str]:
    """Return the names in an open directory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _unlink(directory: int, name: str) -> bool:
    """Remove anything but a directory; False: it is one."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    return True


def _open(directory: int, name: str) -> int:
    """Open a directory after making it its owner's to read and write."""
    place = os.open(name, _PLACE, dir_fd=directory)
    try:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        if mode & 0o700 != 0o700:
            # By descriptor, as a path could be a link by now.
            os.chmod(f"/proc/self/fd/{place}", mode | 0o700)  # noqa: PTH101
    finally:
        os.close(place)
    return os.open(name, DIRECTORY, dir_fd=directory)


@contextlib.contextmanager
def _unlocked(directory: int) -> Iterator[None]:
    """Make a directory writable for its owner meanwhile."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if mode & 0o300 == 0o300:
        yield
        return
    os.fchmod(directory, mode | 0o300)
    try:
        yield
    finally:
        os.fchmod(directory, mode)
