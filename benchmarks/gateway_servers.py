"""The servers that `benchmarks.gateway` measures between: a provider that costs little, and our gateway before it.

    python -m benchmarks.gateway_servers provider
    python -m benchmarks.gateway_servers gateway BASE_URL DIRECTORY ENDPOINTS

Each prints one line of JSON when it listens, and ends with its standard input; the gateway then prints its reports.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from pytest_benchflow.proxy._pacing import Pacing
from pytest_benchflow.proxy._routed import RoutedUpstream, Way
from pytest_benchflow.proxy.gateway import Gateway
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rundir import RunDir

MODEL = "measured"
EVENTS = 200
PAUSE_SEC = 0.025
_USAGE = {"prompt_tokens": 25_000, "completion_tokens": 400, "total_tokens": 25_400}
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def whole_answer() -> bytes:
    """Return an HTTP answer of 2 kB: words, and a call of a tool."""
    call = {"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}
    message = {"role": "assistant", "content": "It is done. " * 140, "tool_calls": [call]}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": choices}
    raw = json.dumps({**body, "usage": _USAGE}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def stream_events() -> list[bytes]:
    """Return the events of a stream, each as a chunk on the wire."""
    same = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    deltas: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": f"word {number} "}, "finish_reason": None}]}
        for number in range(EVENTS - 2)
    ]
    deltas.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": _USAGE})
    events = [b"data: " + json.dumps({**same, **delta}).encode() + b"\n\n" for delta in deltas]
    return [f"{len(event):x}\r\n".encode() + event + b"\r\n" for event in [*events, b"data: [DONE]\n\n"]]


class Provider(asyncio.Protocol):
    """Answers each request of a connection with the same bytes, as a stream where one is asked for."""

    whole = whole_answer()
    events = stream_events()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with an empty buffer."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = bytearray()
        self._wanted = 0
        self._streaming: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        """Answer when a request is whole."""
        self._buffer += data
        if not self._wanted:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            told = _LENGTH.search(self._buffer, 0, end)
            self._wanted = end + 4 + (int(told[1]) if told else 0)
        if len(self._buffer) < self._wanted:
            return
        streamed = b'"stream":true' in self._buffer
        self._buffer.clear()
        self._wanted = 0
        if streamed:
            self._streaming = asyncio.ensure_future(self._stream())
        else:
            self._transport.write(self.whole)

    async def _stream(self) -> None:
        kind = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._transport.write(b"HTTP/1.1 200 OK\r\n" + kind)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number, event in enumerate(self.events, 1):
            self._transport.write(event)
            await asyncio.sleep(begun + number * PAUSE_SEC - loop.time())
        self._transport.write(b"0\r\n\r\n")


async def _until_end_of_input() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def provider() -> None:
    """Serve until standard input ends."""
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await _until_end_of_input()
    server.close()


async def gateway(base_url: str, directory: Path, endpoints: int) -> None:
    """Serve as in a session until standard input ends, then close the endpoints and tell what passed through each."""
    doors = Gateway(pacing=Pacing(directory / "pacing"))
    way = Way(MODEL, {"chat": base_url}, key="a-key-of-the-provider", key_source="MEASURED_API_KEY")
    opened = [
        await doors.open(
            rundir=RunDir(directory / str(number)).create(),
            upstream=RoutedUpstream(way),
            redactor=Redactor(["a-key-of-the-provider", "another-secret-of-the-host"]),
            model=MODEL,
        )
        for number in range(endpoints)
    ]
    shown = [{"port": await endpoint.port(), "token": endpoint.token} for endpoint in opened]
    print(json.dumps({"endpoints": shown}), flush=True)
    await _until_end_of_input()
    reports = [await endpoint.close() for endpoint in opened]
    print(json.dumps([[report.received, report.recorded, list(report.warnings)] for report in reports]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "provider":
        asyncio.run(provider())
    else:
        asyncio.run(gateway(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
