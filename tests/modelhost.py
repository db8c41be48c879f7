"""Serve invented models from a thread of this process, for tests that start pytest."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_benchflow.proxy.serve import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Upstream


class Reply(NamedTuple):
    """What a provider answers."""

    body: dict[str, Any]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Provider(ThreadingHTTPServer):
    """A provider of chat completions of a test's own, which says in `reply` what it answers; `asked` is a count."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked = 0

    @property
    def model(self) -> str:
        """Return the model's name with its address, as --benchflow-model takes it."""
        return f"invented/scripted@http://127.0.0.1:{self.server_address[1]}/v1"

    def reply(self, body: dict[str, Any], request: BaseHTTPRequestHandler) -> Reply:
        """Return the answer to a request."""
        raise NotImplementedError

    def completion(
        self, body: dict[str, Any], call: tuple[str, dict[str, str]], *, text: str, usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return an answer that makes a call where the request has tools, and says a text where it has none."""
        results = sum(message["role"] == "tool" for message in body["messages"])
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if "tools" in body:
            message["tool_calls"] = [{"id": f"c{results}", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tools" in body else "stop"}
        answer = {"id": f"r{self.asked}", "object": "chat.completion", "model": "scripted", "choices": [choice]}
        return answer if usage is None else {**answer, "usage": usage}


class _Answer(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked += 1
        reply = self.server.reply(body, self)
        raw = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in (("Content-Type", "application/json"), *reply.headers, ("Content-Length", str(len(raw)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        pass


P = TypeVar("P", bound=Provider)


@contextmanager
def providing(provider: P) -> Iterator[P]:
    """Let a provider answer, and yield it."""
    with provider:
        thread = threading.Thread(target=provider.serve_forever)
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()


@contextmanager
def served(upstream: Upstream) -> Iterator[str]:
    """Serve an upstream and yield its base URL, which ends in /v1."""
    loop, over = asyncio.new_event_loop(), asyncio.Event()
    urls: list[str] = []
    ready = threading.Event()

    async def serve() -> None:
        async with serving(upstream) as url:
            urls.append(url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
