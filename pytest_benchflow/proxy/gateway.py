"""The front door to a model: lets one rollout in, passes its bytes on, and records every exchange."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
import time
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pytest_benchflow.contracts import EndpointReport, ModelRequest
from pytest_benchflow.dialects._common import EVENT_STREAM, INCOMPLETE
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.dialects.chat import dialect as chat
from pytest_benchflow.errors import ProviderError, ReplayMismatchError, UnansweredError
from pytest_benchflow.proxy import _controls, _effort
from pytest_benchflow.proxy._incoming import Server, UnreadableError, read_body
from pytest_benchflow.proxy._pacing import NotWantedError, Wait
from pytest_benchflow.proxy._recorder import Exchange, Recorder, parse_body
from pytest_benchflow.proxy.http import proxy_passwords
from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.records.values import now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from pytest_benchflow.contracts import Dialect, ModelResponse, Upstream
    from pytest_benchflow.proxy._pacing import Account, Pacing
    from pytest_benchflow.records.redact import Redactor
    from pytest_benchflow.records.rundir import RunDir

_MODELS_PATHS = ("/v1/models", "/models")
_LONGEST_LINE = 1024 * 1024
# Far above any model's context; it is there so that an agent cannot take the host's memory.
_LONGEST_BODY = 512 * 1024 * 1024
_CLOSING_GRACE_SECONDS = 5.0


class Gateway:
    """The gateway of this process: one endpoint per rollout, all on the loop they are opened on."""

    def __init__(self, *, longest_body: int = _LONGEST_BODY, pacing: Pacing | None = None) -> None:
        self._key = secrets.token_bytes(32)
        self._pacing = pacing  # None: calls are made as they come, whatever the provider says
        self._longest_body = longest_body  # bytes; a longer request is refused
        self._opened = 0
        self._endpoints: weakref.WeakSet[GatewayEndpoint] = weakref.WeakSet()

    async def open(
        self,
        *,
        rundir: RunDir,
        upstream: Upstream,
        redactor: Redactor,
        model: str,
        drain: bool = True,
        effort: str | None = None,
    ) -> GatewayEndpoint:
        """Open an endpoint whose exchanges go to `upstream` and are recorded in `rundir`; it closes them both.

        With `drain`, an answer that its client no longer waits for is still read to its end and recorded. `effort` is
        the reasoning effort that was asked for.
        """
        self._opened += 1
        identity = f"{rundir.path}:{self._opened}".encode()
        token = "bf-" + hmac.new(self._key, identity, hashlib.sha256).hexdigest()
        redactor.add(token, *proxy_passwords())
        endpoint = GatewayEndpoint(
            token=token,
            upstream=upstream,
            recorder=Recorder(rundir, redactor),
            model=model,
            drain=drain,
            longest_body=self._longest_body,
            account=self._pacing.account(upstream) if self._pacing else None,
            effort=effort,
        )
        self._endpoints.add(endpoint)
        return endpoint

    async def close(self) -> None:
        """Close every endpoint that is still open."""
        await asyncio.gather(*(endpoint.close() for endpoint in list(self._endpoints)))
        if self._pacing is not None:
            self._pacing.close()


class GatewayEndpoint:
    """The door to the model for one rollout (`contracts.Endpoint`)."""

    def __init__(
        self,
        *,
        token: str,
        upstream: Upstream,
        recorder: Recorder,
        model: str,
        drain: bool,
        longest_body: int,
        account: Account | None,
        effort: str | None,
    ) -> None:
        self.token = token
        self.mismatch: str | None = None
        self.rejected: str | None = None
        self._upstream = upstream
        self._recorder = recorder
        self._model = model
        self._drain = drain
        self._longest_body = longest_body
        self._account = account
        self._effort = effort
        self._efforts: dict[tuple[str | None, ...], None] = {}  # as in `_effort.STATIONS`
        self._warnings: dict[str, None] = {}
        self._exchanges: dict[asyncio.Task[Any], Exchange] = {}  # under way, by the task that serves each
        self._listeners: list[socket.socket] = []
        self._runner: web.ServerRunner | None = None
        self._port: int | None = None
        self._report: EndpointReport | None = None
        self._closing: asyncio.Task[EndpointReport] | None = None

    @property
    def open_requests(self) -> tuple[str, ...]:
        """Return the ids of the requests that have no answer yet, without those the agent gave up for another try."""
        return self._recorder.open

    @property
    def received(self) -> int:
        """Return how many requests have come so far."""
        return self._recorder.received

    @property
    def heard(self) -> Callable[[bytes], None] | None:
        """Return what hears each exchange as it ends: as in llm_trajectory.jsonl, without the request's body."""
        return self._recorder.heard

    @heard.setter
    def heard(self, heard: Callable[[bytes], None] | None) -> None:
        self._recorder.heard = heard

    async def port(self) -> int:
        """Return a loopback TCP port of the host on which this endpoint listens."""
        if self._port is None:
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            self._port = listener.getsockname()[1]
            await self.adopt(listener)
        return self._port

    async def adopt(self, listener: socket.socket) -> None:
        """Serve this endpoint on a listening socket made elsewhere (inside a sandbox's network)."""
        if self._runner is None:
            server = Server(
                self._handle,
                left=self._left,
                malformed=self._malformed,
                access_log=None,
                max_line_size=_LONGEST_LINE,
                max_field_size=_LONGEST_LINE,
                max_headers=4096,
            )
            self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
            await self._runner.setup()
        listener.setblocking(False)
        # Known before it is served: who is cancelled here still closes it.
        self._listeners.append(listener)
        await web.SockSite(self._runner, listener).start()

    async def close(self) -> EndpointReport:
        """End every open exchange as a recorded one, stop listening, void the token; safe to call twice."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> EndpointReport:
        self.token = ""
        in_flight = self._recorder.open
        # From here on no request is received (see _handle), so what is open now is all there will be to record.
        await self._stop_listening()
        if self._exchanges and self._drain:
            await asyncio.wait(tuple(self._exchanges), timeout=_CLOSING_GRACE_SECONDS)
        left = tuple(self._exchanges)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        if self._runner is not None:
            await self._runner.cleanup()
        await self._upstream.close()
        self._recorder.close()
        return EndpointReport(
            received=self._recorder.received,
            recorded=self._recorder.recorded,
            mismatch=self.mismatch,
            warnings=(*self._warnings, *self._recorder.warnings),
            in_flight=in_flight,
            efforts=tuple(dict(zip(_effort.STATIONS, each, strict=True)) for each in self._efforts),
        )

    async def _stop_listening(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
        # A connection just accepted joins its server in the loop's next turn; asyncio loses it if that is closed then.
        await asyncio.sleep(0)
        for site in tuple(self._runner.sites) if self._runner else ():
            await site.stop()
        for listener in self._listeners:
            listener.close()

    def _authorized(self, request: web.BaseRequest) -> bool:
        known = self.token.encode()
        return bool(known) and any(
            hmac.compare_digest(each.encode(errors="replace"), known) for each in _shown(request)
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._closing is not None:
            # On a connection from before the close: it ends like one that came too late.
            if request.transport is not None:
                request.transport.close()
            return web.Response(status=503)
        authorized = self._authorized(request)
        if authorized and request.method == "GET" and request.path in _MODELS_PATHS:
            listed = [{"id": self._model, "object": "model", "created": 0, "owned_by": "benchflow"}]
            return _json_answer(200, dumps({"object": "list", "data": listed}))
        task = asyncio.current_task()
        assert task is not None
        exchange = self._exchanges[task] = self._recorder.receive(request.method, request.path)
        exchange.connection = request.protocol
        try:
            return await self._answer(exchange, request, authorized=authorized)
        except asyncio.CancelledError:
            exchange.error = {"type": "closed", "message": "the endpoint was closed before the answer was complete"}
            if exchange.client_gone:
                exchange.error = {"type": "client_gone", "message": "the client left and the answer was not drained"}
            raise
        except Exception as error:
            exchange.error = {"type": "gateway", "message": f"{type(error).__name__}: {error}"}
            raise
        finally:
            del self._exchanges[task]
            self._recorder.end(exchange)

    def _malformed(self, message: str) -> web.Response:
        """Answer, and record, what came and was no HTTP: whose it is cannot be told."""
        if self._closing is not None:
            return web.Response(status=503)
        exchange = self._recorder.receive("UNKNOWN", "/")
        self._recorder.begin_without_body(exchange, None)
        answer = _refuse(exchange, None, 400, "malformed", f"what came is no request in HTTP: {message}")
        self._recorder.end(exchange)
        return answer

    def _left(self, connection: object) -> None:
        """Note that a client is gone; its exchange goes on without it, unless answers are not drained."""
        for task, exchange in tuple(self._exchanges.items()):
            if exchange.connection is connection:
                exchange.client_gone, exchange.gone_at = True, time.monotonic()
                if not self._drain:
                    task.cancel()

    async def _answer(self, exchange: Exchange, request: web.BaseRequest, *, authorized: bool) -> web.StreamResponse:
        dialect = dialect_for(request.path)
        if not authorized:
            # Whoever holds no token gets none of its bytes into memory.
            self._recorder.begin_without_body(exchange, request.content_length)
            return _refuse(exchange, dialect, 401, "unauthorized", "the API key is not this rollout's token")
        try:
            raw = await read_body(request, self._longest_body)
        except UnreadableError as error:
            self._recorder.begin(exchange, error.raw, None)
            return _refuse(exchange, dialect, error.status, "invalid_request_error", str(error))
        except ConnectionError:
            exchange.client_gone = True
            exchange.error = {"type": "client_gone", "message": "the client left before its request was whole"}
            return web.Response(status=400)
        if raw is None:
            self._recorder.begin_without_body(exchange, request.content_length)
            message = f"the request's body is longer than the {self._longest_body} bytes that are passed on"
            return _refuse(exchange, dialect, 413, "too_large", message)
        exchange.metadata["raw_sha256"] = hashlib.sha256(raw).hexdigest()
        body, text = parse_body(raw)
        if dialect is None or request.method != "POST":
            self._recorder.begin(exchange, raw, text)
            message = f"{request.method} {exchange.path} is not served here: no model API has this path"
            return _refuse(exchange, dialect, 404, "unknown_path", message)
        if dropped := _controls.body_controls(body):
            raw = _controls.edit(raw, drop=dropped)
            body, text = parse_body(raw)
        query, dropped_query = _controls.query(request.rel_url.raw_query_string)
        if dropped or dropped_query:
            exchange.metadata["stripped"] = [*dropped, *dropped_query]
        if not isinstance(body, dict):
            self._recorder.begin(exchange, raw, text)
            message = "the request's body is not a JSON object in valid UTF-8"
            return _refuse(exchange, dialect, 400, "invalid_request_error", message)
        recorded = self._recorder.begin(exchange, raw, text)
        path = f"{request.path}?{query}" if query else request.path
        streamed = dialect.streams(path, body)
        exchange.stream = streamed is not None
        exchange.metadata |= _effort.sent(dialect, body, self._effort)
        # A recording holds no secret, so a request is compared with it, and shown, as it would be recorded.
        body_sent = recorded if self._upstream.replays else raw
        named = body.get("model")
        forwarded = ModelRequest(
            request.method,
            path,
            _controls.request_headers(request.headers),
            body_sent,
            named if isinstance(named, str) else None,
        )
        return await self._forward(exchange, request, forwarded, dialect, streamed)

    async def _forward(
        self,
        exchange: Exchange,
        request: web.BaseRequest,
        forwarded: ModelRequest,
        dialect: Dialect,
        streamed: str | None,
    ) -> web.StreamResponse:
        """Send a request when it is its turn, and pass its answer on."""
        wait = Wait(lambda: not exchange.client_gone and self._closing is None)
        try:
            # Where any number may be open there is nothing to hold.
            async with self._account.slot(wait) if self._account and self._account.limit else nullcontext():
                return await self._passed(exchange, request, forwarded, dialect, streamed, wait=wait)
        except NotWantedError:
            kind = "client_gone" if exchange.client_gone else "closed"
            exchange.error = {"type": kind, "message": "nobody waited for it any more when it was to be sent"}
            return web.Response(status=503)
        finally:
            exchange.metadata.update(wait.metadata())

    async def _passed(
        self,
        exchange: Exchange,
        request: web.BaseRequest,
        forwarded: ModelRequest,
        dialect: Dialect,
        streamed: str | None,
        *,
        wait: Wait,
    ) -> web.StreamResponse:
        try:
            if self._account is None:
                answer = await self._upstream.send(forwarded)
            else:
                answer = await self._account.send(lambda: self._upstream.send(forwarded), wait)
        except ReplayMismatchError as error:
            self.mismatch = self.mismatch or str(error)
            return _refuse(exchange, dialect, 409, "replay_mismatch", str(error))
        except ProviderError as error:
            if isinstance(error, UnansweredError):
                exchange.metadata["upstream_unanswered"] = True
            return _refuse(exchange, dialect, 502, "provider", str(error))
        exchange.metadata.update(answer.metadata)
        if answer.status != 403:  # that may be about this request alone
            self.rejected = self.rejected or answer.metadata.get("rejected")
        self._warnings.update(dict.fromkeys(answer.metadata.get("warnings", ())))
        headers = _controls.answer_headers(answer.headers)
        kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
        try:
            # Some servers answer in one piece where a stream was asked for, and say so by the type.
            if kind.startswith(EVENT_STREAM) or (
                streamed and answer.status == 200 and ("json" not in kind or "json" in streamed)
            ):
                return await _pass_stream(exchange, request, answer, headers, dialect)
            return await _pass_whole(exchange, answer, headers, dialect)
        finally:
            close = getattr(answer.chunks, "aclose", None)
            if close is not None:
                await close()
            # With what is known only at the end of an answer.
            exchange.metadata.update(answer.metadata)
            self._warnings.update(dict.fromkeys(_effort.ended(dialect, exchange.metadata, exchange.answer)))
            if evidence := exchange.metadata.get("effort"):
                self._efforts[tuple(evidence[name] for name in _effort.STATIONS)] = None


def _shown(request: web.BaseRequest) -> Iterator[str]:
    """Yield what a client may mean as its token."""
    headers = request.headers
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield bearer.strip()
    yield from (headers[name] for name in ("x-api-key", "x-goog-api-key", "api-key") if name in headers)
    if "key" in (query := request.rel_url.query):
        yield query["key"]


async def _pass_whole(
    exchange: Exchange, answer: ModelResponse, headers: dict[str, str], dialect: Dialect
) -> web.StreamResponse:
    try:
        raw = b"".join([chunk async for chunk in answer.chunks])
    except ProviderError as error:
        exchange.metadata["upstream_status"] = answer.status
        return _refuse(exchange, dialect, 502, "provider", str(error))
    _note_answer(exchange, answer.status, raw)
    return web.Response(status=answer.status, body=raw, headers=headers)


async def _pass_stream(
    exchange: Exchange, request: web.BaseRequest, answer: ModelResponse, headers: dict[str, str], dialect: Dialect
) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=headers)
    collected: list[bytes] = []
    arrived: float | None = None
    broken: str | None = None
    try:
        await _deliver(exchange, response.prepare, request)
        async for chunk in answer.chunks:
            collected.append(chunk)
            arrived = time.monotonic()
            await _deliver(exchange, response.write, chunk)
    except ProviderError as error:
        broken = str(error)
    finally:
        if arrived is not None:
            exchange.metadata["last_byte_ms"] = round((arrived - exchange.begun) * 1000, 3)
        _note_stream(exchange, answer.status, b"".join(collected), dialect, broken)
    if broken is not None and request.transport is not None:
        # Without its last chunk the body ends for the client as it ended here: cut.
        request.transport.close()
    return response


async def _deliver(exchange: Exchange, write: Callable[..., Awaitable[object]], argument: object) -> None:
    """Write to the client; once it has left, the exchange goes on without it."""
    if exchange.client_gone:
        return
    try:
        await write(argument)
    except ConnectionError:
        exchange.client_gone = True


def _note_answer(exchange: Exchange, status: int, raw: bytes) -> None:
    exchange.status, exchange.answered_at = status, now()
    exchange.metadata["response_sha256"] = hashlib.sha256(raw).hexdigest()
    _, text = parse_body(raw)
    if text is None and raw:
        text = dumps(raw.decode(errors="backslashreplace"))
        exchange.metadata["response_body"] = "text"
    exchange.answer = text or b"null"


def _note_stream(exchange: Exchange, status: int, raw: bytes, dialect: Dialect, broken: str | None) -> None:
    exchange.status, exchange.answered_at = status, now()
    exchange.metadata["response_sha256"] = hashlib.sha256(raw).hexdigest()
    body, reason = dialect.assemble(raw)
    exchange.answer = dumps(body)
    if broken or reason:
        exchange.error = {"type": INCOMPLETE, "message": broken or str(reason)}


def _refuse(exchange: Exchange, dialect: Dialect | None, status: int, kind: str, message: str) -> web.Response:
    """Answer in the format's own shape that the gateway itself ends this exchange, and note why."""
    raw = (dialect or chat).error_body(status, message, kind)
    _note_answer(exchange, status, raw)
    exchange.error = {"type": kind, "message": message}
    answer = _json_answer(status, raw)
    if status != 502:
        answer.headers["x-should-retry"] = "false"
    return answer


def _json_answer(status: int, raw: bytes) -> web.Response:
    return web.Response(status=status, body=raw, content_type="application/json")
