"""Start and find the far side of an SSH sandbox: one process for each session of a host, which outlives connections.

Run as `connect SESSION` it hands its stdin and stdout to that process, starting it first where there is none; as
`reap KEY` it ends the session that has the sandbox KEY. Without a connection the process ends by itself after a while,
with all it made. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.sandboxes._local.sessions import lock_if_dead
from pytest_benchflow.sandboxes._ssh.far_server import Server, capabilities, remove
from pytest_benchflow.sandboxes._ssh.link import Link
from pytest_benchflow.sandboxes.local import LocalBackend

if TYPE_CHECKING:
    from collections.abc import Callable

GREETING = b"\nbenchflow-far "
ALONE_SEC = 120.0  # without a connection
_SILENT_SEC = 90.0
_TELL_SEC = 15.0
_START_SEC = 20.0
_END_SEC = 40.0
_YOUNG_SEC = 60.0


def greet(descriptor: int, **facts: object) -> None:
    """Write one line that can be told from what a login may print before."""
    os.write(descriptor, GREETING + json.dumps(facts).encode() + b"\n")


def base_directory() -> Path:
    """Return the directory that holds one directory for each session, made where it is missing. Raises: OSError."""
    base = Path(tempfile.gettempdir(), f"pytest-benchflow-far-{os.getuid()}")
    base.mkdir(mode=0o700, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{base} is not a directory of this user's own with mode 700; remove it, or set TMPDIR")
    return base


def connect(session: str) -> None:
    """Hand this process's stdin and stdout to the session's process, and stay until it lets go of them."""
    place = base_directory() / session
    if place.exists() and _is_over(place):
        greet(1, failed="the far side ended meanwhile")
        return
    until = time.monotonic() + _START_SEC
    started = place.exists()
    while (control := _call(place)) is None:
        if not started:
            started = True
            _detach(place)
        elif time.monotonic() > until:
            log = place.with_suffix(".log")
            said = log.read_text(errors="replace").strip()[-600:] if log.exists() else ""
            greet(1, failed=f"the far side did not start: {said or 'it said nothing'}")
            return
        time.sleep(0.01)
    with control:
        socket.send_fds(control, [b"+"], [0, 1])
        os.close(0)
        os.close(1)
        with contextlib.suppress(OSError):
            control.recv(1)


def _is_over(place: Path) -> bool:
    """Tell whether a session's process ended without removing what it had, and do that."""
    with contextlib.suppress(FileNotFoundError), lock_if_dead(place) as lock:
        if lock is None:
            return False
        remove(place)
    return True


def _call(place: Path) -> socket.socket | None:
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.chdir(place)  # the name of a socket may have no more than 107 characters
        control.connect("sock")
    except OSError:
        control.close()
        return None
    return control


