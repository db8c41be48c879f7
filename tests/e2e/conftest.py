"""Make small real tasks, and look for what a rollout may have left on the machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MakeTask = Callable[..., Path]

TASK_TOML = """\
schema_version = "1.3"

[task]
name = "invented/{name}"

[agent]
timeout_sec = {agent_timeout}

[verifier]
timeout_sec = 30

[environment]
network_mode = "no-network"
"""

VERIFIER = """\
#!/bin/sh
if [ "$(cat /app/answer 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
echo "1 tests ran"
"""


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Return a maker of tasks whose agent has to write 42 to /app/answer."""

    def make(name: str = "answer", *, verifier: str = VERIFIER, agent_timeout: float = 20, extra: str = "") -> Path:
        task = tmp_path / "tasks" / name
        for part in ("environment", "solution", "tests"):
            (task / part).mkdir(parents=True)
        (task / "task.toml").write_text(TASK_TOML.format(name=name, agent_timeout=agent_timeout) + extra)
        (task / "instruction.md").write_text("Write 42 to /app/answer.\n")
        (task / "environment" / "Dockerfile").write_text("FROM debian:12-slim\nWORKDIR /app\n")
        (task / "solution" / "solve.sh").write_text("#!/bin/sh\necho 42 > /app/answer\n")
        (task / "tests" / "test.sh").write_text(verifier)
        return task

    return make


class Machine:
    """What a run may leave behind on this machine; a run is told apart by its own temporary directory."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        temporary.mkdir()
        self._listening = listening_ports()
        self._mounts = mounts()
        self._runs: list[subprocess.Popen[str]] = []

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a run, without what an outer pytest put there."""
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "BENCHFLOW_"))}
        return {**outer, "TMPDIR": str(self.temporary)}

    def pytest(self, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
        """Start pytest with the plugin in a process of its own."""
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._runs.append(run)
        return run

    def end_runs(self) -> None:
        """Kill every run that is still going."""
        for run in self._runs:
            if run.poll() is None:
                run.kill()
                run.communicate()

    def leftovers(self) -> list[str]:
        """Name every process, mount, namespace, directory and port that is still there."""
        return [
            *(f"process {line}" for line in self._processes()),
            *(f"directory {path}" for path in self._directories()),
            *(f"mount {mount}" for mount in mounts() - self._mounts),
            *(f"port {port}" for port in self._ports()),
        ]

    def _ports(self) -> Iterator[str]:
        """Yield new listening ports, but those that a process of another program, such as another test, holds."""
        ours = (os.fsencode(str(self.temporary)),)
        for port, inode in listening_ports().items():
            if port in self._listening:
                continue
            others = [process for process in holders(inode) if not holds(process, ours)]
            # Looked at again: another test's port may have been closed since.
            if not others and port in listening_ports():
                yield port

    def _processes(self) -> Iterator[str]:
        """Yield processes of the run, in whatever namespace they are: their environment or arguments name its place."""
        marks = (os.fsencode(f"TMPDIR={self.temporary}"), os.fsencode(str(self.temporary)))
        for process in Path("/proc").glob("[0-9]*"):
            if holds(process, marks):
                yield f"{process.name} {(process / 'cmdline').read_bytes().replace(bytes(1), b' ')!r}"

    def _directories(self) -> Iterator[Path]:
        """Yield what is in the temporary directory but the empty base of the scratch space and what pytest keeps."""
        for path in self.temporary.iterdir():
            if path.name == f"pytest-benchflow-{os.getuid()}":
                yield from path.iterdir()
            elif not path.name.startswith("pytest-of-"):
                yield path


def mounts() -> set[str]:
    """Return the mount points of this process's namespace."""
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def holds(process: Path, marks: tuple[bytes, ...]) -> bool:
    """Tell whether a process has one of the marks in its environment or arguments."""
    try:
        seen = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
    except OSError:
        return False
    return any(mark in seen for mark in marks)


def holders(inode: str) -> Iterator[Path]:
    """Yield the processes that have a socket open."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(link) == f"socket:[{inode}]" for link in (process / "fd").iterdir()):  # noqa: PTH115
                yield process


def listening_ports() -> dict[str, str]:
    """Return the local addresses of listening TCP sockets, with the number of each socket."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {fields[1]: fields[9] for fields in lines if fields[3] == "0A"}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Return this machine as it is before a run; what a failed test leaves running is killed."""
    machine = Machine(tmp_path / "temporary")
    yield machine
    machine.end_runs()
