"""A Docker engine of the tests' own, and an image made of this machine's programs: no registry is needed."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "benchflow-test:1"
STAND_IN = "python:3.11-slim"  # as the bundled tasks name it
_START_SEC = 30
_SHELLS = ("sh", "bash", "env", "python3")
_TOOLS = (
    *("awk", "basename", "cat", "chgrp", "chmod", "chown", "cmp", "cp", "cut", "date", "dirname", "du", "echo", "expr"),
    *("false", "find", "grep", "head", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mktemp", "mv", "ps", "pwd", "rm"),
    *("readlink", "rmdir", "sed", "seq", "setsid", "sha256sum", "sleep", "sort", "stat", "su", "tail", "tee", "test"),
    *("touch", "tr", "true", "uname", "uniq", "wc", "whoami", "xargs"),
)
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nworker:x:1234:1234::/home/worker:/bin/sh\n"
_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_OF_WHEELS = (
    *("libgcc_s.so.1", "libstdc++.so.6", "librt.so.1", "libpthread.so.0", "libdl.so.2", "libutil.so.1"),
    *("libresolv.so.2", "libm.so.6"),
)
_UNWANTED = {"test", "__pycache__", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo", "dist-packages"}


def why_no_dockerd() -> str | None:
    """Return why this machine cannot run an engine for tests, None when it can try."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "a Docker engine for tests needs Linux and root"
    if not shutil.which("ip"):
        return "ip, which gives an engine a network of its own, is not installed; apt-get install iproute2"
    return None if shutil.which("dockerd") else "dockerd is not installed; apt-get install docker.io"


class Dockerd:
    """An engine with a network of its own, that touches none of the host's; what it holds outlives `stop`."""

    def __init__(self, log: Path, *more: str, megabytes: int | None = None) -> None:
        self._megabytes = megabytes  # of its disk, which is then in memory
        # One that listens at a port of this machine is in its network, and makes none itself.
        self._more = (*more, "--bridge=none") if more else ()
        # A socket's name may have no more than 107 characters.
        self._place = Path("/tmp", f"bf-dockerd-{secrets.token_hex(4)}")
        self._place.mkdir(mode=0o700)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"unix://{self._place}/sock"

    def start(self) -> bool:
        """Start it and tell whether it answers."""
        place, name = self._place, self._place.name
        # Mounts of its own, so that whoever looks for what a run left on this machine meets none of them.
        command = ["unshare", "--mount", "--propagation=private"]
        (place / "root").mkdir(exist_ok=True)
        before = "" if self._more else "ip link set lo up;"
        before += f"mount -t tmpfs -o size={self._megabytes}m tmpfs {place}/root;" if self._megabytes else ""
        command += [] if self._more else ["--net"]
        command += ["sh", "-c", f'{before} exec "$@"', "sh"]
        command += ["dockerd", f"--data-root={place}/root", f"--exec-root={place}/exec", f"--pidfile={place}/pid"]
        command += [f"--host={self.address}", "--storage-driver=overlay2"]
        command += ["--iptables=false", "--ip6tables=false", *self._more]
        # A containerd of the system's would be shared, so that nothing of its own engine may be met there.
        command += [f"--containerd-namespace={name}", f"--containerd-plugins-namespace={name}-plugins"]
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + _START_SEC
        while time.monotonic() < until and process.poll() is None:
            if (place / "sock").exists() and _answers(self.address):
                return True
            time.sleep(0.1)
        return False

    def stop(self) -> None:
        """Stop it with all its containers."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def remove(self) -> None:
        """Stop it and remove all it holds."""
        self.stop()
        shutil.rmtree(self._place, ignore_errors=True)


class Door:
    """A TCP port of this machine that leads to an engine's socket, and can be slammed."""

    def __init__(self, address: str) -> None:
        self._path = address.removeprefix("unix://")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(self._path)
            except OSError:
                near.close()
                far.close()
                continue
            self._open |= {near, far}
            thread = threading.Thread(target=self._serve, args=(near, far))
            self._threads.append(thread)
            thread.start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._carry, args=(far, near))
        back.start()
        self._carry(near, far)
        back.join()
        self._open -= {near, far}
        near.close()
        far.close()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def slam(self) -> None:
        """Cut every connection; new ones are let in."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut every connection and listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.slam()
        for thread in self._threads[1:]:
            thread.join()


def _answers(address: str) -> bool:
    api = client(address)
    try:
        return bool(api.ping())
    except OSError:
        return False
    finally:
        api.close()


def client(address: str) -> Any:
    """Return an API client of an engine, made anew so that no test's loop or fork shares it."""
    docker: Any = importlib.import_module("docker")
    return docker.APIClient(base_url=address, version="auto", timeout=60)


def import_image(address: str, base: Path, *names: str) -> None:
    """Give an engine an image of this machine's programs under every name."""
    archive = base / "image.tar"
    _write_image(archive)
    api = client(address)
    first, *others = names
    repository, _, tag = first.partition(":")
    api.import_image(str(archive), repository=repository, tag=tag)
    for other in others:
        repository, _, tag = other.partition(":")
        assert api.tag(first, repository, tag)
    api.close()
    archive.unlink()


def _write_image(archive: Path) -> None:
    with tarfile.open(archive, "w") as tar:
        for name in ("bin", "etc", "lib64", "usr/bin", "root", "home/worker", "var/tmp", "proc", "sys", "dev", "run"):
            _directory(tar, name, 0o755)
        _directory(tar, "tmp", 0o1777)
        _text(tar, "etc/passwd", _PASSWD)
        _text(tar, "etc/group", "root:x:0:\nworker:x:1234:\n")
        programs = [Path(found) for tool in (*_SHELLS, *_TOOLS) if (found := shutil.which(tool, path=_PATH))]
        for path in programs:
            tar.add(path.resolve(), f"bin/{path.name}")
        for name in ("env", "python3"):
            link = tarfile.TarInfo(f"usr/bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, f"/bin/{name}"
            tar.addfile(link)
        modules = list(_python())
        for path in modules:
            tar.add(path.resolve(), str(path).lstrip("/"))
        for path in _libraries([*programs, *(path for path in modules if path.suffix == ".so"), *_needed_by_wheels()]):
            tar.add(path.resolve(), str(path).lstrip("/"))


def _python() -> Iterator[Path]:
    ask = ["/usr/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
    library = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    for path in sorted(library.rglob("*")):
        parts = path.relative_to(library).parts
        if path.is_file() and not _UNWANTED & set(parts) and not parts[0].startswith("config-"):
            yield path


def _needed_by_wheels() -> list[Path]:
    """Return what packages with compiled parts expect on every Linux."""
    return [path for name in _OF_WHEELS for path in Path("/usr/lib").glob(f"*-linux-gnu/{name}")]


def _libraries(files: list[Path]) -> list[Path]:
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    wanted = {*re.findall(r"(/\S+) \(0x", said), *(str(path) for path in files if path.name in _OF_WHEELS)}
    return [Path(name) for name in sorted(wanted)]


def _directory(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    if name == "home/worker":
        entry.uid = entry.gid = 1234
    tar.addfile(entry)


def _text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text)
    tar.addfile(entry, io.BytesIO(text.encode()))
