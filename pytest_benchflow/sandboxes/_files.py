"""Copy files between the host and a sandbox's root without ever leaving either: nothing is opened through a link.

Whatever runs inside may turn any path into a link at any moment, so paths are walked component by component with
directory descriptors, and a link met on the way is read and resolved as the sandbox itself would resolve it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
_MAX_DEPTH = 200
_MAX_BYTES = 4 << 30


class InsideRoot:
    """Paths of a sandbox as seen from the host; `root` is the directory that the sandbox has at /."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (descriptor of the directory that holds `path`, last name); links in between are resolved inside.

        `make` creates missing directories. Raises: FileNotFoundError, NotADirectoryError, SandboxError.
        """
        parts = _absolute(path)
        with self._walk(parts[:-1], make=make) as directory:
            yield directory, parts[-1] if parts else "."

    @contextlib.contextmanager
    def directory(self, path: str, *, make: bool = False) -> Iterator[int]:
        """Yield a descriptor of the directory `path`, links resolved inside."""
        with self._walk(_absolute(path), make=make) as directory:
            yield directory

    @contextlib.contextmanager
    def _walk(self, parts: list[str], *, make: bool) -> Iterator[int]:
        stack = [os.open(self.root, _DIRECTORY)]
        todo = list(reversed(parts))
        links = 0
        try:
            while todo:
                name = todo.pop()
                if name == "..":
                    if len(stack) > 1:
                        os.close(stack.pop())
                    continue
                try:
                    stack.append(_descend(stack[-1], name, make=make))
                except _IsLinkError as link:
                    links += 1
                    if links > _MAX_LINKS:
                        raise SandboxError(f"/{'/'.join(parts)}: more than {_MAX_LINKS} links on the way") from None
                    if link.target.startswith("/"):
                        while len(stack) > 1:
                            os.close(stack.pop())
                    todo.extend(reversed(_components(link.target)))
            yield stack[-1]
        finally:
            for descriptor in stack:
                os.close(descriptor)

    def mount_point(self, path: str, *, is_file: bool = False) -> None:
        """Make `path` a real directory (or file) reached through no link; what is in the way is removed.

        Bubblewrap follows links when it makes mount points, and here only the last phase's leftovers could have put
        them there.
        """
        parts = _absolute(path)
        directory = os.open(self.root, _DIRECTORY)
        try:
            for name in parts[:-1] if is_file else parts:
                with contextlib.suppress(FileNotFoundError):
                    if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                        os.unlink(name, dir_fd=directory)
                inner = _descend(directory, name, make=True)
                os.close(directory)
                directory = inner
            if is_file:
                _clear(directory, parts[-1])
                os.close(os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory))
        finally:
            os.close(directory)

    def link(self, path: str, target: str) -> None:
        """Make the top-level `path` a link to `target`; anything else that is there gives way."""
        name = path.lstrip("/")
        place = self.root / name
        if place.is_symlink() and str(place.readlink()) == target:
            return
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
        else:
            place.rename(self.root / f"{name}.moved")
        place.symlink_to(target)


class _IsLinkError(Exception):
    def __init__(self, target: str) -> None:
        self.target = target


def _absolute(path: str) -> list[str]:
    if not path.startswith("/") or "\0" in path:
        raise SandboxError(f"{path!r} is not an absolute path; paths inside a sandbox begin with /")
    return _components(path)


def _components(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _descend(directory: int, name: str, *, make: bool) -> int:
    """Open a subdirectory. Raises: _IsLinkError when it is a link, FileNotFoundError, NotADirectoryError."""
    while True:
        try:
            return os.open(name, _DIRECTORY, dir_fd=directory)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=directory)
        except NotADirectoryError:
            try:
                target = os.readlink(name, dir_fd=directory)
            except OSError:
                raise NotADirectoryError(f"{name} is not a directory") from None
            raise _IsLinkError(target) from None


def _clear(directory: int, name: str) -> None:
    """Remove a file, link or special file; a directory stays and makes the caller fail."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def copy_in(source: Path, inside: InsideRoot, target: str, adopt: Callable[[int], None] | None = None) -> None:
    """Copy a host file or directory to `target` inside. `adopt` gets a descriptor of all that was made.

    Raises: SandboxError for links that lead out of `source`, special files, and targets of another kind.
    """
    if source.is_symlink():
        raise SandboxError(f"{source} is a link; give the file or directory it stands for")
    try:
        if source.is_dir():
            with inside.directory(target, make=True) as directory:
                _copy_tree_in(source, source, directory, adopt)
        else:
            with inside.parent(target, make=True) as (directory, name):
                _copy_file_in(source, directory, name, adopt)
    except FileNotFoundError as error:
        raise SandboxError(f"{source} cannot be copied to {target}: {error.strerror}: {error.filename}") from error
    except (NotADirectoryError, IsADirectoryError) as error:
        raise SandboxError(f"{source} cannot be copied to {target}: {error}") from error


