"""Copy files between the host and a sandbox's root without ever leaving either: nothing is opened through a link.

Whatever runs inside may turn any path into a link at any moment, so paths are walked component by component with
directory descriptors, and a link met on the way is read and resolved as the sandbox itself would resolve it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._remove import DIRECTORY, remove_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_LINKS = 40
MAX_DEPTH = 200
MAX_BYTES = 4 << 30


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
        if parts[-1:] == [".."]:
            raise SandboxError(f"{path} ends with ..; name what is meant itself")
        with self._walk(parts[:-1], make=make) as directory:
            yield directory, parts[-1] if parts else "."

    @contextlib.contextmanager
    def directory(self, path: str, *, make: bool = False) -> Iterator[int]:
        """Yield a descriptor of the directory `path`, links resolved inside."""
        with self._walk(_absolute(path), make=make) as directory:
            yield directory

    @contextlib.contextmanager
    def _walk(self, parts: list[str], *, make: bool) -> Iterator[int]:
        # The kernel's own link to another process's root is followed to what it means, which is the root itself.
        stack = [os.open(f"{self.root}/.", DIRECTORY)]
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
        directory = os.open(f"{self.root}/.", DIRECTORY)
        try:
            for name in parts[:-1] if is_file else parts:
                with contextlib.suppress(FileNotFoundError):
                    if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                        os.unlink(name, dir_fd=directory)
                inner = _descend(directory, name, make=True)
                os.close(directory)
                directory = inner
            if is_file:
                with contextlib.suppress(FileNotFoundError):
                    remove_entry(directory, parts[-1])
                os.close(os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory))
        finally:
            os.close(directory)

    def link(self, path: str, target: str) -> None:
        """Make the top-level `path` a link to `target`; anything else that is there is removed."""
        place = self.root / path.lstrip("/")
        if place.is_symlink() and str(place.readlink()) == target:
            return
        self.remove(path)
        place.symlink_to(target)

    def remove(self, path: str) -> None:
        """Remove a file or directory with all it holds; nothing happens when it is not there. Raises: SandboxError."""
        try:
            with self.parent(path) as (directory, name):
                if name == ".":
                    raise SandboxError(f"{path} is the whole sandbox; only what is in it can be removed")
                remove_entry(directory, name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise SandboxError(f"{path} cannot be removed: {error.strerror or error}") from error


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
            return os.open(name, DIRECTORY, dir_fd=directory)
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


class CopyIn:
    """Copies host files below `top` into a sandbox; `keep` chooses by path relative to it, `adopt` gets what was made.

    Raises: SandboxError for links that lead out of `top`, special files, and targets of another kind.
    """

    def __init__(
        self,
        top: Path,
        inside: InsideRoot,
        keep: Callable[[str], bool] | None = None,
        adopt: Callable[[int], None] | None = None,
    ) -> None:
        self._top = top
        self._inside = inside
        self._keep = keep
        self._adopt = adopt or (lambda _descriptor: None)

    def copy(self, source: Path, target: str) -> None:
        """Copy a file to `target`, or what a directory holds into the directory `target`."""
        try:
            if source.is_dir():
                with self._inside.directory(target, make=True) as directory:
                    self._tree(source, directory)
            else:
                with self._inside.parent(target, make=True) as (directory, name):
                    self._file(source, directory, name)
        except OSError as error:
            raise SandboxError(f"{source} cannot be copied to {target}: {error.strerror or error}") from error

    def _kept(self, path: Path) -> bool:
        return self._keep is None or self._keep(path.relative_to(self._top).as_posix())

    def _tree(self, source: Path, directory: int) -> None:
        for path in sorted(source.iterdir()):
            if path.is_symlink():
                if self._kept(path):
                    self._link(path, directory)
            elif path.is_dir():
                self._directory(path, directory)
            elif self._kept(path):
                self._file(path, directory, path.name)

    def _directory(self, path: Path, directory: int) -> None:
        inner = _make_directory(directory, path.name)
        try:
            os.fchmod(inner, stat.S_IMODE(path.stat().st_mode) & 0o777 | 0o700)
            self._adopt(inner)
            self._tree(path, inner)
        finally:
            os.close(inner)
        if not self._kept(path):
            # Left out, but what it holds may be kept by a rule of its own.
            with contextlib.suppress(OSError):
                os.rmdir(path.name, dir_fd=directory)

    def _link(self, path: Path, directory: int) -> None:
        target = path.readlink()
        # Normalised by text: what a link names must not depend on other links.
        landing = Path(os.path.normpath(path.parent / target))
        if target.is_absolute() or not landing.is_relative_to(self._top):
            raise SandboxError(f"{path} is a link to {target}, which leads out of {self._top}; it is not copied")
        _clear(directory, path.name)
        os.symlink(target, path.name, dir_fd=directory)

    def _file(self, source: Path, directory: int, name: str) -> None:
        # Not blocking: opening a pipe nobody writes to would wait for ever.
        reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(reading, "rb") as original:
            found = os.fstat(reading)
            if not stat.S_ISREG(found.st_mode):
                raise SandboxError(f"{source} is neither a file nor a directory; only those are copied")
            with new_file(directory, name) as copy:
                shutil.copyfileobj(original, copy, 1 << 20)
                os.fchmod(copy.fileno(), stat.S_IMODE(found.st_mode) & 0o777)
                self._adopt(copy.fileno())


def new_file(directory: int, name: str) -> BinaryIO:
    """Open a file made anew, which cannot be a link, a pipe or another name of something else."""
    _clear(directory, name)
    return os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory), "wb")


def copy_in(source: Path, inside: InsideRoot, target: str) -> None:
    """Copy a host file or directory to `target` inside. Raises: SandboxError for links that lead out of it.

    A directory made at `target` gets the mode of `source`, but everybody inside may read it.
    """
    if source.is_symlink():
        raise SandboxError(f"{source} is a link; give the file or directory it stands for")
    made = source.is_dir() and not is_directory(inside, target)
    CopyIn(source, inside).copy(source, target)
    if made:
        with inside.directory(target) as directory:
            os.fchmod(directory, stat.S_IMODE(source.stat().st_mode) & 0o777 | 0o755)


def is_directory(inside: InsideRoot, path: str) -> bool:
    """Tell whether there is a directory at `path` inside."""
    try:
        with inside.directory(path):
            return True
    except (FileNotFoundError, NotADirectoryError):
        return False


def _make_directory(directory: int, name: str) -> int:
    try:
        return _descend(directory, name, make=True)
    except (_IsLinkError, NotADirectoryError):
        _clear(directory, name)
        return _descend(directory, name, make=True)


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
    except PermissionError as error:
        raise SandboxError(f"{source} cannot be copied out: {error}") from error


class _Budget:
    def __init__(self, source: str) -> None:
        self.source = source
        self.left = MAX_BYTES

    def spend(self, size: int) -> None:
        """Take `size` bytes; a file may grow while it is copied."""
        self.afford(size)
        self.left -= size

    def afford(self, size: int) -> None:
        """Refuse what is too large before any of it fills the host's disk. Raises: SandboxError."""
        if size > self.left:
            raise SandboxError(f"{self.source} holds more than {MAX_BYTES >> 30} GiB; it is not copied out")


def _copy_entry_out(directory: int, name: str, target: Path, budget: _Budget, depth: int) -> bool:
    """Copy one entry; False: it is a link or a special file."""
    try:
        reading = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError:  # a link, a socket
        return False
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, reading)
        found = os.fstat(reading)
        kind = found.st_mode
        if stat.S_ISREG(kind):
            budget.afford(found.st_size)
            target.unlink(missing_ok=True)
            with os.fdopen(os.dup(reading), "rb") as original, target.open("xb") as copy:
                while chunk := original.read(1 << 20):
                    budget.spend(len(chunk))
                    copy.write(chunk)
        elif stat.S_ISDIR(kind):
            if depth >= MAX_DEPTH:
                raise SandboxError(f"{budget.source} is more than {MAX_DEPTH} directories deep; it is not copied out")
            target.mkdir(exist_ok=True)
            with os.scandir(reading) as entries:
                children = sorted(entry.name for entry in entries)
            for child in children:
                with contextlib.suppress(FileNotFoundError):  # what still runs may remove files meanwhile
                    _copy_entry_out(reading, child, target / child, budget, depth + 1)
        return stat.S_ISREG(kind) or stat.S_ISDIR(kind)
