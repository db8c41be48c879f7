"""An SSH server of the tests' own: its own keys, on a loopback port, and a home directory for whoever logs in there."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.sandboxes._local.bwrap import find_bwrap
from pytest_benchflow.settings import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_SEC = 20.0


def why_no_sshd() -> str | None:
    """Return why this machine cannot run a server for tests, None when it can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "an SSH server for tests needs Linux and root"
    return None if _find("sshd") else "sshd is not installed; apt-get install openssh-server"


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Sshd:
    """A server, and the HOME of a client that knows it and may log in: `home`, and `far_home` of those who did."""

    def __init__(self, place: Path, *, alike: bool = False, plain: bool = False) -> None:
        """Make its files; `alike`: who logs in has the HOME and the cache of who runs the tests.

        `plain`: it is on a machine of its own, which has this one's programs and cannot isolate anything.
        """
        self.place = place
        self._machine = _plain_machine(place) if plain else []
        self.home, self.far_home = place / "home", place / "far"
        home, cache = (Path.home(), cache_dir()) if alike else (self.far_home, self.far_home / "cache")
        self._variables = f"HOME={home} BENCHFLOW_CACHE_DIR={cache} TMPDIR={self.far_home}/tmp"
        self._process: subprocess.Popen[bytes] | None = None
        self.user = getpass.getuser()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        for directory in (self.home / ".ssh", self.far_home):
            directory.mkdir(mode=0o700, parents=True)
        self.key = self.home / ".ssh" / "id_ed25519"
        self.make_key(self.key)
        self.make_key(place / "host")
        shutil.copy(self.key.with_suffix(".pub"), place / "authorized")
        self.be_known()

    @property
    def address(self) -> str:
        """Return it as --benchflow-ssh-host takes it."""
        return f"{self.user}@127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the process that listens."""
        assert self._process is not None
        return self._process.pid

    def make_key(self, path: Path) -> None:
        """Make a key pair, anew where there was one."""
        path.unlink(missing_ok=True)
        command = [_find("ssh-keygen") or "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def be_known(self) -> None:
        """Let the client know the host's present key."""
        kind, key = (self.place / "host.pub").read_text().split()[:2]
        (self.home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")

    def start(self) -> None:
        """Start it and wait until it answers."""
        lines = [
            "ListenAddress 127.0.0.1",
            f"Port {self.port}",
            f"HostKey {self.place}/host",
            f"AuthorizedKeysFile {self.place}/authorized",
            f"PidFile {self.place}/pid",
            "UsePAM no",
            "StrictModes no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "MaxStartups 100",
            f"SetEnv {self._variables}",
        ]
        (self.far_home / "tmp").mkdir(exist_ok=True)
        (self.place / "config").write_text("\n".join(lines) + "\n")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        command = [*self._machine, _find("sshd") or "sshd", "-D", "-e", "-f", str(self.place / "config")]
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + _START_SEC
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                if connection.recv(4) == b"SSH-":
                    return
            time.sleep(0.02)
        raise AssertionError(f"sshd does not answer: {(self.place / 'log').read_text()[-500:]}")

    def cut(self) -> None:
        """End the connections there are, and let new ones come."""
        for pid in self._sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _sessions(self) -> list[int]:
        """Return the server's own processes that serve a connection, as SIGKILL leaves what they started alive."""
        assert self._process is not None
        return [
            pid
            for pid in _below(self._process.pid)
            if b"sshd: " in _command(pid)[:6] and b"[listener]" not in _command(pid)
        ]

    def stop(self) -> None:
        """Stop it, and end every connection."""
        if self._process is None:
            return
        sessions = self._sessions()
        process, self._process = self._process, None
        process.terminate()
        process.wait(20)
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def sessions(self) -> list[Path]:
        """Return the directories of sandbox sessions on the far side."""
        return [path for path in self.far_home.glob("tmp/pytest-benchflow-far-*/*") if path.is_dir()]


def _plain_machine(place: Path) -> list[str]:
    words = [find_bwrap() or "bwrap", "--unshare-pid", "--die-with-parent", "--cap-drop", "CAP_SYS_ADMIN"]
    words += ["--tmpfs", "/", "--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--proc", "/proc"]
    for name in ("bin", "sbin", "lib", "lib64"):
        host = Path("/", name)
        if host.is_symlink():
            words += ["--symlink", str(host.readlink()), str(host)]
        elif host.is_dir():
            words += ["--ro-bind", str(host), str(host)]
    words += ["--dev", "/dev", "--dir", "/run/sshd", "--dir", "/root", "--perms", "1777", "--dir", "/tmp"]
    return [*words, "--perms", "1777", "--dir", "/var/tmp", "--bind", str(place), str(place), "--"]


def _below(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextlib.contextmanager
def running(place: Path, *, alike: bool = False) -> Iterator[Sshd]:
    """Run a server while the context lasts; where this machine cannot, the test is skipped."""
    pytest.importorskip("paramiko")
    if reason := why_no_sshd():
        pytest.skip(reason)
    made = Sshd(place, alike=alike)
    made.start()
    try:
        yield made
    finally:
        made.stop()
