"""What a sandbox must offer, and a kind of sandbox; found by file name (see `registry`), and not imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from pytest_benchflow.contracts.model import Endpoint
    from pytest_benchflow.tasks.task import Task

# proxy: what `Sandbox.reach` offers; public: others on the internet too, for programs that heed http_proxy;
# allowlist: as public, but only the hosts named.
Network = Literal["proxy", "public", "allowlist", "none"]
PhaseName = Literal["setup", "agent", "verifier"]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a finished command left; text is UTF-8 with undecodable bytes shown as backslash escapes."""

    exit_code: int | None  # None: killed because its time was up
    stdout: str
    stderr: str
    timed_out: bool = False


# Where an agent's installation is inside, read-only, with the HOME that its install_cmd had.
INSTALL_ROOT = "/opt/benchflow"
INSTALL_HOME = f"{INSTALL_ROOT}/home"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory seen inside the sandbox at `target`: this machine's, or `there`, where sandboxes are made."""

    source: Path
    target: str
    writable: bool = False
    there: bool = False  # `source` is of the backend whose `install` returned it


@dataclass(frozen=True, slots=True)
class Installation:
    """What is made once for each image and then shared: all that `script`, run as root, leaves in INSTALL_ROOT."""

    name: str
    version: str | None
    script: str  # POSIX sh
    timeout_sec: float
    env: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None  # as "3.12": an interpreter wanted in BENCHFLOW_PYTHON where the backend can offer one


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of sandbox can do here, which is compared with what a task asks before anything starts."""

    networks: frozenset[Network]  # those it enforces
    limits: frozenset[str]  # those it holds, of memory, cpus, processes and storage
    root: bool  # a command may run as root
    stdin: bool = True  # commands take input
    programs: bool = True  # commands are run, and not only answered
    snapshots: bool = False  # the state of one sandbox can be where others start from
    unseen: tuple[str, ...] = ()  # what nobody has seen against the real thing yet


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox is made from; `id` is unique in the session and names everything that is created."""

    id: str
    task: Task
    scratch: Path  # a directory of this rollout's own; the backend may put anything there
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    agent: str = ""  # who will work in it, as the user named it; some need a way of their own into it
    lifetime_sec: float | None = None  # it is not needed for longer, with room to spare; None: nobody knows


class Process(Protocol):
    """A live process. One whose connection may lose words has `async reattach() -> bool`, too; False: done before."""

    async def write(self, data: bytes) -> None:
        """Write to stdin and drain. Raises: BrokenPipeError when the process is gone."""

    async def close_stdin(self) -> None:
        """Close stdin."""

    async def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stdout as soon as there are any; b"" at its end."""

    async def read_stderr(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stderr as soon as there are any; b"" at its end."""

    async def wait(self) -> int:
        """Wait for the end and return the exit code (negative: the signal)."""

    async def kill(self) -> None:
        """Kill the process and everything it started; return when they are dead."""


class Sandbox(Protocol):
    """One isolated machine for one rollout. Methods raise `SandboxError` when the sandbox itself fails."""

    id: str
    backend: str
    workdir: str
    transport: str  # as config.json's acp_transport: local-stdio, docker-stdio, ssh, pty
    limits: Mapping[str, Any]  # each limit asked for -> what was really applied, or why not

    async def enter(self, phase: PhaseName, network: Network, hosts: Sequence[str] = ()) -> None:
        """Kill every process of the phase before, prove them dead, then switch to `network`; files stay.

        `hosts` are those that an allowlist names.
        """

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Run a command to its end; on timeout its whole tree is killed and `timed_out` is set."""

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> Process:
        """Start a command and return it alive."""

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory to the absolute path `target`, making parents; links out of it are refused."""

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory out; links are not followed. Raises: FileNotFoundError when it is not there."""

    async def remove(self, path: str) -> None:
        """Remove a file or directory, running nothing of the sandbox's; nothing happens when it is not there."""

    async def reach(self, endpoint: Endpoint) -> str:
        """Make `endpoint` reachable in this phase and return its URL as seen from inside (no path, no slash)."""

    async def stop(self) -> None:
        """Kill everything and remove everything; safe to call twice and after a failed start."""


@dataclass(frozen=True, slots=True)
class Remain:
    """A sandbox that a backend still has, whoever made it.

    Times are as the backend tells them: epoch seconds, ISO text or a datetime; None: it does not tell.
    """

    name: str  # what `Backend.discard` takes
    backend: str
    labels: Mapping[str, str]
    created: float | str | datetime | None = None
    active: float | str | datetime | None = None  # when something last happened in there
    about: str = ""  # for people: its state, what it was made for


class Backend(Protocol):
    """A kind of sandbox: the object named `backend` in `sandboxes/NAME.py`.

    One that takes only so many sandboxes at a time has `at_once: int | None`, too; None: nobody knows how many.
    """

    name: str
    dies_with_process: bool  # True: when this process is killed, nothing is left of a sandbox but its scratch directory

    def check(self) -> None:
        """Refuse what this host's variables ask for and it does not know; asks nobody else. Raises: UsageError."""

    def available(self) -> str | None:
        """Return None when this machine can run it, else one sentence that says what is missing and what to do."""

    def unsupported(self, task: Task) -> str | None:
        """Return None when the task can run here, else the reason to skip, such as "needs docker: RUN apt-get …"."""

    def fingerprint(self, task: Task) -> str:
        """Name what an agent install depends on (image or host), safe in a file name."""

    @property
    def capabilities(self) -> Capabilities:
        """Return what its sandboxes can do here."""

    async def install(self, installation: Installation, task: Task, log: Path) -> tuple[Mount, ...]:
        """Return the mounts of an installation, made first where there is none yet for this image; `log` says how.

        Raises: AgentError with the end of the log.
        """

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox holding the task's environment; nothing of its tests or solution."""

    async def close(self) -> None:
        """Let go of what is held between sandboxes, such as connections; safe to call twice, and to go on after."""

    @property
    def place(self) -> str:
        """Return where sandboxes are made at present, such as an engine's address; "" for this machine itself."""

    def reap(self, scratch: Path, place: str) -> bool:
        """Remove what a killed process left at `place` of the sandbox with this scratch directory, and of no other.

        False: it cannot be told whether something is left, so that a later start has to try again.
        """

    async def remains(self) -> Sequence[Remain]:
        """Return the sandboxes that exist now and bear a label of ours, whoever made them. Raises: SandboxError."""

    async def discard(self, name: str) -> None:
        """Remove one of `remains`, whose removal was decided elsewhere; nothing happens when it is gone.

        Raises: SandboxError when it is in use, or not removed.
        """
