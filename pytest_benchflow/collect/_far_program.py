"""Read a job's files on another machine, for the session that leads; its text is sent there and run.

A request is a tuple, `(name, *arguments)`; the answer is `(True, value)` or `(False, why not)`. Paths are relative to
the job's directory. What is below it may be an agent's: no link is followed, and only plain files are told of.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import Any


def _list(job: str) -> tuple[list[str], list[str]]:
    """Return the names of the directories and of the plain files right below the job's directory."""
    directories, files = [], []
    for entry in os.scandir(job):
        if entry.is_dir(follow_symlinks=False):
            directories.append(entry.name)
        elif entry.is_file(follow_symlinks=False):
            files.append(entry.name)
    return sorted(directories), sorted(files)


def _tree(job: str, name: str) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Return each plain file below, with its size and when it was changed, and the paths of everything else."""
    files, others = [], []
    for place, directories, names in os.walk(os.path.join(job, name)):  # noqa: PTH118 - as the whole program, paths are text
        links = [each for each in directories if os.path.islink(os.path.join(place, each))]  # noqa: PTH114, PTH118
        for each in (*names, *links):
            path = os.path.join(place, each)  # noqa: PTH118
            facts = os.lstat(path)
            below = os.path.relpath(path, os.path.join(job, name))  # noqa: PTH118
            if stat.S_ISREG(facts.st_mode):
                files.append((below, facts.st_size, facts.st_mtime_ns))
            else:
                others.append(below)
    return sorted(files), sorted(others)


def _read(job: str, path: str, offset: int, size: int) -> bytes:
    """Return up to `size` bytes of a file; none at its end."""
    descriptor = os.open(os.path.join(job, path), os.O_RDONLY | os.O_NOFOLLOW)  # noqa: PTH118
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


def _where(_job: str) -> str:
    """Return where the workers start."""
    return os.getcwd()  # noqa: PTH109


def _remove(job: str) -> bool:
    """Remove the job's directory, and the one above it with the last."""
    shutil.rmtree(job)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(job))  # noqa: PTH106, PTH120
    return True


def serve(channel: Any) -> None:
    """Answer requests until the channel is closed; the first message names the job's directory."""
    job = channel.receive()
    requests: dict[str, Any] = {"list": _list, "tree": _tree, "read": _read, "where": _where, "remove": _remove}
    for name, *arguments in channel:
        try:
            channel.send((True, requests[name](job, *arguments)))
        except FileNotFoundError:
            channel.send((False, "it is not there"))
        except OSError as error:
            channel.send((False, str(error.strerror or error)))


if __name__ == "__channelexec__":
    # Whoever runs the text puts the channel among its names.
    serve(globals()["channel"])
