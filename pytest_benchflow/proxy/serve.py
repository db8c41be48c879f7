"""Offer an upstream as a plain model server on a loopback port: a scripted model for anything that takes a URL."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from pytest_benchflow.contracts import ModelRequest
from pytest_benchflow.errors import ProviderError
from pytest_benchflow.records.jsontext import dumps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pytest_benchflow.contracts import ModelResponse, Upstream


@asynccontextmanager
async def serving(upstream: Upstream) -> AsyncIterator[str]:
    """Serve `upstream` and yield its base URL, which ends in /v1.

    An answer that the upstream breaks off ends here as on a broken wire: without its end.
    """

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        asked = ModelRequest(request.method, request.raw_path, dict(request.headers), body)
        try:
            answer = await upstream.send(asked)
        except ProviderError as error:
            return web.Response(status=502, body=dumps({"error": {"message": str(error)}}))
        return await _pass(request, answer)

    runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{site.port}/v1"
    finally:
        await runner.cleanup()
        await upstream.close()


async def _pass(request: web.BaseRequest, answer: ModelResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    await response.prepare(request)
    try:
        async for chunk in answer.chunks:
            await response.write(chunk)
    except ProviderError:
        if request.transport is not None:
            request.transport.close()
    return response
