"""Keep scratch directories where the next session finds and removes what a killed one left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.records.turns import in_turn
from pytest_benchflow.sandboxes._local.sessions import TRASH, base_directory, end_stragglers, first_name
from pytest_benchflow.sandboxes._remove import names_in, remove_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType


class ScratchBase:
    """A context manager: one directory for this session, locked for as long as the session lives.

    The lock is a flock on the directory itself, which the kernel frees however the process ends. Raises: SandboxError
    when the base directory is a link or belongs to somebody else.
    """

    def __init__(self, base: Path | None = None) -> None:
        self._base = base or base_directory()
        self._session: Path | None = None
        self._lock: int | None = None
        self._remover: ThreadPoolExecutor | None = None

    def __enter__(self) -> ScratchBase:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> Path:
        """Make, lock and return this session's directory; a second call does nothing more."""
        if self._session is not None:
            return self._session
        self._own_base()
        with self._turn():
            session = self._base / f"{os.getpid()}-{secrets.token_hex(4)}"
            session.mkdir(mode=0o700)
            self._lock = os.open(session, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._session = session
        return session

    def close(self, *, keep: str = "") -> None:
        """Remove this session's directory with all that is left in it; safe to call twice.

        A file called `keep` stays, for `sweep` to find.
        """
        session, self._session = self._session, None
        lock, self._lock = self._lock, None
        remover, self._remover = self._remover, None
        if remover is not None:
            remover.shutdown()
        if session is not None and lock is not None and keep:
            for name in names_in(lock):
                if name != keep:
                    remove_entry(lock, name)
        elif session is not None:
            remove_tree(session)
        if lock is not None:
            os.close(lock)

    def new(self, name: str) -> Path:
        """Return a new, empty directory called `name`, readable by this user only."""
        if self._session is None:
            raise SandboxError("the scratch directory is not open")
        path = self._session / name
        path.mkdir(mode=0o700)
        return path

    def discard(self, path: Path) -> None:
        """Remove a directory that `new` made: its name is free at once, its files go in the background."""
        if self._session is None or not path.exists():
            remove_tree(path)
            return
        # Each directory of a journalling file system takes milliseconds to remove, nearly all of them spent waiting.
        doomed = path.rename(_trash_name(self._session / path.name))
        self._remover = self._remover or ThreadPoolExecutor(1, "remove-scratch")
        self._remover.submit(in_turn, remove_tree, doomed)

    def keep(self, path: Path) -> Path:
        """Move a directory that `new` made to where no session removes it, and return its new place."""
        kept = self._base.with_name(f"{self._base.name}-kept")
        kept.mkdir(mode=0o700, exist_ok=True)
        return path.rename(kept / path.name)

    def sweep(self, *, last: str = "", settle: Callable[[Path], bool] = lambda _: True) -> list[str]:
        """Remove what sessions that are no longer alive left; return their names.

        The file called `last` of each goes after all else, when `settle`, called with its path, says that it may.
        """
        self._own_base()
        trash, dead = [], []
        with self._turn():
            for path in self._base.iterdir():
                if path.is_dir() and not path.is_symlink() and (lock := _lock_of_dead(path)) is not None:
                    dead.append(path.name)
                    # Renamed under the lock and removed after it: a large tree must not hold up other sessions.
                    moved = path if path.name.startswith(TRASH) else path.rename(_trash_name(path))
                    trash.append((moved, lock))
        for path, lock in trash:
            try:
                # What cannot be removed now may be at the next start.
                with contextlib.suppress(OSError):
                    end_stragglers(first_name(path))
                    for name in names_in(lock):
                        if name != last:
                            remove_entry(lock, name)
                    if not (path / last).is_file() or settle(path / last):
                        remove_tree(path)
            finally:
                os.close(lock)
        return dead

    def _own_base(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._base.mkdir(mode=0o700, parents=True)
        found = self._base.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise SandboxError(
                f"{self._base} must be a directory of user {os.getuid()}, not a link and nobody else's; "
                "remove it or set TMPDIR to a directory of your own"
            )
        if stat.S_IMODE(found.st_mode) != 0o700:
            self._base.chmod(0o700)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        lock = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _trash_name(path: Path) -> Path:
    return path.with_name(f"{TRASH}{path.name}-{secrets.token_hex(4)}")


def _lock_of_dead(path: Path) -> int | None:
    """Lock a directory whose session is dead, and return the descriptor that holds it; None: somebody has it."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def remove_tree(path: Path) -> None:
    """Remove a directory whatever its depth and modes are, following no link; nothing happens when it is gone."""
    with contextlib.suppress(FileNotFoundError):
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_entry(parent, path.name)
        finally:
            os.close(parent)
