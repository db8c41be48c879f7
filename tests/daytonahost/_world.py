"""The inside of one sandbox: namespaces of its own with a root in memory, and programs that run in them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.sandboxes._local.bwrap import find_bwrap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STATE = "/run/daytona"  # where the toolbox keeps what belongs to its sessions
_PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\ndaytona:x:1000:1000::/home/daytona:/bin/bash\n"
    "worker:x:1234:1234::/home/worker:/bin/bash\nnobody:x:65534:65534::/:/usr/sbin/nologin\n"
)
_GROUP = "root:x:0:\ndaytona:x:1000:\nworker:x:1234:\nnogroup:x:65534:\n"
_HOMES = {"root": "/root", "daytona": "/home/daytona", "worker": "/home/worker"}
# Process 1: it reaps whatever it inherits, and starts again what a kill of everything took from it.
_INIT = "echo ready; exec >/dev/null 2>&1; while :; do sleep 3600 & wait; done"
_RIGHTS = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setuid,+setgid,+net_bind_service"
_NEEDED = {"util-linux": ("nsenter", "setpriv", "setsid", "unshare"), "openssh-server": ("sshd", "ssh-keygen")}
_FROM_HOST = ("/etc/ssl", "/etc/ca-certificates", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf")


class World:
    """A sandbox's namespaces; `pid` is its first process as this machine sees it."""

    def __init__(self, pid: int, outer: asyncio.subprocess.Process, env: Mapping[str, str], user: str) -> None:
        self.pid = pid
        self.env = {"PATH": PATH, "HOME": _HOMES.get(user, "/"), "USER": user, "LANG": "C.UTF-8", **env}
        self.user = user
        self._outer = outer
        self._numbers: dict[int, int] = {}

    @property
    def root(self) -> Path:
        """Return the root directory as this machine sees it."""
        return Path(f"/proc/{self.pid}/root")

    @classmethod
    async def start(cls, env: Mapping[str, str], user: str, disk_bytes: int, *, share_network: bool) -> World:
        """Start process 1 and give the root what programs look for."""
        reader, writer = os.pipe()
        command = [find_bwrap() or "bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", "sandbox"]
        command += ["--die-with-parent", "--as-pid-1", "--info-fd", str(writer)]
        command += [] if share_network else ["--unshare-net"]
        command += ["--size", str(disk_bytes), "--tmpfs", "/", "--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib64", "lib32"):
            if Path("/", name).is_symlink():
                command += ["--symlink", f"usr/{name}", f"/{name}"]
        for name in _FROM_HOST:
            command += ["--ro-bind-try", name, name]
        command += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
        for name in ("/tmp", "/var/tmp"):
            command += ["--perms", "1777", "--dir", name]
        for name in ("/root", "/home/daytona", "/home/worker", "/opt", "/srv", "/var/log", "/var/lib", STATE):
            command += ["--dir", name]
        command += ["--chdir", "/", "--clearenv", "--setenv", "PATH", PATH, "/bin/sh", "-c", _INIT]
        try:
            outer = await asyncio.create_subprocess_exec(
                *command, pass_fds=[writer], stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
            )
        finally:
            os.close(writer)
        assert outer.stdout is not None
        said = await outer.stdout.readline()
        with open(reader, "rb") as info:  # noqa: PTH123, ASYNC230  # a pipe that was filled before "ready"
            facts = info.read()
        if said != b"ready\n":
            raise RuntimeError(f"bubblewrap did not start a sandbox: {said!r} {facts!r}")
        world = cls(json.loads(facts)["child-pid"], outer, env, user)
        world._furnish()
        return world

    def _furnish(self) -> None:
        etc = self.root / "etc"
        (etc / "passwd").write_text(_PASSWD)
        (etc / "group").write_text(_GROUP)
        (etc / "hosts").write_text("127.0.0.1 localhost sandbox\n")
        (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        for user, number in (("daytona", 1000), ("worker", 1234)):
            os.chown(self.root / "home" / user, number, number)

    def argv(
        self, command: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return what this machine has to run so that a command runs inside."""
        entering = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--ipc", "--uts"]
        rights = ["/usr/bin/setpriv", f"--bounding-set={_RIGHTS}"]
        if self.user != "root":
            rights += [f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        place = ["/usr/bin/env", "-i", *(f"--chdir={cwd}" for cwd in [cwd] if cwd)]
        values = {**self.env, **(env or {})}
        return [*entering, *rights, *place, *(f"{key}={value}" for key, value in values.items()), *command]

    async def run(self, command: Sequence[str], stdin: bytes | None = None) -> tuple[int, bytes, bytes]:
        """Run a program inside to its end; return exit code, output and errors."""
        process = await asyncio.create_subprocess_exec(
            *self.argv(command),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return process.returncode, out, err

    def host_pid(self, inside: int) -> int:
        """Return the number of one of the sandbox's processes as this machine sees it."""
        if not self._numbers or inside not in self._numbers:
            self._numbers = _numbers(self.pid)
        return self._numbers[inside]

    def processes(self) -> list[str]:
        """Return the command lines of what runs inside, without process 1 and what it sleeps with."""
        own = {self.pid, *(pid for pid in children(self.pid) if _line(pid) == "sleep 3600")}
        return [_line(pid) for pid in _numbers(self.pid).values() if pid not in own]

    async def kill_all(self) -> None:
        """Kill every process but the first, and see them dead."""
        while self.processes():
            await self.run(["/bin/sh", "-c", "kill -9 -1"])

    async def end(self) -> None:
        """Kill the first process and with it all others, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        await self._outer.wait()


def _numbers(first: int) -> dict[int, int]:
    numbers = {}
    space = Path(f"/proc/{first}/ns/pid").readlink()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "ns/pid").readlink() == space:
                    status = (entry / "status").read_text()
                    numbers[int(status.partition("NSpid:")[2].split("\n")[0].split()[-1])] = int(entry.name)
    return numbers


def _line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


async def entered(process: asyncio.subprocess.Process) -> int:
    """Return the number of the process that `nsenter` started inside, or its own when that has ended."""
    while process.returncode is None:
        if found := children(process.pid):
            return found[0]
        await asyncio.sleep(0.001)
    return process.pid


def children(pid: int) -> list[int]:
    """Return the children of a process, as this machine numbers them."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kill_tree(pid: int) -> None:
    """Kill a process and all that descend from it; what has another parent by now stays."""
    for child in children(pid):
        kill_tree(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def why_not() -> str | None:
    """Return why no sandbox can be made here, None when it can."""
    if os.geteuid() != 0:
        return "a stand-in for Daytona needs Linux and root"
    for package, names in _NEEDED.items():
        if missing := [
            name for name in names if shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None
        ]:
            return f"{', '.join(missing)} not installed; apt-get install {package}"
    if find_bwrap() is None:
        return "bubblewrap is not installed; apt-get install bubblewrap"
    if subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], check=False).returncode != 0:
        return "this machine does not let root make namespaces"
    return None
