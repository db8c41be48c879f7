"""The contracts between the rooms: what a sandbox, an agent, a model upstream and an endpoint must offer.

Backends are found by file name (see `registry`); none of them is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from pytest_benchflow.records.journal import Journal
    from pytest_benchflow.records.usage import Usage
    from pytest_benchflow.tasks.task import Task

# proxy: what `Sandbox.reach` offers; public: others on the internet too, for programs that heed http_proxy;
# allowlist: as public, but only the hosts named.
Network = Literal["proxy", "public", "allowlist", "none"]
PhaseName = Literal["setup", "agent", "verifier"]
Role = Literal["system", "user", "assistant", "tool"]


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
    snapshots: bool = False  # the state of one sandbox can be where others start from
    stand_in: tuple[str, ...] = ()  # what has been seen against a stand-in only, never against the real thing


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
    """A kind of sandbox: the object named `backend` in `sandboxes/NAME.py`."""

    name: str
    dies_with_process: bool  # True: when this process is killed, nothing is left of a sandbox but its scratch directory

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


class Endpoint(Protocol):
    """The door to the model for one rollout."""

    token: str  # what the agent shows as its API key; valid for this rollout only
    mismatch: str | None  # the first difference from a recording that does not fit

    @property
    def open_requests(self) -> tuple[str, ...]:
        """Return the ids of the requests that have no answer yet, without those the agent gave up for another try."""

    @property
    def received(self) -> int:
        """Return how many requests have come so far."""

    async def port(self) -> int:
        """Return a loopback TCP port of the host on which this endpoint listens."""

    async def adopt(self, listener: socket.socket) -> None:
        """Serve this endpoint on a listening socket made elsewhere (inside a sandbox's network)."""

    async def close(self) -> EndpointReport:
        """Stop listening, void the token, end and record every open exchange, close the upstream; safe twice."""


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """What passed through an endpoint: law 1 says that both numbers are equal."""

    received: int
    recorded: int
    mismatch: str | None = None  # the first replay difference, when a recording did not fit
    warnings: tuple[str, ...] = ()
    in_flight: tuple[str, ...] = ()  # the requests without an answer when it was closed
    # The reasoning efforts that came: each as asked for, as the agent sent it, as it went upstream, as it was echoed.
    efforts: tuple[Mapping[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request as it goes upstream: agent's bytes, our controls stripped, no credential of the agent."""

    method: str
    path: str  # with the query string, as the agent sent it
    headers: Mapping[str, str]
    body: bytes
    model: str | None = None  # as the body names it, where whoever made this has looked


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """An upstream's answer; `chunks` must be consumed or closed."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Upstream(Protocol):
    """Where a gateway sends requests: a provider, a recording, a scripted model."""

    replays: bool  # it compares requests with recorded ones, and so is sent them as they are recorded

    async def send(self, request: ModelRequest) -> ModelResponse:
        """Send and return when the status is known. Raises: ProviderError (never a client library's class)."""

    async def close(self) -> None:
        """Free connections; safe to call twice."""


def _as_it_is(value: Any) -> Any:
    return value


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """How the client side of the agent protocol behaves during one prompt; agents without a client ignore it."""

    allow: bool = True  # whether requests for permission are granted
    cancel: Callable[[], Awaitable[object]] | None = None  # the turn is cancelled when this returns
    cancel_grace_sec: float = 10.0  # how long the agent may take to end a cancelled turn


@dataclass(frozen=True, slots=True)
class AgentContext:
    """All an agent needs for one prompt (one step of a task)."""

    task: Task
    instruction: str
    sandbox: Sandbox
    events: Journal  # acp_trajectory.jsonl: `events.append({"type": …})`
    log_dir: Path  # agent/ in the rollout directory
    timeout_sec: float
    idle_timeout_sec: float | None
    llm_timeout_sec: float  # how long the agent should let its model take: never less than its own time
    model: str  # as the agent should name it, without a provider prefix
    base_url: str | None  # of the gateway as seen from inside, without a path
    token: str | None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | int | None = None
    reasoning_effort: str | None = None
    skills_dir: str | None = None  # inside the sandbox; None: no skills in this rollout
    step: str | None = None
    redact: Callable[[Any], Any] = _as_it_is  # text or JSON value -> the same without secrets; for logs
    # Whether a model call is open, or has come since the last look: an agent that waits for its model is not idle.
    busy: Callable[[], bool] = _never
    settled: Callable[[], bool] = _never  # whether its model's last answer leaves it nothing to do but end its turn
    client: ClientPolicy = ClientPolicy()


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """How an agent's run ended. `stop` is finished, timeout, idle, crashed, cancelled or refused."""

    stop: str
    stop_reason: str | None = None  # the protocol's own word, such as end_turn
    error: str | None = None
    error_category: str | None = None
    n_tool_calls: int = 0
    reported_usage: Mapping[str, Any] | None = None
    idle_before_timeout_s: float | None = None
    in_flight_at_timeout: str | None = None
    settings: Mapping[str, Any] | None = None  # {file, kept, why}: whether the agent kept those it was launched with


class Agent(Protocol):
    """Something that works on a task; `agents/NAME.py` offers `agent(name) -> Agent`."""

    name: str
    version: str | None
    uses_model: bool
    api_dialect: str | None  # chat, responses, messages, generateContent: what it speaks to its model

    def unsupported(self, task: Task) -> str | None:
        """Return None when the agent can work on the task, else the reason to skip it."""

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:
        """Make the agent available once per version and image; return what to mount. Raises: AgentError."""

    async def run(self, context: AgentContext) -> AgentOutcome:
        """Work on one instruction and return; never raises for what an agent does, AgentError when it cannot start."""


class ToolCall(NamedTuple):
    """A call of a tool by a model; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class Turn(NamedTuple):
    """One turn of a conversation, whatever the wire format."""

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None  # of a tool result
    reasoning: int = 0  # reasoning parts left out of the text
    unsupported: tuple[str, ...] = ()  # item or part types that could not be mapped: the row must be refused


class Outcome(NamedTuple):
    """How an exchange ended; `kind` is completed, truncated, filtered, refused, partial or error, `reason` says why."""

    kind: str
    reason: str | None = None


class Dialect(Protocol):
    """A wire format: the object named `dialect` in `dialects/NAME.py`. Everything is computed from parsed JSON."""

    name: str
    history: str  # the key of a request body's array that grows with the conversation

    def matches(self, path: str) -> bool:
        """Tell whether a request path (no query) is this format's."""

    def streams(self, path: str, body: Mapping[str, Any]) -> str | None:
        """Return the content type of the stream that a request (path with its query) asks for, None for none."""

    def assemble(self, raw: bytes) -> tuple[Any, str | None]:
        """Turn a whole stream into the final body in this format's own shape.

        Nothing is invented; the second value says why the stream is not complete, None when it is.
        """

    def disassemble(self, body: Mapping[str, Any], request: Mapping[str, Any], path: str) -> Iterator[bytes]:
        """Yield a final body as the stream that would answer `request` at `path`; `assemble` gives it back."""

    def outcome(self, status: int | None, body: Any, error: Mapping[str, Any] | None = None) -> Outcome:
        """Classify an exchange; an unknown state is never completed."""

    def request_turns(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the history a request carries (without what a previous_response_id stands for)."""

    def closes(self, item: Any) -> bool:
        """Tell whether what follows this item of a history can be turned into turns without it."""

    def response_turn(self, body: Any) -> Turn | None:
        """Return the answer as one assistant turn, None when there is none."""

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tools a request offers, as chat-style {"type": "function", "function": {…}} definitions."""

    def usage(self, body: Any) -> Usage | None:
        """Return the tokens of an answer with cache conventions normalised, None when it reports none."""

    def effort(self, body: Any) -> str | None:
        """Return the reasoning effort a request asks for or a response echoes."""

    def error_body(self, status: int, message: str, kind: str) -> bytes:
        """Return an error answer in this format's own shape."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One branch of a rollout, ready to be written: strict JSON in every value, and secrets taken out."""

    rollout: str  # name of the rollout's directory
    role: str  # policy, or side: a title, a summary, a sub-agent
    branch: int  # 0-based, in the order the branches of a role end
    messages: list[dict[str, Any]]  # chat-style; contents are strings, arguments a JSON object in a string
    tools: list[dict[str, Any]]  # chat-style; each with its last schema
    origins: tuple[int | None, ...]  # for each message the exchange that answered with it; None: not the model's own
    exchanges: Mapping[int, ExchangeFacts]  # by index: all that `origins` names
    repeated: frozenset[int]  # those of them that an earlier branch holds too
    reward: float
    task: str | None = None
    agent: str | None = None
    agent_version: str | None = None
    model: str | None = None
    redactions: int = 0  # secrets taken out of messages and tools
    trainable_redacted: bool = False  # some of them out of what a model wrote
    tools_redefined: tuple[str, ...] = ()  # names that came with different schemas


@dataclass(frozen=True, slots=True)
class ExchangeFacts:
    """What is known of an exchange beside its text."""

    model: str | None  # as the provider names it
    usage: Usage | None


class Exporter(Protocol):
    """An export format: the object named `exporter` in `exporters/NAME.py`, a dash in the name an underscore."""

    @property
    def versions(self) -> Sequence[str]:
        """Return the versions of the format that it can write, the newest last; none when it has no versions."""

    @property
    def columns(self) -> Mapping[str, type] | None:
        """Return the columns of every row, each with the one type it has; None when rows differ."""

    @property
    def loaders(self) -> Sequence[str]:
        """Return the packages that must load the file where they are installed: pyarrow, datasets."""

    def rows(self, conversation: Conversation, version: str, /) -> Iterator[dict[str, Any]]:
        """Yield the rows of a conversation, in a version of the format ("" when it has none).

        Raises: UnsupportedError ("reason: detail") when the format cannot hold the conversation.
        """
