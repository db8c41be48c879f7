"""Take requests in: their bodies whole and decoded, and word of what is no HTTP."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_ZLIB = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_IN_A_THREAD = 1024 * 1024
_WINDOW = 16 * 1024


class UnreadableError(ValueError):
    """A body is not in a form that can be read here; `raw` is what came, `status` the answer."""

    def __init__(self, message: str, raw: bytes, status: int) -> None:
        super().__init__(message)
        self.raw = raw
        self.status = status


class Server(web.Server):
    """A server that says when a client leaves, rather than ending at once what was under way for it.

    It says too what came that is no HTTP: `malformed` answers that. Bodies stay encoded as they came.
    """

    def __init__(
        self,
        handle: Callable[..., Awaitable[web.StreamResponse]],
        *,
        left: Callable[[object], None],
        malformed: Callable[[str], web.Response],
        **more: Any,
    ) -> None:
        super().__init__(handle, auto_decompress=False, **more)
        self._left = left
        self.malformed = malformed

    def __call__(self) -> RequestHandler:
        """Return what serves a new connection."""
        return _Handler(self, loop=self._loop, **self._kwargs)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Pass on which connection is gone."""
        super().connection_lost(handler, exc)
        self._left(handler)


class _Handler(RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what no handler was asked to."""
        server = self._manager
        if not isinstance(exc, HttpProcessingError) or not isinstance(server, Server):
            return super().handle_error(request, status, exc, message)
        answer = server.malformed(" ".join((message or str(exc)).split()))
        answer.force_close()
        return answer


async def read_body(request: web.BaseRequest, limit: int) -> bytes | None:
    """Return the whole body, decoded; None, without reading on, once it is longer than `limit` bytes.

    Raises: ConnectionError when the client left before its end, UnreadableError for one that cannot be decoded.
    """
    if (request.content_length or 0) > limit:
        return None
    try:
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        chunks, size = [], 0
        while chunk := await request.content.readany():
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                return None
    except web.RequestPayloadError as error:
        raise ConnectionError(str(error)) from error
    raw = b"".join(chunks)
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if not raw or encoding in ("", "identity"):
        return raw
    if len(raw) < _IN_A_THREAD:
        return decoded(raw, encoding, limit)
    return await asyncio.to_thread(decoded, raw, encoding, limit)


def decoded(raw: bytes, encoding: str, limit: int) -> bytes | None:
    """Return a body without its encoding, None when it would be longer than `limit` bytes. Raises: UnreadableError."""
    if encoding not in _ZLIB:
        raise UnreadableError(
            f"the request's body is encoded as {encoding!r}, which is not read here; send it as it is, or as gzip or "
            "deflate",
            raw,
            415,
        )
    # What is called deflate comes with a head of zlib's, and from some clients without.
    bare = encoding == "deflate" and (len(raw) < 2 or raw[0] & 15 != 8 or int.from_bytes(raw[:2], "big") % 31)
    parts, size, place, view = [], 0, 0, memoryview(raw)
    said = f"the request's body is not the {encoding} that it says"
    while place < len(raw):
        member = zlib.decompressobj(-15 if bare else _ZLIB[encoding])
        while not member.eof:
            if place == len(raw):
                raise UnreadableError(f"{said}: it ends in its middle", raw, 400)
            # A window at a time: what follows a member is copied with it, and of members there may be very many.
            window = view[place : place + _WINDOW]
            try:
                part = member.decompress(window, limit - size + 1)
            except zlib.error as error:
                raise UnreadableError(f"{said}: {error}", raw, 400) from None
            size += len(part)
            if size > limit:
                return None
            parts += [part] if part else []
            place += len(window) - len(member.unused_data)
    return b"".join(parts)
