"""Tell which sessions of this user on this machine are alive, by their scratch directories."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import Remain
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.records.files import open_plain, write_whole
from pytest_benchflow.sandboxes._labels import labels, owner_of
from pytest_benchflow.sandboxes._remove import names_in, remove_entry
from pytest_benchflow.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TURN = threading.Lock()  # of this process, whose threads would each take the other's lock for a live session's
_ENDED = "ended-sessions"  # in the cache: a line for each that is over and had sandboxes elsewhere
_ENDED_SIZE = 64 << 10
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
                if not path.name.startswith(TRASH):  # one that another session is removing is over: see `ended`
                    live.add(str(path))
            else:
                dead[str(first_name(path))] = path
    return frozenset(live), dead


def elsewhere(found: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return which of these sessions live and which are dead, of those in another base directory of this user's.

    As those of a session with another TMPDIR. What is not there tells nothing: it may be another machine's.
    """
    live, dead = set[str](), set[str]()
    for session in found:
        path = Path(session)
        if path.is_absolute() and path.parent.name == base_directory().name and path.parent != base_directory():
            with contextlib.suppress(OSError):
                if path.parent.lstat().st_uid != os.getuid() or path.parent.is_symlink():
                    continue
                with lock_if_dead(path) as held:
                    (live if held is None else dead).add(session)
    return frozenset(live), frozenset(dead)


def note_ended(session: str) -> None:
    """Keep that a session is over whose directory goes: an engine may still make what it was asked for before a kill.

    What cannot be kept is not: its sandboxes go when they are old.
    """
    with contextlib.suppress(OSError, RuntimeError):  # a user without a home has no cache
        path = cache_dir() / _ENDED
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(f"{session}\n")
            size = file.tell()
        if size > _ENDED_SIZE:
            lines = path.read_bytes().splitlines(keepends=True)
            write_whole(path, lines[len(lines) // 2 :])


def ended() -> frozenset[str]:
    """Return the latest sessions of this user on this machine that are over and had sandboxes elsewhere."""
    # Looked at before the cache: what is removed meanwhile is noted there first.
    going = frozenset(str(first_name(path)) for path in _directories(base_directory()) if path.name.startswith(TRASH))
    with contextlib.suppress(OSError, UnicodeError, RuntimeError):
        path = cache_dir() / _ENDED
        if stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_uid == os.getuid():
            return going.union(path.read_text("utf-8").splitlines())
    return going


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
