"""Reach models whose providers do not speak an agent's format: by one LiteLLM process for all of a session."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.errors import ProviderError, UnansweredError
from pytest_benchflow.proxy._litellm_frames import CALLS, DATA, LEASES, LOCK, LOG, READY, frames
from pytest_benchflow.records.jsontext import dumps, loads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from pytest_benchflow.contracts import ModelRequest

_ATTEMPTS = 5
# The address of a socket takes 107 bytes.
_LONGEST_PATH = 98
# All that the process gets of the environment: no key is among it.
_INHERITED = (
    "PATH HOME LANG LC_ALL TZ TMPDIR SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE VIRTUAL_ENV PYTHONPATH PYTHONHOME "
    "LD_LIBRARY_PATH"
)
# They may have a password in them, and so reach it with each request, as keys do.
_PROXIES = "HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy".split()  # noqa: SIM905
# Of an agent's headers only what says which features of the format it uses.
_PASSED_ON = ("anthropic-beta",)
_MAIN = "import sys; sys.path.append(sys.argv.pop()); from pytest_benchflow.proxy._litellm_worker import main; main()"


class Translation:
    """A session's share in its LiteLLM process, which is started when first needed and ends with the last share."""

    def __init__(self, session_id: str) -> None:
        name = f"benchflow-{os.getuid()}-{session_id[:32]}"
        self.directory = Path(tempfile.gettempdir()) / name
        if len(os.fsencode(self.directory)) > _LONGEST_PATH:
            self.directory = Path("/tmp") / name  # noqa: S108 - made by and for this user only, see _lease
        self._joining: asyncio.Task[socket.socket] | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def begun(self) -> bool:
        """Tell whether the process was started, or joined."""
        return self._joining is not None

    def begin(self) -> None:
        """Start the process, or join it, while other things are done; must run in a loop."""
        if self._joining is None:
            self._joining = asyncio.ensure_future(asyncio.to_thread(_join, self.directory))
            self._joining.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def session(self) -> aiohttp.ClientSession:
        """Return a client of the running process. Raises: ProviderError with what it said when it does not start."""
        self.begin()
        joining = self._joining
        assert joining is not None
        lease = await asyncio.shield(joining)
        if _ended(lease):
            # It was killed from outside: whoever notices first starts another one.
            if joining is self._joining:
                await self.close()
            return await self.session()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self.directory / CALLS), limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    async def hold(self) -> Callable[[], None]:
        """Keep a running process alive beyond `close`, until what this returns is called; nobody else has to."""
        lease = await asyncio.to_thread(_join, self.directory)

        def let_go() -> None:
            lease.close()
            _sweep(self.directory)

        return let_go

    async def close(self) -> None:
        """Give the share back; safe to call twice, and to go on after."""
        joining, self._joining = self._joining, None
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        if joining is not None:
            with suppress(ProviderError, OSError):
                (await joining).close()
            await asyncio.to_thread(_sweep, self.directory)


class TranslatedUpstream:
    """A model of any provider that LiteLLM reaches; requests of every format are translated.

    `parameters` are LiteLLM's, `environment` variables for it: both may hold keys, and reach only the process.
    """

    replays = False

    def __init__(
        self,
        translation: Translation,
        model: str,
        *,
        parameters: Mapping[str, Any],
        environment: Mapping[str, str],
        timeout: float | None,
    ) -> None:
        self._translation = translation
        self._model = model
        self._parameters = parameters
        self._environment = environment
        self._timeout = timeout

    async def send(self, request: ModelRequest) -> ModelResponse:
        """Send and return when the status is known. Raises: ProviderError."""
        dialect = dialect_for(request.path)
        if dialect is None:
            raise ProviderError(f"{request.path} is of no format that can be translated")
        streamed = dialect.streams(request.path, loads(request.body))
        # A stream that is one JSON array is the whole answer in brackets.
        listed = streamed is not None and "json" in streamed
        asked = {
            "dialect": dialect.name,
            "path": request.path,
            "streamed": streamed is not None and not listed,
            "model": self._model,
            "parameters": self._parameters,
            "environment": {**_set_of(_PROXIES), **self._environment},
            "timeout": self._timeout,
            "headers": {name: value for name, value in request.headers.items() if name.lower() in _PASSED_ON},
        }
        session = await self._translation.session()
        try:
            answer = await session.post("http://litellm/", data=dumps(asked) + b"\n" + request.body)
            parts = frames(answer.content)
            _, told = await anext(parts)
        except aiohttp.ClientConnectorError as error:
            raise ProviderError(f"the LiteLLM process cannot be reached: {error}") from error
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError, StopAsyncIteration) as error:
            raise UnansweredError(f"the LiteLLM process broke off: {type(error).__name__}: {error}") from error
        if told.get("unreachable"):
            answer.close()
            raise (ProviderError if told["unsent"] else UnansweredError)(told["unreachable"])
        status: int = told["status"]
        kind = f"{streamed}; charset=utf-8" if streamed and status == 200 else "application/json"
        metadata = {"upstream_model": self._model, "upstream_attempt": 1, **told["metadata"]}
        chunks = _chunks(answer, parts, metadata, *((b"[", b"]") if listed and status == 200 else (b"", b"")))
        return ModelResponse(status, {**told["headers"], "Content-Type": kind}, chunks, metadata)

    async def close(self) -> None:
        """Do nothing: the process is the session's."""


