"""A real gateway endpoint with a real client before it, for tests."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from pytest_benchflow.proxy.gateway import Gateway
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
    from pathlib import Path

    from pytest_benchflow.contracts import Upstream
    from pytest_benchflow.proxy.gateway import GatewayEndpoint

CHAT = "/v1/chat/completions"
PATHS = {"chat": CHAT, "responses": "/v1/responses", "messages": "/v1/messages"}
GEMINI = "/v1beta/models/m:generateContent"
# Where each format streams, generateContent in its two ways.
STREAMS = {
    **PATHS,
    "generateContent": "/v1beta/models/m:streamGenerateContent?alt=sse",
    "generateContent-array": "/v1beta/models/m:streamGenerateContent",
}


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; one that hangs fails within two minutes of its own."""
    asyncio.run(asyncio.wait_for(work, 400))


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0.005)


def asking(text: str, **more: Any) -> dict[str, Any]:
    """Return a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


@dataclass(frozen=True)
class Answer:
    """What a client got; `raw` is what came before a cut, if it was cut."""

    status: int
    headers: Mapping[str, str]
    raw: bytes
    cut: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


@dataclass(frozen=True)
class Door:
    """An open endpoint and a client that holds its token."""

    endpoint: GatewayEndpoint
    session: aiohttp.ClientSession
    rundir: RunDir
    url: str
    token: str

    async def post(
        self, body: Any, path: str = CHAT, *, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> Answer:
        """Send a body (bytes go as they are) with the token, unless `headers` say otherwise."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        if headers is None:
            headers = {"Authorization": f"Bearer {self.token}"}
        async with self.session.request(
            method, URL(self.url + path, encoded=True), data=io.BytesIO(raw), headers=headers
        ) as response:
            chunks: list[bytes] = []
            try:
                async for chunk in response.content.iter_any():
                    chunks.append(chunk)
            except aiohttp.ClientPayloadError:
                return Answer(response.status, response.headers, b"".join(chunks), cut=True)
            return Answer(response.status, response.headers, b"".join(chunks))

    def records(self) -> list[dict[str, Any]]:
        """Return the lines recorded so far."""
        return list(read_records(self.rundir.llm)) if self.rundir.llm.exists() else []


@asynccontextmanager
async def door(
    path: Path, upstream: Upstream, *, secrets: Iterable[str] = (), drain: bool = True, gateway: Gateway | None = None
) -> AsyncIterator[Door]:
    """Open an endpoint for `upstream` that records below `path`; whatever happens, law 1 holds at its close."""
    gateway = gateway or Gateway()
    rundir = RunDir(path).create()
    endpoint = await gateway.open(rundir=rundir, upstream=upstream, redactor=Redactor(secrets), model="m", drain=drain)
    token = endpoint.token
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            yield Door(endpoint, session, rundir, f"http://127.0.0.1:{await endpoint.port()}", token)
    finally:
        report = await endpoint.close()
        await gateway.close()
        await upstream.close()
        lines = len(list(read_records(rundir.llm))) if rundir.llm.exists() else 0
        assert report.received == report.recorded == lines
        assert not rundir.llm_pending.exists()
