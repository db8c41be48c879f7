"""Write one line per exchange, as it ends, from the bytes that passed: bodies are not built anew."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.journal import Journal
from pytest_benchflow.records.jsontext import dumps, loads
from pytest_benchflow.records.pending import Pending
from pytest_benchflow.records.values import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchflow.records.redact import Redactor
    from pytest_benchflow.records.rundir import RunDir


# A client's next request may be seen before the end of the connection that it left.
_SLACK_SEC = 1.0


@dataclass(slots=True)
class Exchange:
    """One request and what became of it."""

    request_id: str
    seq: int
    method: str
    path: str
    timestamp: str = field(default_factory=now)
    begun: float = field(default_factory=time.monotonic)
    request: tuple[bytes, ...] = ()  # the JSON text of the line's request, in parts
    status: int | None = None
    answered_at: str | None = None
    answer: bytes = b"null"  # the JSON text of the response's body
    error: dict[str, str] | None = None
    stream: bool = False
    client_gone: bool = False
    gone_at: float | None = None  # as `begun`: when its client left
    connection: object = None  # that it came by
    metadata: dict[str, Any] = field(default_factory=dict)


def parse_body(raw: bytes) -> tuple[Any, bytes | None]:
    """Return a body's value and its JSON text on one line; (None, None) when it is not strict JSON."""
    try:
        # Two arrays around it: a body nested so deep that its line could not be read back is no JSON here.
        ((value,),) = loads(b"[[" + raw + b"]]")
    except ValueError:
        return None, None
    return value, raw.strip().replace(b"\n", b" ").replace(b"\r", b" ")


class Recorder:
    """The two journals of one rollout; what the disk refuses is kept and tried again with the next line."""

    def __init__(self, rundir: RunDir, redactor: Redactor) -> None:
        self.received = 0
        self.heard: Callable[[bytes], None] | None = None  # see `GatewayEndpoint.heard`
        self.warnings: list[str] = []
        self._redactor = redactor
        self._prefix = secrets.token_hex(4)
        self._journal = Journal(rundir.llm)
        self._pending = Pending(rundir.llm_pending)
        self._open: dict[str, Exchange] = {}
        self._latest: Exchange | None = None
        self._backlog: list[tuple[bytes, ...]] = []  # lines in parts

    @property
    def recorded(self) -> int:
        """Return the number of lines that reached the disk."""
        return self._journal.count

    @property
    def open(self) -> tuple[str, ...]:
        """Return the ids of the exchanges that have not ended, without those given up for a later request."""
        return tuple(sorted(each.request_id for each in self._open.values() if not self._given_up(each)))

    def receive(self, method: str, path: str) -> Exchange:
        """Count a request; from here on it must end as one line."""
        seq = self.received
        self.received += 1
        exchange = Exchange(f"{self._prefix}-{seq:06d}", seq, method, self._redactor.text(path))
        self._open[exchange.request_id] = self._latest = exchange
        return exchange

    def begin(self, exchange: Exchange, raw: bytes, body: bytes | None) -> bytes:
        """Note a request as begun and return its body as recorded.

        `body` is its JSON text, None for anything else, which is kept as text.
        """
        recorded = self._note_request(exchange, raw, body)
        self._note_pending(exchange)
        return recorded

    def begin_without_body(self, exchange: Exchange, size: int | None) -> None:
        """Note a request as begun whose body was not taken in; `size` is its length in bytes as far as it was told."""
        exchange.metadata |= {"request_body": "left out", "request_bytes": size}
        self._note_request(exchange, b"", None)
        self._note_pending(exchange)

    def _given_up(self, exchange: Exchange) -> bool:
        """Tell whether a client left and asked again, or something else: nobody waits for that answer."""
        later = self._latest
        if exchange.gone_at is None or later is None or later.seq <= exchange.seq:
            return False
        return later.begun > exchange.gone_at - _SLACK_SEC

    def _note_pending(self, exchange: Exchange) -> None:
        metadata = dumps({"started_seq": exchange.seq})
        try:
            self._pending.append_line(b'{"request":', *exchange.request, b',"metadata":', metadata, b"}")
        except OSError as error:
            self._warn(f"{self._pending.path.name} could not be written: {error.strerror or error}")

    def end(self, exchange: Exchange) -> None:
        """Write the exchange's line. What the disk refuses is tried again, now, later and at the close."""
        if exchange.request_id not in self._open:
            return
        del self._open[exchange.request_id]
        if not exchange.request:
            self._note_request(exchange, b"", None)
        before = self._redactor.count
        answer = self._redactor.json(exchange.answer)
        error = self._redactor.value(exchange.error)
        if "upstream" in exchange.metadata:  # a whole request, in a provider's own format
            exchange.metadata["upstream"] = self._redactor.value(exchange.metadata["upstream"])
        self._count_redactions(exchange, before)
        response: tuple[bytes, ...] = (b"null",)
        if exchange.status is not None:
            head = {"status_code": exchange.status, "timestamp": exchange.answered_at}
            response = (dumps(head)[:-1], b',"body":', answer, b"}")
        tail = {
            "error": error,
            "duration_ms": round((time.monotonic() - exchange.begun) * 1000, 3),
            "metadata": {
                "started_seq": exchange.seq,
                "stream": exchange.stream,
                "client_gone": exchange.client_gone,
                **exchange.metadata,
            },
        }
        line = (b'{"request":', *exchange.request, b',"response":', *response, b",", dumps(tail)[1:])
        self._backlog.append(line)
        self._flush()
        if self.heard:
            request = {"path": exchange.path, "body": True if exchange.method == "POST" else None}
            self.heard(b"".join((b'{"request":', dumps(request), b',"response":', *response, b",", dumps(tail)[1:])))

    def close(self) -> None:
        """Try once more to write what is left, and close the journals."""
        self._flush()
        if self._backlog:
            some = "1 exchange" if len(self._backlog) == 1 else f"{len(self._backlog)} exchanges"
            self._warn(f"{some} could not be written to {self._journal.path.name}")
        self._journal.close()
        self._pending.close()
        if not self._open and not self._backlog:
            self._pending.path.unlink(missing_ok=True)

    def _note_request(self, exchange: Exchange, raw: bytes, body: bytes | None) -> bytes:
        if body is None:
            body = b"null"
            if raw:
                body = dumps(raw.decode(errors="backslashreplace"))
                exchange.metadata["request_body"] = "text"
        before = self._redactor.count
        head = {
            "request_id": exchange.request_id,
            "timestamp": exchange.timestamp,
            "method": exchange.method,
            "path": exchange.path,
        }
        recorded = self._redactor.json(body)
        exchange.request = (dumps(head)[:-1], b',"body":', recorded, b"}")
        self._count_redactions(exchange, before)
        return recorded

    def _flush(self) -> None:
        for _ in range(2):
            try:
                while self._backlog:
                    self._journal.append_line(*self._backlog[0])
                    del self._backlog[0]
                break
            except OSError as error:
                self._warn(f"{self._journal.path.name} could not be written: {error.strerror or error}")
        if not self._open and not self._backlog:
            self._forget_pending()

    def _forget_pending(self) -> None:
        try:
            self._pending.empty()
        except OSError as error:
            self._warn(f"{self._pending.path.name} could not be emptied: {error.strerror or error}")

    def _count_redactions(self, exchange: Exchange, before: int) -> None:
        if self._redactor.count > before:
            found = self._redactor.count - before
            exchange.metadata["redactions"] = exchange.metadata.get("redactions", 0) + found

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