async def _chunks(
    answer: aiohttp.ClientResponse,
    parts: AsyncIterator[tuple[bytes, Any]],
    metadata: dict[str, Any],
    before: bytes,
    after: bytes,
) -> AsyncIterator[bytes]:
    """Yield an answer's bytes; what is known at its end is added to `metadata`."""
    ended: Mapping[str, Any] | None = None
    try:
        yield before
        async for kind, value in parts:
            if kind == DATA:
                yield value
            else:
                ended = value
                upstream = {**(metadata["upstream"] or {}), **(value["metadata"]["upstream"] or {})}
                metadata.update(value["metadata"], upstream=upstream or None)
        if ended is None or ended["broken"]:
            raise ProviderError(f"the answer broke off: {ended['broken'] if ended else 'the LiteLLM process ended'}")
        yield after
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        raise ProviderError(f"the LiteLLM process broke off: {type(error).__name__}: {error}") from error
    finally:
        answer.release() if ended is not None else answer.close()


def _join(directory: Path) -> socket.socket:
    """Return a lease on the process of `directory`, started when there is none. Raises: ProviderError."""
    said = ""
    for _ in range(_ATTEMPTS):
        lease = _lease(directory)
        if lease is not None and lease.recv(1) == READY:
            lease.setblocking(False)
            return lease
        if lease is not None:
            lease.close()
            try:
                said = (directory / LOG).read_text(errors="replace").strip()[-2000:] or said
            except OSError:
                continue
            if said:
                break
    raise ProviderError(f"the LiteLLM process does not start: {said or 'it says nothing'}")


def _lease(directory: Path) -> socket.socket | None:
    """Connect to the process, or start it; None when the directory went away meanwhile."""
    directory.mkdir(mode=0o700, exist_ok=True)
    about = directory.lstat()
    if about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise ProviderError(f"{directory} is not this user's alone; remove it")
    try:
        lock = (directory / LOCK).open("a")
    except FileNotFoundError:
        return None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock.fileno()).st_nlink == 0:
            return None
        lease = socket.socket(socket.AF_UNIX)
        try:
            lease.connect(str(directory / LEASES))
        except (FileNotFoundError, ConnectionRefusedError):
            lease.close()
            return _start(directory)
        return lease


def _sweep(directory: Path) -> None:
    """Remove what a process left that could not do so itself, because it crashed or was killed."""
    with suppress(OSError), (directory / LOCK).open("a") as lock, socket.socket(socket.AF_UNIX) as lease:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            lease.connect(str(directory / LEASES))
        except (FileNotFoundError, ConnectionRefusedError):
            shutil.rmtree(directory, ignore_errors=True)


def _start(directory: Path) -> socket.socket:
    for name in (CALLS, LEASES):
        (directory / name).unlink(missing_ok=True)
    ours, theirs = socket.socketpair()
    environment = _set_of(_INHERITED.split())
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    environment["NETRC"] = os.devnull  # a password of the user's would go where the key belongs
    package = str(Path(__file__).parents[2])
    with theirs, (directory / LOG).open("wb") as log:
        # It forks at once and this process of it ends, so that nobody has to wait for it later.
        subprocess.run(
            [sys.executable, "-P", "-c", _MAIN, str(directory), package],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=environment,
            cwd="/",
            start_new_session=True,
            check=False,
        )
        # Nobody may find the directory without its socket: who has the lock next connects to it.
        _until_listening(directory / LEASES, ours)
    return ours


def _set_of(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _until_listening(path: Path, lease: socket.socket) -> None:
    lease.settimeout(0.02)
    while not path.exists():
        try:
            if not lease.recv(1, socket.MSG_PEEK):
                break
        except TimeoutError:
            continue
    lease.settimeout(None)


def _ended(lease: socket.socket) -> bool:
    """Tell whether the process that gave a lease is gone."""
    try:
        return lease.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