def _detach(place: Path) -> None:
    """Start the session's process, away from this one's parents, terminal and pipes."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    log = os.open(place.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    try:
        asyncio.run(_live(place))
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    place.with_suffix(".log").unlink(missing_ok=True)
    os._exit(0)


async def _live(place: Path) -> None:
    place.mkdir(mode=0o700, exist_ok=True)
    with lock_if_dead(place) as lock:
        if lock is None:
            return
        _sweep(place)
        (place / "pid").write_text(str(os.getpid()))
        os.chdir(place)
        daemon = Daemon(place)
        try:
            await daemon.run()
        finally:
            await daemon.server.stop()
            os.chdir("/")
            await asyncio.to_thread(remove, place)
            daemon.close()


def _sweep(own: Path) -> None:
    """Remove what sessions left that ended without doing it."""
    for path in own.parent.iterdir():
        with contextlib.suppress(OSError):
            # One that is just being made is not locked yet.
            if path == own or time.time() - path.lstat().st_mtime < _YOUNG_SEC:
                continue
            if path.is_dir():
                with lock_if_dead(path) as lock:
                    if lock is not None:
                        remove(path)
            elif not path.with_suffix("").exists():
                path.unlink()


class Daemon:
    """Takes one connection at a time, and ends when it has been without one for too long."""

    def __init__(self, place: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._backend = LocalBackend()
        self._link = Link(self._deliver)
        self.server = Server(place, self._backend, self._link.send, self._end)
        self._over = asyncio.Event()
        self._alone: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None

    async def run(self) -> None:
        """Serve until the host says that it is over, it stays away, or this process is told to end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._end)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind("sock")
            listener.listen(8)
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)
            self._left_alone()
            while not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), _TELL_SEC)
                self._look_after()
            self._loop.remove_reader(listener)

    def close(self) -> None:
        """Let go of the connection: the host takes it as the answer that nothing is left."""
        if self._connection is not None:
            self._connection.flush()
            self._connection.close()

    def _end(self) -> None:
        self._over.set()

    def _deliver(self, data: bytes) -> None:
        self.server.frames.feed(data)

    def _left_alone(self) -> None:
        self._link.detach()
        if self._alone is None:
            self._alone = self._loop.call_later(ALONE_SEC, self._end)

    def _look_after(self) -> None:
        self._link.tell()
        connection = self._connection
        if connection is not None and self._loop.time() - connection.heard > _SILENT_SEC:
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        control, _ = listener.accept()
        control.settimeout(5)
        try:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        except OSError:
            descriptors = []
        if len(descriptors) != 2:
            control.close()
            return
        if self._connection is not None:
            self._connection.close()
        self._connection = Connection(control, descriptors, self._begin, self._link.take, self._lost)

    def _begin(self, connection: Connection, hello: bytes) -> None:
        """Answer a host that says how much it has received, and go on from there."""
        received = int(json.loads(hello)["received"])
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None
        facts = {
            "received": self._link.received,
            "unavailable": self._backend.available(),
            "capabilities": capabilities(self._backend),
            "processors": os.cpu_count() or 1,
        }
        connection.write(GREETING + json.dumps(facts).encode() + b"\n")
        self._link.attach(connection.write, received)

    def _lost(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            self._left_alone()


class Connection:
    """A host's pipes, without ever waiting for them; `begin` gets the first line, `take` what follows."""

    def __init__(
        self,
        control: socket.socket,
        descriptors: list[int],
        begin: Callable[[Connection, bytes], None],
        take: Callable[[bytes], None],
        lost: Callable[[Connection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._in, self._out = descriptors
        self._begin, self._take, self._lost = begin, take, lost
        self._hello: bytearray | None = bytearray()
        self._pending = bytearray()
        self._closed = False
        self.heard = self._loop.time()
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
        self._loop.add_reader(self._in, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._in, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.heard = self._loop.time()
        try:
            if not data:
                self.close()
            elif self._hello is None:
                self._take(data)
            else:
                self._hello += data
                if b"\n" in self._hello:
                    hello, _, rest = bytes(self._hello).partition(b"\n")
                    self._hello = None
                    self._begin(self, hello)
                    self._take(rest)
        except (ConnectionError, ValueError, KeyError):
            self.close()

    def write(self, data: bytes) -> None:
        """Write now, or when the pipe takes it."""
        if self._closed:
            return
        if not self._pending:
            self._loop.add_writer(self._out, self.flush)
        self._pending += data

    def flush(self) -> None:
        """Write what is pending as far as the pipe takes it."""
        try:
            while self._pending:
                del self._pending[: os.write(self._out, self._pending[: 1 << 18])]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self._closed:
            self._loop.remove_writer(self._out)

    def close(self) -> None:
        """Let go of the pipes; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._in)
        self._loop.remove_writer(self._out)
        os.close(self._in)
        os.close(self._out)
        self._control.close()
        self._lost(self)


def reap(key: str) -> None:
    """End the session whose sandbox `key` is, with all it has; its host is gone.

    Tells whether nothing is left, and why no session can be here, as on a machine that isolates nothing.
    """
    gone = True
    for place in base_directory().iterdir():
        if (place / key).is_dir():
            gone = _end_session(place) and gone
    greet(1, gone=gone, unavailable=LocalBackend().available())


def _end_session(place: Path) -> bool:
    until = time.monotonic() + _END_SEC
    while time.monotonic() < until:
        if not place.exists():
            return True
        with contextlib.suppress(FileNotFoundError), lock_if_dead(place) as lock:
            if lock is not None:
                remove(place)
                return True
            late = time.monotonic() > until - _END_SEC / 4
            # The lock is held by the process of that number as long as it lives.
            with contextlib.suppress(ValueError, ProcessLookupError):
                os.kill(int((place / "pid").read_text()), signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)
    return False


def main() -> None:
    """Do what the command line says."""
    word, name = sys.argv[1:3]
    try:
        {"connect": connect, "reap": reap}[word](name)
    except OSError as error:
        greet(1, failed=str(error))
