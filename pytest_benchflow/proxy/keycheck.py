"""Find out with an empty request whether a provider takes a key; it costs nothing, and no model answers it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import ModelRequest
from pytest_benchflow.errors import ProviderError
from pytest_benchflow.records.jsontext import dumps, loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from pytest_benchflow.proxy.routes import Route

# A provider that does not answer is found out about later, by the agent.
_PATIENCE_SEC = 20.0
_EMPTY: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [], "max_tokens": 1}),
    "responses": ("/v1/responses", {"input": [], "max_output_tokens": 1}),
    "messages": ("/v1/messages", {"messages": [], "max_tokens": 1}),
    "generateContent": ("/v1beta/models/model:generateContent", {"contents": []}),
}
_HEADERS = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}


async def rejection(route: Route) -> str | None:
    """Return what a provider says when it rejects the route's key; None when it does not, or nobody can tell."""
    from pytest_benchflow.proxy._routed import RoutedUpstream

    way = route.way
    if way is None or way.key is None or not way.natives:
        return None
    dialect = route.dialect if route.dialect in way.natives else next(iter(way.natives))
    path, body = _EMPTY[str(dialect)]
    upstream = RoutedUpstream(way)
    try:
        async with asyncio.timeout(_PATIENCE_SEC):
            request = ModelRequest("POST", path, _HEADERS, dumps({"model": way.model, **body}))
            answer = await upstream.send(request)
            raw = b"".join([chunk async for chunk in answer.chunks])
    except (ProviderError, TimeoutError):
        return None
    finally:
        await upstream.close()
    # Google tells of a wrong key with 400.
    if answer.status not in (401, 403) and not (answer.status == 400 and b"API_KEY_INVALID" in raw):
        return None
    said = _said(raw)
    for secret in route.secrets:
        said = said.replace(secret, "(left out)")
    return f"{answer.status} {said[:300]}".strip()


def _said(raw: bytes) -> str:
    try:
        told = loads(raw)
    except ValueError:
        return " ".join(raw.decode(errors="replace").split())
    first = mapping(next(iter(sequence(told)), told))
    message = mapping(first.get("error")).get("message") or first.get("message") or first.get("error")
    return message if isinstance(message, str) else ""
