"""Carry JSON-RPC messages over a process's stdio, whatever else the process prints.

Lines may be very long; what is not JSON-RPC is kept and counted; stderr is always drained.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.agents._logs import CappedLog
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.records.jsontext import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_benchflow.contracts import Process

# What has no end by then is not waited for: an agent must not take the host's memory.
LONGEST_LINE = 256 << 20
_MARK = b'"jsonrpc"'
# So far into a line a message names its protocol: one whose end was lost would be waited for in vain.
_HEAD = 1 << 16
# Braces before the mark that may open a message which other text of its line begins.
_BRACES = 16
_READ_SIZE = 1 << 18
_PIECE = 1 << 20
_TAIL = 4000
_DRAIN_SEC = 2.0


class LineSplitter:
    """Cut a byte stream into lines of any length; a long line comes in pieces unless it may be a message."""

    def __init__(self, *, messages: bool = True) -> None:
        self.size = 0  # bytes that have no newline yet
        self._messages = messages
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each line that `data` completes, with its newline."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._parts.append(data[start : end + 1])
            yield self.rest()
            start = end + 1
        if start < len(data):
            self._parts.append(data[start:])
            self.size += len(data) - start
        if self.size > _PIECE and not (self._messages and self._parts[0].lstrip().startswith(b"{")):
            yield from self._whole_words()

    def rest(self) -> bytes:
        """Return what has no newline yet, and forget it."""
        line = b"".join(self._parts)
        self.forget()
        return line

    @property
    def claims_a_message(self) -> bool:
        """Tell whether what has no newline yet begins like a message of the protocol."""
        head = b"".join(self._parts[:2])[:_HEAD] if self._parts else b""
        return head.lstrip().startswith(b"{") and _MARK in head

    def forget(self) -> int:
        """Drop what has no newline yet and return how many bytes it was."""
        size, self.size, self._parts = self.size, 0, []
        return size

    def _whole_words(self) -> Iterator[bytes]:
        # Cut at white space, so that a secret is never split where redaction would miss it. Only the newest part is
        # looked at: to search all of a long word again with each read would hold up every rollout.
        newest = self._parts[-1]
        cut = max(newest.rfind(b" "), newest.rfind(b"\t")) + 1
        if not cut:
            return
        self._parts[-1] = newest[:cut]
        yield self.rest()
        if cut < len(newest):
            self._parts, self.size = [newest[cut:]], len(newest) - cut


def parse_message(line: bytes) -> dict[str, Any] | None:
    """Return the JSON-RPC message a line holds, None when it is something else.

    Undecodable bytes and lone surrogates become replacement characters: an agent's bad text must not end its session.
    """
    if not line.lstrip().startswith(b"{"):
        return None
    text = line.decode("utf-8", "replace")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            value = _without_surrogates(json.loads(text))
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return None
    known = isinstance(value.get("id"), int | str | None) and isinstance(value.get("error"), dict | None)
    addressed = isinstance(value["method"], str) if "method" in value else "id" in value
    return value if known and addressed else None


def embedded_message(line: bytes) -> dict[str, Any] | None:
    """Return the request or response at the end of a line that other text begins, None when there is none.

    Without it somebody would wait for ever. A notification is not looked for: a log may quote one.
    """
    mark = line.find(_MARK)
    if mark < 0:
        return None
    start = max(0, mark - _HEAD)
    for _ in range(_BRACES):
        start = line.find(b"{", start, mark)
        if start < 0:
            return None
        message = parse_message(line[start:])
        if message is not None:
            return message if "id" in message else None
        start += 1
    return None


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


class Wire:
    """A message transport over a live process, in the shape that `acp.connection.Connection` takes.

    `observe` sees every incoming message in the order of arrival. Logs go to `log_dir`: jsonrpc.jsonl both
    directions, stdout.txt what was no message, stderr.txt; each keeps its head. `fault` says why no more is read,
    `broken` that it is not the agent's fault.
    """

    def __init__(
        self, process: Process, log_dir: Path, redact: Callable[[Any], Any], observe: Callable[[dict[str, Any]], None]
    ) -> None:
        self.last_activity = time.monotonic()
        self.stray_lines = 0
        self.stray_bytes = 0
        self.stderr_tail = b""
        self.fault: str | None = None
        self.broken: SandboxError | None = None
        self.ended = asyncio.Event()
        self._process = process
        self._redact = redact
        self._observe = observe
        self._splitter = LineSplitter()
        self._ready: deque[dict[str, Any]] = deque()
        self._eof = False
        self._writing = asyncio.Lock()
        self._raw = CappedLog(log_dir / "jsonrpc.jsonl", _as_json)
        self._stray = CappedLog(log_dir / "stdout.txt")
        self._stderr = asyncio.create_task(self._drain_stderr(log_dir / "stderr.txt"))

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message. Raises: ConnectionError when the process is gone."""
        line = orjson.dumps(message)
        async with self._writing:
            await self._process.write(line + b"\n")
        self._keep("out", message, len(line))

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None at the end of stdout."""
        while not self._ready and not self._eof:
            try:
                data = await self._process.read(_READ_SIZE)
            except SandboxError as error:
                self.broken, data = error, b""
            self._eof = not data
            try:
                for line in self._splitter.feed(data) if data else [self._splitter.rest()]:
                    self._take(line)
            except OSError as error:
                self.fault = f"could not be recorded ({error.strerror or error})"
                self._eof = True
            if self._splitter.size > LONGEST_LINE:
                self._pass_over()
        if self._ready:
            return self._ready.popleft()
        self.ended.set()
        return None

    async def close(self) -> None:
        """Do nothing: the connection calls this while the process may still talk; `finish` closes the logs."""

    async def finish(self) -> None:
        """Wait until everything a dead process had printed is kept, then close the log files."""
        try:
            async with asyncio.timeout(_DRAIN_SEC):
                await self.ended.wait()
                await self._stderr
        except TimeoutError:
            self._stderr.cancel()
        self._stray.close()
        self._raw.close()

    def _pass_over(self) -> None:
        """Count a line that is too long to keep; whatever comes of it yet is looked at as a line of its own."""
        if self._splitter.claims_a_message:
            self.fault = f"began a message of over {LONGEST_LINE >> 20} MiB"
            self._eof = True
        size = self._splitter.forget()
        self.stray_bytes += size
        self._stray.leave_out(size)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        message = parse_message(line)
        if message is None:
            self._stray_line(line)
            message = embedded_message(line)
            if message is None:
                return
        try:
            self._keep("in", message, len(line))
            self._observe(message)
        except RecursionError:
            self._stray_line(line)
            return
        self.last_activity = time.monotonic()
        self._ready.append(message)

    def _stray_line(self, line: bytes) -> None:
        self.stray_lines += line.endswith(b"\n") or self._eof
        self.stray_bytes += len(line)
        _write_text(self._stray, line, self._redact)

    def _keep(self, direction: str, message: dict[str, Any], size: int) -> None:
        if self._raw.full:
            self._raw.leave_out(size)
        else:
            line = dumps(self._redact({"dir": direction, "t": time.time(), "msg": message}))
            self._raw.write(line + b"\n", whole=True)

    async def _drain_stderr(self, path: Path) -> None:
        splitter = LineSplitter(messages=False)
        with CappedLog(path) as log:
            while data := await self._process.read_stderr(_READ_SIZE):
                self.stderr_tail = (self.stderr_tail + data)[-_TAIL:]
                for line in splitter.feed(data):
                    _write_text(log, line, self._redact)
                if splitter.size > LONGEST_LINE:
                    log.leave_out(splitter.forget())
            _write_text(log, splitter.rest(), self._redact)


def _as_json(times: int, size: int) -> bytes:
    return dumps({"dir": "left_out", "messages": times, "bytes": size}) + b"\n"


def _write_text(log: CappedLog, line: bytes, redact: Callable[[Any], Any]) -> None:
    if log.full:
        log.leave_out(len(line))
    else:
        log.write(str(redact(line.decode("utf-8", "backslashreplace"))).encode())
