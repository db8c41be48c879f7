"""Talk to Daytona's control plane and toolbox: retries for what can be asked again, and errors that say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import random
import warnings
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

T = TypeVar("T")

KEY = "DAYTONA_API_KEY"
URL = "DAYTONA_API_URL"
DEFAULT_URL = "https://app.daytona.io/api"
_TRIES = 5
_PAUSE_SEC = 0.5
_LONGEST_PAUSE_SEC = 8.0
# A single question; what takes longer is asked in a way that does not wait.
CALL_SEC = 60.0
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# Refused before anything was done: asking again repeats nothing.
_NOT_DONE_STATUS = frozenset({425, 429})
_TAKEN: set[tuple[str, str]] = set()  # addresses, each with a key that was taken there


class GoneError(SandboxError):
    """The control plane or the toolbox knows no such sandbox, session or file (any more)."""


class FullError(SandboxError):
    """There is no space left on the sandbox's disk."""


def why_unavailable() -> str | None:
    """Return None when sandboxes can be asked for, else one sentence that says what is missing."""
    missing = [name for name in ("daytona", "paramiko") if importlib.util.find_spec(name) is None]
    if missing:
        return f"the daytona sandbox needs the package {missing[0]}: pip install 'pytest-benchflow[daytona]'"
    if not host_variable(KEY):
        return f"the daytona sandbox needs an API key in {KEY}; app.daytona.io makes one under Keys"
    if "@" in urlsplit(api_url()).netloc:
        return f"{URL} has a user or a password in it, which records would tell; set it without them"
    return None


def api_url() -> str:
    """Return the address of the control plane."""
    return host_variable(URL) or DEFAULT_URL


class Api:
    """A client of its own for one sandbox, so that nothing is shared which one of them could close."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._sdk: Any = None
        self._client: Any = None
        self._key = host_variable(KEY) or ""
        self._hidden = [self._key]

    async def open(self) -> Any:
        """Return the SDK's client."""
        if self._client is None:
            self._sdk = await asyncio.to_thread(_load)
            self._client = self._connect()
        return self._client

    def _connect(self) -> Any:
        with warnings.catch_warnings():
            # Its stream of events leaves a connection behind where there is none, and we wait for nothing else.
            warnings.simplefilter("ignore", DeprecationWarning)
            config = self._sdk.DaytonaConfig(
                api_key=self._key,
                api_url=self.url,
                target=host_variable("DAYTONA_TARGET"),
                connection_pool_maxsize=None,
                use_deprecated_polling=True,
            )
            return self._sdk.AsyncDaytona(config)

    @property
    def sdk(self) -> Any:
        """Return the SDK's module; `open` first."""
        return self._sdk

    @property
    def taken(self) -> bool:
        """Tell whether the key was seen to be taken, by any client of this process."""
        return (self.url, self._key) in _TAKEN

    def take(self) -> None:
        """Remember that the key is taken."""
        _TAKEN.add((self.url, self._key))

    async def close(self) -> None:
        """Let go of the connections; safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def ask(
        self, what: str, call: Callable[[], Awaitable[T]], *, again: bool = True, timeout: float | None = CALL_SEC
    ) -> T:
        """Return the answer of one call; `again` says that it may be asked twice and then is, for transient errors.

        Raises: GoneError for what is not there, FullError, SandboxError with what the API said.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                async with asyncio.timeout(timeout):
                    return await call()
            except Exception as error:
                if attempt == _TRIES or not (_not_done(error) or (again and self.is_transient(error))):
                    raise self.told(what, error) from error
                headers = getattr(error, "headers", None) or {}
                await asyncio.sleep(_pause(attempt, headers))
        raise AssertionError("unreachable")

    def is_transient(self, error: BaseException | None) -> bool:
        """Tell whether the same question may be answered a little later."""
        status = _status(error)
        if status is not None:
            return status in _TRANSIENT_STATUS
        return isinstance(error, (TimeoutError, OSError, *self._connection_errors()))

    def _connection_errors(self) -> tuple[type[Exception], ...]:
        errors = importlib.import_module("daytona.common.errors")
        return (errors.DaytonaConnectionError, errors.DaytonaTimeoutError)

    def told(self, what: str, error: Exception) -> SandboxError:
        """Return the error to raise for one of the SDK's, without the key."""
        status = _status(error)
        said = self.clean(_words(error))[:500]
        if status == 404:
            return GoneError(f"{what}: {said}")
        if "no space left" in said.lower() or "disk quota" in said.lower():
            return FullError(
                f"{what}: the sandbox's disk is full ({said}); Daytona gives at most 10 GB, "
                "environment.storage_mb asks for them"
            )
        if status == 401:
            return SandboxError(f"{what}: Daytona at {self.url} refuses the key in {KEY} ({said})")
        if status == 403:
            return SandboxError(f"{what}: Daytona at {self.url} does not allow it with this key ({said})")
        return SandboxError(f"{what}: {said}")

    def hide(self, secret: str) -> None:
        """Let no error tell a secret, such as a token that Daytona gave us."""
        self._hidden.append(secret)

    def clean(self, text: str) -> str:
        """Return text without secrets."""
        for secret in filter(None, self._hidden):
            text = text.replace(secret, "***")
        return text


def _load() -> Any:
    """Import the SDK in a thread: that takes seconds, some of them only when its parts are named."""
    sdk = importlib.import_module("daytona")
    for name in ("AsyncDaytona", "DaytonaConfig", "Image", "CreateSandboxFromImageParams", "ListSandboxesQuery"):
        getattr(sdk, name)
    return sdk


def _status(error: BaseException | None) -> int | None:
    # Of a download that was refused, the SDK's error tells the status only by what it came from.
    while error is not None:
        found = getattr(error, "status_code", None) or getattr(error, "status", None)
        if isinstance(found, int):
            return found
        error = error.__cause__
    return None


def _words(error: Exception) -> str:
    """Return what an error says; of an answer its message alone, for its headers may hold what is nobody's business."""
    if not hasattr(error, "body"):
        said = str(error).strip()
        late = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
        nameless = "no answer in time" if late else type(error).__name__
        # The SDK puts what it was about before an error's words, also where that has none.
        return f"{said} {nameless}" if said.endswith(":") else said or nameless
    body, reason = str(error.body or ""), str(getattr(error, "reason", None) or "")
    with contextlib.suppress(ValueError, AttributeError):
        body = str(json.loads(body).get("message") or body)
    return body or reason


def is_refusal_for_now(error: BaseException | None) -> bool:
    """Tell whether the server answered, and that it cannot at present."""
    return _status(error) in _TRANSIENT_STATUS


def is_unknown_key(error: BaseException | None) -> bool:
    """Tell whether the server answered that it knows no such key."""
    return _status(error) == 401


def _not_done(error: BaseException) -> bool:
    return _status(error) in _NOT_DONE_STATUS


def _pause(attempt: int, headers: Mapping[str, Any]) -> float:
    """Return how long to wait before the next try: what the server asks for, else longer each time."""
    asked = str({name.lower(): value for name, value in headers.items()}.get("retry-after", ""))
    if asked.isdigit():
        return min(float(asked), _LONGEST_PAUSE_SEC)
    # Many rollouts meet the same fault at once, and should not come back at once.
    return float(min(_PAUSE_SEC * 2.0 ** (attempt - 1), _LONGEST_PAUSE_SEC)) * (0.8 + 0.4 * random.random())  # noqa: S311
