"""Keep scratch directories where the next session finds and removes what a killed one left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_TRASH = ".trash-"


class ScratchBase:
    """A context manager: one directory for this session, locked for as long as the session lives.

    The lock is a flock on the directory itself, which the kernel frees however the process ends. Raises: SandboxError
    when the base directory is a link or belongs to somebody else.
    """

    def __init__(self, base: Path | None = None) -> None:
        self._base = base or Path(tempfile.gettempdir()) / f"pytest-benchflow-{os.getuid()}"
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

    def open(self) -> None:
        """Make and lock this session's directory; a second call does nothing."""
        if self._session is not None:
            return
        self._own_base()
        with self._turn():
            session = self._base / f"{os.getpid()}-{secrets.token_hex(4)}"
            session.mkdir(mode=0o700)
            self._lock = os.open(session, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._session = session

    def close(self) -> None:
        """Remove this session's directory with all that is left in it; safe to call twice."""
        session, self._session = self._session, None
        lock, self._lock = self._lock, None
        remover, self._remover = self._remover, None
        if remover is not None:
            remover.shutdown()
        if session is not None:
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
        self._remover.submit(remove_tree, doomed)

    def keep(self, path: Path) -> Path:
        """Move a directory that `new` made to where no session removes it, and return its new place."""
        kept = self._base.with_name(f"{self._base.name}-kept")
        kept.mkdir(mode=0o700, exist_ok=True)
        return path.rename(kept / path.name)

    def sweep(self) -> list[str]:
        """Remove what sessions that are no longer alive left; return their names."""
        self._own_base()
        with self._turn():
            dead = [path for path in self._base.iterdir() if path.is_dir() and not path.is_symlink() and _is_free(path)]
            # Renamed under the lock and removed after it: a large tree must not hold up other sessions.
            trash = [path if path.name.startswith(_TRASH) else path.rename(_trash_name(path)) for path in dead]
        for path in trash:
            # Another session may be removing the same one, which is as good.
            with contextlib.suppress(OSError):
                remove_tree(path)
        return [path.name for path in dead]

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
    return path.with_name(f"{_TRASH}{path.name}-{secrets.token_hex(4)}")


def _is_free(path: Path) -> bool:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def remove_tree(path: Path) -> None:
    """Remove a directory whatever its depth and modes are, following no link; nothing happens when it is gone.

    Subdirectories are moved up one by one instead of being descended into, so depth costs neither stack nor open files.
    """
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        os.fchmod(top, 0o700)
        while names := _names(top):
            for name in names:
                _remove_entry(top, name)
    finally:
        os.close(top)
    path.rmdir()


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _remove_entry(top: int, name: str) -> None:
    try:
        is_directory = stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode)
    except FileNotFoundError:
        return
    if not is_directory:
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        with os.scandir(inner) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for child, is_inner in found:
            if is_inner:
                # Moving a directory rewrites its "..", for which an ordinary user needs to be able to write to it.
                os.chmod(child, 0o700, dir_fd=inner)
                os.rename(child, f".{secrets.token_hex(8)}", src_dir_fd=inner, dst_dir_fd=top)
            else:
                os.unlink(child, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
