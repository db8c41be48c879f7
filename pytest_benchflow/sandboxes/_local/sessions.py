"""Tell which sessions of this user on this machine are alive, by their scratch directories."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import Remain
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._labels import labels, owner_of
from pytest_benchflow.sandboxes._remove import names_in, remove_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

_TURN = threading.Lock()  # of this process, whose threads would each take the other's lock for a live session's
TRASH = ".trash-"  # a dead session's directory that is being removed, then its name and a random part


def base_directory() -> Path:
    """Return the directory that holds one scratch directory for each session."""
    return Path(tempfile.gettempdir()) / f"pytest-benchflow-{os.getuid()}"


def sessions(base: Path | None = None) -> tuple[frozenset[str], dict[str, Path]]:
    """Return the scratch directories of live sessions, and those of dead ones with the path where each is now."""
    live, dead = set(), {}
    for path in _directories(base or base_directory()):
        with contextlib.suppress(FileNotFoundError), lock_if_dead(path) as held:  # it may end, or be swept, meanwhile
            if held is None:
                live.add(str(path))
            else:
                dead[str(first_name(path))] = path
    return frozenset(live), dead


def first_name(path: Path) -> Path:
    """Return what a session's directory was called when the session lived."""
    return path.with_name(path.name.removeprefix(TRASH).rpartition("-")[0]) if path.name.startswith(TRASH) else path


@contextlib.contextmanager
def lock_if_dead(path: Path) -> Iterator[int | None]:
    """Hold a directory whose session is dead, as a descriptor; None: it lives, or another holds it."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield lock
    finally:
        os.close(lock)


def remains_here(backend: str) -> list[Remain]:
    """Return what dead sessions left in their scratch directories, but for files such as their ledger."""
    owner, found = owner_of(backend), []
    for session, place in sorted(sessions()[1].items()):
        with contextlib.suppress(FileNotFoundError):  # the next session removes them too
            for path in sorted(place.iterdir()):
                if path.is_dir() and not path.is_symlink():
                    scratch = Path(session, path.name)
                    created = path.lstat().st_mtime
                    name = f"{place.name}/{path.name}"
                    found.append(Remain(name, backend, labels(owner, scratch), created, about=f"files at {path}"))
    return found


def discard_here(name: str) -> None:
    """Remove one of `remains_here`; nothing happens when it is gone. Raises: SandboxError when its session lives."""
    session, _, child = name.partition("/")
    if {session, child} & {"", ".", ".."} or "/" in child:
        raise SandboxError(f"{name!r} is no scratch directory of a session")
    with _TURN, contextlib.suppress(FileNotFoundError), lock_if_dead(base_directory() / session) as lock:
        if lock is None:
            raise SandboxError(f"{name} is in use by a session")
        if child in names_in(lock):
            remove_entry(lock, child)


def end_stragglers(session: Path) -> int:
    """Kill what is left of the sandboxes of a dead session, and return how many processes that were.

    bubblewrap's own child dies with it only from the moment at which it was told to go on: of one that was killed
    before, the child waits for ever. Its arguments name the session's directory.
    """
    sign, ended = f"{session}/".encode(), 0
    for process in Path("/proc").iterdir():
        # What has ended meanwhile, or is another user's, is none of them.
        with contextlib.suppress(OSError):
            if not process.name.isdigit() or (process / "comm").read_bytes() != b"bwrap\n":
                continue
            descriptor = os.pidfd_open(int(process.name))
            try:
                if sign in (process / "cmdline").read_bytes() and process.stat().st_uid == os.getuid():
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    ended += 1
            finally:
                os.close(descriptor)
    return ended


def _directories(base: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(path for path in base.iterdir() if path.is_dir() and not path.is_symlink())
    return []
