"""Lay copy-on-write trees over this machine's own, in a mount namespace that nothing but descriptors keeps alive.

The kernel takes the mounts down when the last of them is closed, so a killed session leaves none.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._local.bwrap import is_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_T = TypeVar("_T")
_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_NODEV, _MS_REC, _MS_SLAVE = 1, 4, 0x4000, 0x80000
# No renamed directory or file without its data in the upper one: a later look at it must need no other layer.
_OPTIONS = "index=off,redirect_dir=off,metacopy=off"
_LONGEST = 4095  # the kernel takes one page of options


@dataclass(frozen=True, slots=True)
class Tree:
    """One overlay: `lowers` from the topmost down; without `upper` and `work` it is read-only."""

    target: Path
    lowers: Sequence[Path]
    upper: Path | None = None
    work: Path | None = None

    def options(self) -> str:
        """Return what mount(2) gets."""
        words = ["lowerdir=" + ":".join(_escape(path) for path in self.lowers)]
        if self.upper and self.work:
            # Nothing of a rollout outlives a power cut, so nothing is written out when it ends.
            words += [f"upperdir={_escape(self.upper)}", f"workdir={_escape(self.work)}", _OPTIONS, "volatile"]
        return ",".join(words)


class Overlay:
    """Trees laid in a namespace of their own, until `close`."""

    def __init__(self, trees: Sequence[Tree], beside: Path) -> None:
        """Mount `trees` in order, the first of them the root; lower paths may be relative to `beside`.

        Raises: SandboxError.
        """
        self._namespace, self._root = _in_thread(functools.partial(_lay, trees, beside))

    @property
    def root(self) -> Path:
        """Return the first tree as this process sees it."""
        return Path(f"/proc/self/fd/{self._root}")

    @property
    def prefix(self) -> list[str]:
        """Return what starts a command line in the namespace."""
        return ["nsenter", f"--mount=/proc/{os.getpid()}/fd/{self._namespace}", "--"]

    def close(self) -> None:
        """Let go of the mounts; safe to call twice."""
        for descriptor in (self._namespace, self._root):
            if descriptor >= 0:
                os.close(descriptor)
        self._namespace = self._root = -1


@functools.cache
def why_no_overlay(directory: str) -> str | None:
    """Return why no copy-on-write root can be had with its changes in `directory`, None when it can; tried once.

    A disk that is full or read-only is no reason: it is for the build to tell.
    """
    if not is_root():
        return "only root can lay a copy-on-write root"
    if shutil.which("nsenter") is None:
        return "nsenter is not installed; it comes with util-linux"
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="benchflow-overlay-", dir=directory) as place:
            top = Path(place)
            for name in ("target", "upper", "work"):
                (top / name).mkdir()
            Overlay([Tree(top / "target", [Path("/usr")], top / "upper", top / "work")], top).close()
    except SandboxError as error:
        return f"{error}; a directory on ext4, xfs or tmpfs can be used"
    except OSError:
        return None
    return None


def _lay(trees: Sequence[Tree], beside: Path) -> tuple[int, int]:
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    os.chdir(beside)  # of this thread alone, since the call above
    for tree in trees:
        options = tree.options()
        if len(options) > _LONGEST:
            raise SandboxError(f"a root of {len(tree.lowers)} layers is too much for one overlay: use fewer RUN steps")
        flags = _MS_NODEV if tree.upper else _MS_NODEV | _MS_RDONLY
        try:
            _call("mount", b"overlay", os.fsencode(tree.target), b"overlay", flags, options.encode())
        except OSError as error:
            place = tree.upper or tree.target
            raise SandboxError(f"no copy-on-write root can be laid at {place}: {error.strerror}") from error
    namespace = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return namespace, os.open(trees[0].target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except BaseException:
        os.close(namespace)
        raise


def _call(name: str, *args: bytes | int | None) -> None:
    if getattr(_libc(), name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
    return library


def sync_files(directory: Path) -> None:
    """Write out the file system that holds `directory`. Raises: OSError, as when its disk is full."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _call("syncfs", descriptor)
    finally:
        os.close(descriptor)


def _in_thread(work: Callable[[], _T]) -> _T:
    """Run `work` in a thread that ends with it: a thread keeps the namespace it has entered."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="benchflow-overlay")
    thread.start()
    thread.join()
    if errors:
        error = errors[0]
        if isinstance(error, OSError):
            raise SandboxError(f"no mount namespace can be made here: {error.strerror}") from error
        raise error
    return results[0]


def _escape(path: Path) -> str:
    return re.sub(r"([\\:,])", r"\\\1", str(path))
