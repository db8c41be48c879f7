"""Look for what a run of pytest leaves on this machine: processes, namespaces, control groups, ports, mounts, files.

What belongs to a run is told by descent, which no process can shed: while a `Machine` lives, this process adopts the
orphans of what it started (Linux: a child subreaper), in whatever namespace, session or environment they are. So tests
beside this one, which make sandboxes of their own, are never blamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import LEAN

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36
_NAMESPACE = re.compile(r"(?:cgroup|ipc|mnt|net|pid|time|user|uts):\[\d+\]")
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Machine:
    """This machine as it was before a run; `leftovers` names what the runs since then have left."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        temporary.mkdir()
        self._mounts = mounts()
        self._before = set(descendants())
        self._runs: list[subprocess.Popen[str]] = []
        self._places: set[Path] = set()
        _adopt_orphans(True)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a run, without what an outer pytest put there."""
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "BENCHFLOW_"))}
        return {**outer, "TMPDIR": str(self.temporary), "PYTEST_ADDOPTS": LEAN}

    def pytest(self, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
        """Start pytest with the plugin in a process of its own."""
        return self.start(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, cwd=cwd)

    def start(self, *command: str, cwd: Path) -> subprocess.Popen[str]:
        """Start a program whose leftovers are looked for."""
        run = subprocess.Popen(
            command, cwd=cwd, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._runs.append(run)
        self._places.add(cwd)
        return run

    def close(self) -> None:
        """Kill every run and all that it left."""
        deadline = time.monotonic() + 10
        while (alive := list(self.processes())) and time.monotonic() < deadline:
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
            time.sleep(0.01)
            for run in self._runs:
                run.poll()
        for run in self._runs:
            with run:  # closes its pipe
                run.wait()
        _adopt_orphans(False)

    def leftovers(self) -> list[str]:
        """Name every process, namespace, port, control group, mount and directory that is still there."""
        return [
            *(f"process {process.name}: {_command(process)}" for process in self.processes()),
            *sorted({f"namespace {name}" for process in self.processes() for name in _namespaces(process)}),
            *sorted({f"port {port}" for process in self.processes() for port in _listening(process)}),
            *(f"control group {group}" for group in self._groups()),
            *(f"mount {mount}" for mount in self._new_mounts()),
            *(f"directory {path}" for path in self._directories()),
        ]

    def processes(self) -> Iterator[Path]:
        """Yield the living processes that descend from the runs, and put away those of their orphans that ended."""
        started = {run.pid for run in self._runs}
        for pid, (parent, state) in descendants().items():
            if pid in self._before:
                continue
            if state not in "ZX":
                yield Path("/proc", str(pid))
            elif parent == os.getpid() and pid not in started:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _groups(self) -> Iterator[Path]:
        """Yield the control groups of sandboxes that the ledgers of the runs' jobs name."""
        ledgers = [path for place in self._places for path in place.glob("jobs/*/sandboxes.jsonl")]
        made = {json.loads(line)["sandbox"] for ledger in ledgers for line in ledger.read_text().splitlines()}
        for place, names, _ in os.walk("/sys/fs/cgroup"):
            yield from (Path(place, name) for name in names if any(name.endswith(sandbox) for sandbox in made))

    def _new_mounts(self) -> set[str]:
        """Return the mounts there were not before, but for those in directories of tests beside this one."""
        own = self.temporary.parent
        shared = next((place for place in own.parents if place.name.startswith("pytest-of-")), own.parent)
        new = mounts() - self._mounts
        return {mount for mount in new if Path(mount).is_relative_to(own) or not Path(mount).is_relative_to(shared)}

    def _directories(self) -> Iterator[Path]:
        """Yield what is in the temporary directory but the empty base of the scratch space and what pytest keeps."""
        for path in self.temporary.iterdir():
            if path.name == f"pytest-benchflow-{os.getuid()}":
                yield from path.iterdir()
            elif not path.name.startswith("pytest-of-"):
                yield path


def descendants() -> dict[int, tuple[int, str]]:
    """Return the processes that descend from this one, as pid -> (parent, state)."""
    found: dict[int, tuple[int, str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            found[int(process.name)] = (int(parent), state)
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in ours} - ours:
        ours |= more
    return {pid: found[pid] for pid in sorted(ours - {os.getpid()})}


def mounts() -> set[str]:
    """Return the mount points of this process's namespace; a namespace that a file holds is one of them."""
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def _adopt_orphans(adopt: bool) -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise OSError("this process may not adopt orphans")


def _command(process: Path) -> str:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_bytes().replace(bytes(1), b" ").decode(errors="replace").strip()
    return "ended"


def _links(directory: Path) -> Iterator[str]:
    """Yield where the links of a process's directory lead; a process that ends meanwhile has none."""
    with contextlib.suppress(OSError):
        for link in directory.iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(link)  # noqa: PTH115 - what these lead to are no paths


def _namespaces(process: Path) -> set[str]:
    """Return the namespaces that a process is in or holds open, but those of this process."""
    held = {target for target in _links(process / "fd") if _NAMESPACE.fullmatch(target)}
    return (held | set(_links(process / "ns"))) - set(_links(Path("/proc/self/ns")))


def _listening(process: Path) -> Iterator[str]:
    """Yield the TCP ports on which a process listens in its own network namespace."""
    sockets = {match[1] for target in _links(process / "fd") if (match := _SOCKET.fullmatch(target))}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            lines = [line.split() for line in (process / "net" / name).read_text().splitlines()[1:]]
            yield from (str(int(f[1].rpartition(":")[2], 16)) for f in lines if f[3] == "0A" and f[9] in sockets)
