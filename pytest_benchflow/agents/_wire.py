"""Carry JSON-RPC messages over a process's stdio, whatever else the process prints.

Lines have no length limit; what is not JSON-RPC is kept and counted; stderr is always drained.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.records.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedWriter
    from pathlib import Path

    from pytest_benchflow.contracts import Process

_READ_SIZE = 1 << 18
_PIECE = 1 << 20
_TAIL = 4000
_DRAIN_SEC = 2.0


class LineSplitter:
    """Cut a byte stream into lines of any length; a long line that cannot be JSON comes in pieces."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each line that `data` completes, with its newline."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._parts.append(data[start : end + 1])
            yield self.rest()
            start = end + 1
        if start < len(data):
            self._parts.append(data[start:])
            self._size += len(data) - start
        if self._size > _PIECE and not self._parts[0].lstrip().startswith(b"{"):
            yield from self._whole_words()

    def rest(self) -> bytes:
        """Return what has no newline yet, and forget it."""
        line = b"".join(self._parts)
        self._parts, self._size = [], 0
        return line

    def _whole_words(self) -> Iterator[bytes]:
        # Cut at white space, so that a secret is never split where redaction would miss it.
        text = self.rest()
        cut = max(text.rfind(b" "), text.rfind(b"\t")) + 1
        if cut:
            yield text[:cut]
        if cut < len(text):
            self._parts, self._size = [text[cut:]], len(text) - cut


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
    directions, stdout.txt what was no message, stderr.txt.
    """

    def __init__(
        self, process: Process, log_dir: Path, redact: Callable[[Any], Any], observe: Callable[[dict[str, Any]], None]
    ) -> None:
        self.last_activity = time.monotonic()
        self.stray_lines = 0
        self.stray_bytes = 0
        self.stderr_tail = b""
        self.ended = asyncio.Event()
        self._process = process
        self._redact = redact
        self._observe = observe
        self._splitter = LineSplitter()
        self._ready: deque[dict[str, Any]] = deque()
        self._eof = False
        self._writing = asyncio.Lock()
        self._raw = Journal(log_dir / "jsonrpc.jsonl", redact)
        log_dir.mkdir(parents=True, exist_ok=True)
        self._stray = (log_dir / "stdout.txt").open("ab")
        self._stderr = asyncio.create_task(self._drain_stderr(log_dir / "stderr.txt"))

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message. Raises: ConnectionError when the process is gone."""
        line = orjson.dumps(message)
        async with self._writing:
            await self._process.write(line + b"\n")
        self._raw.append({"dir": "out", "t": time.time(), "msg": message})

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None at the end of stdout."""
        while not self._ready and not self._eof:
            data = await self._process.read(_READ_SIZE)
            self._eof = not data
            for line in self._splitter.feed(data) if data else [self._splitter.rest()]:
                self._take(line)
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

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        message = parse_message(line)
        if message is None:
            self.stray_lines += line.endswith(b"\n") or self._eof
            self.stray_bytes += len(line)
            _write_text(self._stray, line, self._redact)
            return
        self.last_activity = time.monotonic()
        self._raw.append({"dir": "in", "t": time.time(), "msg": message})
        self._observe(message)
        self._ready.append(message)

    async def _drain_stderr(self, path: Path) -> None:
        splitter = LineSplitter()
        with path.open("ab") as file:
            while data := await self._process.read_stderr(_READ_SIZE):
                self.stderr_tail = (self.stderr_tail + data)[-_TAIL:]
                for line in splitter.feed(data):
                    _write_text(file, line, self._redact)
            _write_text(file, splitter.rest(), self._redact)


def _write_text(file: BufferedWriter, line: bytes, redact: Callable[[Any], Any]) -> None:
    file.write(str(redact(line.decode("utf-8", "backslashreplace"))).encode())
    file.flush()
