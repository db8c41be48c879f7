"""Reach into a running container from the host beside it: its files, its network, its processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._files import InsideRoot, copy_in, copy_out, is_directory
from pytest_benchflow.sandboxes._local.accounts import find_account

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_BYTES = 8192
RUN_VARIABLE = "BENCHFLOW_RUN"
SHARED_DIRECTORIES = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
STICKY_DIRECTORIES = ("/tmp", "/var/tmp")  # noqa: S108 - of the sandbox
_CLONE_NEWNET = 0x40000000
_DEATH_SEC = 20.0
_KILL_SEC = 5.0
_EXEC_SEC = 5.0
_TICK_SEC = 0.01
ENDED = "the container ended in the middle of the rollout: somebody killed or removed it"


class Inhabited:
    """One start of a container: its process 1 as this host knows it, until `close`."""

    def __init__(self, pid: int, mark: str) -> None:
        if pid <= 0:
            raise SandboxError("the container ended as it started: its image needs a /bin/sh that runs here")
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise SandboxError(_elsewhere()) from error
        try:
            self._proc = Path("/proc", str(pid))
            self._recognise(mark.encode())
            self._namespace = (self._proc / "ns/pid").readlink()
        except OSError as error:
            os.close(self._pidfd)
            raise SandboxError(f"the container ended as it started: {error.strerror}") from error
        except BaseException:
            os.close(self._pidfd)
            raise

    def _recognise(self, mark: bytes) -> None:
        """See that this process is ours by its command line, which it has a moment after it is started."""
        until = time.monotonic() + _EXEC_SEC
        while mark not in (self._proc / "cmdline").read_bytes().split(b"\0"):
            if time.monotonic() > until:
                raise SandboxError(_elsewhere())
            time.sleep(_TICK_SEC)
        if (self._proc / "uid_map").read_text().split()[:2] != ["0", "0"]:
            raise SandboxError(
                "the Docker engine gives containers other user ids than this machine's (userns-remap), "
                "which the docker sandbox does not support yet; use an engine without it"
            )

    def close(self) -> None:
        """Let go of it; nothing else may be called afterwards."""
        os.close(self._pidfd)

    @property
    def lives(self) -> bool:
        """Tell whether process 1 lives, which all others in the container need."""
        return not self._ends_within(0)

    def wait_dead(self) -> None:
        """Wait until process 1 has ended, which it has only when all others in there have. Raises: SandboxError."""
        if not self._ends_within(_DEATH_SEC):
            raise SandboxError(f"a process of the container still lives {_DEATH_SEC:.0f} s after SIGKILL")

    def _ends_within(self, seconds: float) -> bool:
        end = select.poll()
        end.register(self._pidfd, select.POLLIN)
        return bool(end.poll(seconds * 1000))

    @contextlib.contextmanager
    def files(self) -> Iterator[InsideRoot]:
        """Yield the container's files as its own processes see them; held open no longer than that."""
        try:
            root = os.open(self._proc / "root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxError(ENDED) from error
        try:
            # A number is given to another process only when its own has ended.
            if not self.lives:
                raise SandboxError(ENDED)
            yield InsideRoot(Path(f"/proc/self/fd/{root}"))
        finally:
            os.close(root)

    def copy_in(self, source: Path, target: str) -> None:
        """Copy a file or directory of the host to `target`. Raises: SandboxError for links that lead out of it."""
        with self.files() as files:
            copy_in(source, files, target)

    def copy_out(self, source: str, target: Path) -> None:
        """Copy a file or directory to `target` on the host; links are not followed. Raises: FileNotFoundError."""
        with self.files() as files:
            copy_out(files, source, target)

    def remove(self, path: str) -> None:
        """Remove a file or directory; nothing happens when it is not there. Raises: SandboxError."""
        with self.files() as files:
            files.remove(path)

    def check_user(self, user: str | int) -> None:
        """See that the container has a user. Raises: SandboxError naming the one it has not."""
        with self.files() as files:
            find_account(files, user)

    def is_file(self, path: str) -> bool:
        """Tell whether something that can be read is at `path`."""
        with self.files() as files:
            try:
                with files.parent(path) as (directory, name):
                    return os.access(name, os.R_OK, dir_fd=directory)
            except (OSError, SandboxError):
                return False

    def has_room(self) -> bool:
        """Tell whether a small file can still be written to the container's root."""
        with self.files() as files:
            found = os.statvfs(files.root)
        return found.f_bavail * found.f_frsize >= LEAST_BYTES

    def lay_out(self, workdir: str) -> None:
        """Make the directories that every task may rely on; those of the image stay as they are."""
        with self.files() as files:
            for path, mode in (
                *((path, 0o777) for path in SHARED_DIRECTORIES),
                *((path, 0o1777) for path in STICKY_DIRECTORIES),
                (workdir, 0o755),
            ):
                made = not is_directory(files, path)
                with files.directory(path, make=True) as directory:
                    if made or path in SHARED_DIRECTORIES:
                        os.fchmod(directory, mode)

    def listen(self, port: int) -> socket.socket:
        """Return a socket that listens on 127.0.0.1:`port` of the container's network. Raises: SandboxError."""
        made: list[socket.socket | OSError] = []

        def enter() -> None:
            # A network namespace is a thread's own; this thread ends in it.
            try:
                with (self._proc / "ns/net").open("rb") as namespace:
                    _enter_network(namespace.fileno())
                made.append(_listener(port))
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=enter, name="docker-listen")
        thread.start()
        thread.join()
        found = made[0]
        if isinstance(found, OSError):
            raise SandboxError(f"no port {port} inside the container: {found.strerror or found}") from found
        return found

    def kill_run(self, run: str) -> bool:
        """Kill every process of one run: those that carry its mark and what descends from them; True: none is left.

        A process that hides its variables and its parent is found only when the whole container is killed.
        """
        until = time.monotonic() + _KILL_SEC
        while found := self._of_run(run):
            if time.monotonic() > until:
                return False
            for pid in found:
                self._kill(pid)
            time.sleep(_TICK_SEC)
        return True

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                # Looked at again: the number may have been given to somebody else meanwhile.
                if Path(f"/proc/{pid}/ns/pid").readlink() == self._namespace:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)

    def _of_run(self, run: str) -> set[int]:
        mark = f"{RUN_VARIABLE}={run}".encode()
        parents: dict[int, int] = {}
        found: set[int] = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or entry.name == str(self.pid):
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                if (entry / "ns/pid").readlink() != self._namespace:
                    continue
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state in ("Z", "X"):
                    continue
                parents[int(entry.name)] = int(parent)
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
        while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
            found |= more
        return found


def _enter_network(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _elsewhere() -> str:
    return (
        "the Docker engine's containers are not this machine's own processes, as with an engine on another machine "
        "or in a virtual one, which the docker sandbox does not support yet; use --benchflow-sandbox=local"
    )
