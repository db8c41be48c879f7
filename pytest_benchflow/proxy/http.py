"""Send requests on to a model provider by URL and key: the agent's bytes, the provider's bytes."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.errors import ProviderError, UnansweredError
from pytest_benchflow.proxy import _controls
from pytest_benchflow.proxy._pacing import account_name
from pytest_benchflow.records.jsontext import loads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pytest_benchflow.contracts import ModelRequest

# The only limit here: a host that does not even accept a connection. How long an answer takes is the agent's matter.
_CONNECT_SECONDS = 60.0
_KEEPALIVE_SECONDS = 30
_LONGEST_LINE = 1024 * 1024
_PLACES_KEPT = 64
_VERSION = re.compile(r"/v1(?:alpha|beta)?\d*(?=/)")
_BASE_VERSION = re.compile(r"/v1(?:alpha|beta)?\d*\Z")
# Only Azure's paths name a deployment or an API version.
_AZURE = re.compile(r"^(?:/v1)?/openai/(?:deployments/|.*[?&]api-version=)")
_KEY_HEADERS = {"messages": "x-api-key", "generateContent": "x-goog-api-key"}


class HttpUpstream:
    """A provider that speaks the agent's own format at `base_url` (ending in /v1, or what stands for it)."""

    replays = False

    def __init__(self, base_url: str, *, api_key: str | None, model: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._model = model
        self.account = account_name(self._host, api_key)  # whose calls are paced together
        self._session: aiohttp.ClientSession | None = None
        self._places: dict[str, tuple[URL, dict[str, str], bool]] = {}  # by the path asked for

    async def send(self, request: ModelRequest) -> ModelResponse:
        """Send and return when the status is known. Raises: ProviderError."""
        place = self._places.get(request.path)
        if place is None:
            if len(self._places) >= _PLACES_KEPT:
                self._places.clear()
            place = self._places[request.path] = self._place(request.path)
        url, credential, in_path = place
        headers = {**request.headers, **credential}
        body = request.body
        if not in_path and request.model != self._model:
            body = self._named(body)
        try:
            answer = await self._opened().request(
                request.method, url, data=_Whole(body), headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise ProviderError(f"{self._host}: {_said(error)}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnansweredError(f"{self._host}: {_said(error)}") from error
        return ModelResponse(
            status=answer.status,
            headers=dict(answer.headers),
            chunks=self._chunks(answer),
            metadata={"upstream_model": self._model, "upstream_attempt": 1},
        )

    async def close(self) -> None:
        """Close connections; safe to call twice."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def _host(self) -> str:
        return urlsplit(self._base_url).netloc.rpartition("@")[2]

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_lasting_socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                # Not trust_env: a password of the user's .netrc would go where the key belongs.
                proxy=_forward_proxy(self._base_url),
                max_line_size=_LONGEST_LINE,
                max_field_size=_LONGEST_LINE,
                skip_auto_headers=("User-Agent", "Content-Type"),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _place(self, path: str) -> tuple[URL, dict[str, str], bool]:
        """Return the URL of a path, the headers of the gateway's own, and whether the path names the model."""
        headers = {"Accept-Encoding": "identity", **self._credential(path)}
        in_path = _controls.path_model(path) is not None
        if in_path:
            path = _controls.with_path_model(path, quote(self._model, safe=""))
        return URL(self._placed(path), encoded=True), headers, in_path

    def _credential(self, path: str) -> dict[str, str]:
        if self._api_key is None:
            return {}
        dialect = dialect_for(path)
        header = "api-key" if _AZURE.search(path) else _KEY_HEADERS.get(dialect.name) if dialect is not None else None
        return {header: self._api_key} if header else {"Authorization": f"Bearer {self._api_key}"}

    def _placed(self, path: str) -> str:
        """Return the URL of a path, whose version wins over the base's: what /v1beta serves, /v1 may not."""
        told = _VERSION.match(path)
        if told is None:
            return self._base_url + path
        own = _BASE_VERSION.search(self._base_url)
        return self._base_url[: own.start()] + path if own else self._base_url + path[told.end() :]

    def _named(self, raw: bytes) -> bytes:
        """Return the body with this route's model in it; the very bytes when it is there already."""
        try:
            body: Any = loads(raw)
        except ValueError:
            return raw
        if not isinstance(body, dict) or body.get("model") == self._model:
            return raw
        return _controls.with_model(raw, body, self._model)

    async def _chunks(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise ProviderError(f"{self._host} broke off its answer: {_said(error)}") from error
        finally:
            # A connection given up in the middle of an answer cannot be used again.
            answer.close() if not answer.content.at_eof() else answer.release()


class _Whole(aiohttp.BytesPayload):
    """A body of any size that is in memory already, handed to the connection in one go."""

    def __init__(self, body: bytes) -> None:
        super().__init__(b"")
        self._value = body
        self._size = len(body)


def _forward_proxy(base_url: str) -> str | None:
    """Return the HTTP proxy that the environment names for a provider, None for none."""
    parts = urlsplit(base_url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def proxy_passwords() -> tuple[str, ...]:
    """Return the passwords that the environment names for HTTP proxies: they go out beside the key."""
    return tuple(unquote(password) for url in getproxies().values() if (password := urlsplit(url).password))


def _lasting_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that keeps a silent connection known to routers: an answer may take many minutes."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)
    return made


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