def _copy_tree_in(top: Path, source: Path, directory: int, adopt: Callable[[int], None] | None) -> None:
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        path = Path(entry.path)
        if entry.is_symlink():
            _copy_link_in(top, path, directory)
        elif entry.is_dir(follow_symlinks=False):
            inner = _make_directory(directory, entry.name)
            try:
                os.fchmod(inner, stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & 0o777 | 0o700)
                if adopt:
                    adopt(inner)
                _copy_tree_in(top, path, inner, adopt)
            finally:
                os.close(inner)
        else:
            _copy_file_in(path, directory, entry.name, adopt)


def _make_directory(directory: int, name: str) -> int:
    try:
        return _descend(directory, name, make=True)
    except (_IsLinkError, NotADirectoryError):
        _clear(directory, name)
        return _descend(directory, name, make=True)


def _copy_link_in(top: Path, path: Path, directory: int) -> None:
    target = path.readlink()
    # Normalised by text: what a link names must not depend on other links.
    landing = Path(os.path.normpath(path.parent / target))
    if target.is_absolute() or not landing.is_relative_to(top):
        raise SandboxError(f"{path} is a link to {target}, which leads out of {top}; only links within it are copied")
    _clear(directory, path.name)
    os.symlink(target, path.name, dir_fd=directory)


def _copy_file_in(source: Path, directory: int, name: str, adopt: Callable[[int], None] | None) -> None:
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(reading, "rb") as original:
        found = os.fstat(reading)
        if not stat.S_ISREG(found.st_mode):
            raise SandboxError(f"{source} is neither a file nor a directory; only those are copied")
        # A file made anew cannot be a link, a pipe or another name of something else.
        _clear(directory, name)
        writing = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
        with open(writing, "wb") as copy:
            shutil.copyfileobj(original, copy, 1 << 20)
            os.fchmod(writing, stat.S_IMODE(found.st_mode) & 0o777)
            if adopt:
                adopt(writing)


def copy_out(inside: InsideRoot, source: str, target: Path) -> None:
    """Copy a file or directory of the sandbox to the host path `target`; links and special files are left out.

    Raises: FileNotFoundError when it is not there or is a link itself, SandboxError beyond 4 GiB or 200 levels.
    """
    budget = _Budget(source)
    try:
        with inside.parent(source) as (directory, name):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not _copy_entry_out(directory, name, target, budget, 0):
                raise FileNotFoundError(f"{source} is not a file or a directory; links are not followed")
    except NotADirectoryError as error:
        raise FileNotFoundError(f"{source} is not there") from error


class _Budget:
    def __init__(self, source: str) -> None:
        self.source = source
        self.left = _MAX_BYTES

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise SandboxError(f"{self.source} holds more than {_MAX_BYTES >> 30} GiB; it is not copied out")


def _copy_entry_out(directory: int, name: str, target: Path, budget: _Budget, depth: int) -> bool:
    """Copy one entry; False: it is a link or a special file."""
    try:
        # Not blocking: opening a pipe nobody writes to would wait for ever.
        reading = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        if isinstance(error, PermissionError):
            raise SandboxError(f"{budget.source}: {name} cannot be read: {error.strerror}") from error
        return False
    try:
        kind = os.fstat(reading).st_mode
        if stat.S_ISDIR(kind):
            if depth >= _MAX_DEPTH:
                raise SandboxError(f"{budget.source} is more than {_MAX_DEPTH} directories deep; it is not copied out")
            target.mkdir(exist_ok=True)
            for child in sorted(os.listdir(reading)):
                with contextlib.suppress(FileNotFoundError):  # what still runs may remove files meanwhile
                    _copy_entry_out(reading, child, target / PurePosixPath(child).name, budget, depth + 1)
            return True
        if not stat.S_ISREG(kind):
            return False
        target.unlink(missing_ok=True)
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with open(reading, "rb", closefd=False) as original, open(writing, "wb") as copy:
            while chunk := original.read(1 << 20):
                budget.spend(len(chunk))
                copy.write(chunk)
        return True
    finally:
        os.close(reading)
