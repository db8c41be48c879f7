"""See what a client library really sends and gets: each HTTP call of the worker, below everything that rewrites it."""

from __future__ import annotations

import importlib
import re
import zlib
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Both generations of the library may be there, each used by another package.
_LIBRARIES = ("httpx", "httpx2")
_QUERY_KEY = re.compile(r"(?<=[?&])(key|api[-_]key|access_token)=[^&#]*", re.IGNORECASE)
_COMPRESSED = re.compile(r"\s*(x-)?(gzip|deflate)\s*", re.IGNORECASE)
_EITHER = 32 + zlib.MAX_WBITS  # zlib finds out which of the two it is


@dataclass(slots=True)
class Call:
    """One HTTP call; `status` is None while there is no answer."""

    method: str
    url: str  # without a credential in its query
    request: bytes
    status: int | None = None
    sent: bool = True  # no connection was refused
    headers: dict[str, str] = field(default_factory=dict)  # of the answer, in small letters
    chunks: list[bytes] = field(default_factory=list)
    broken: bool = False  # the connection ended before the answer did

    @property
    def answer(self) -> bytes:
        """Return what has come of the answer's body so far, decoded."""
        raw = b"".join(self.chunks)
        # Some servers compress whatever they are asked.
        if _COMPRESSED.fullmatch(self.headers.get("content-encoding", "")):
            with suppress(zlib.error):
                return zlib.decompressobj(_EITHER).decompress(raw)
        return raw

    @property
    def leads_to(self) -> str | None:
        """Return where an answer sends its client, None for one that does not."""
        return self.headers.get("location") if 300 <= (self.status or 0) < 400 else None


# The list is shared by all tasks and threads of one translated request, which copy the context it was set in.
calls: ContextVar[list[Call] | None] = ContextVar("calls", default=None)


def watch() -> None:
    """Note every call of this process from now on in `calls` of its context."""
    for name in _LIBRARIES:
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        _watch(library)


def _watch(library: Any) -> None:
    transport = library.AsyncHTTPTransport
    send = transport.handle_async_request

    class Noted(library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, stream: Any, call: Call) -> None:
            self._stream, self._call = stream, call

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for chunk in self._stream:
                    self._call.chunks.append(chunk)
                    yield chunk
            except Exception:
                self._call.broken = True
                raise

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def handle(self: Any, request: Any) -> Any:
        noted = calls.get()
        if noted is None:
            return await send(self, request)
        call = Call(request.method, _QUERY_KEY.sub(r"\1=(left out)", str(request.url)), await request.aread())
        noted.append(call)
        # What is noted must be readable, and decoding is the client's.
        request.headers["accept-encoding"] = "identity"
        try:
            answer = await send(self, request)
        except (library.ConnectError, library.ConnectTimeout):
            call.sent = False
            raise
        call.status = answer.status_code
        call.headers = {key.lower(): value for key, value in answer.headers.items()}
        answer.stream = Noted(answer.stream, call)
        if call.leads_to is not None and _origin(request.url) != _origin(request.url.join(call.leads_to)):
            # The library would go there with all keys but one in the header Authorization.
            del answer.headers["location"]
        return answer

    transport.handle_async_request = handle


def _origin(url: Any) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
