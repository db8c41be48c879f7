"""Find out whether a provider takes a key, with an empty request where it can be asked one: no model answers that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import ModelRequest
from pytest_benchflow.errors import ProviderError
from pytest_benchflow.records.jsontext import dumps, loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from pytest_benchflow.contracts import ModelResponse, Upstream
    from pytest_benchflow.proxy.litellm import Translation
    from pytest_benchflow.proxy.routes import Route

# A provider that does not answer is found out about later, by the agent.
_PATIENCE_SEC = 20.0
_EMPTY: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [], "max_tokens": 1}),
    "responses": ("/v1/responses", {"input": [], "max_output_tokens": 1}),
    "messages": ("/v1/messages", {"messages": [], "max_tokens": 1}),
    "generateContent": ("/v1beta/models/model:generateContent", {"contents": []}),
}
# Where LiteLLM lets no empty request through: a model's answer to a word, of a token at most.
_WORD = {"messages": [{"role": "user", "content": "."}], "max_tokens": 1}
_HEADERS = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}


async def rejection(route: Route, translation: Translation) -> str | None:
    """Return what a provider says when it rejects the route's key; None when it does not, or nobody can tell.

    A provider that speaks no format of ours is asked by the LiteLLM process, which is started for that.
    """
    from pytest_benchflow.proxy._routed import RoutedUpstream

    way = route.way
    if way is None or way.key_source is None or (not way.natives and way.untranslatable):
        return None
    upstream = RoutedUpstream(way)
    try:
        if way.natives:
            dialect = str(route.dialect if route.dialect in way.natives else next(iter(way.natives)))
            answer, raw = await _asked(upstream, dialect, way.model, _EMPTY[dialect][1])
        else:
            await translation.session()  # starting it takes the time it takes
            upstream.use(translation, dialect=None)
            answer, raw = await _asked(upstream, "chat", way.model, _EMPTY["chat"][1])
            if answer.status == 400 and answer.metadata.get("upstream_calls") == 0:
                answer, raw = await _asked(upstream, "chat", way.model, _WORD)
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


async def _asked(upstream: Upstream, dialect: str, model: str, body: dict[str, Any]) -> tuple[ModelResponse, bytes]:
    """Return the answer to one request, and its body. Raises: ProviderError, TimeoutError."""
    request = ModelRequest("POST", _EMPTY[dialect][0], _HEADERS, dumps({"model": model, **body}))
    async with asyncio.timeout(_PATIENCE_SEC):
        answer = await upstream.send(request)
        return answer, b"".join([chunk async for chunk in answer.chunks])


def _said(raw: bytes) -> str:
    try:
        told = loads(raw)
    except ValueError:
        return " ".join(raw.decode(errors="replace").split())
    first = mapping(next(iter(sequence(told)), told))
    message = mapping(first.get("error")).get("message") or first.get("message") or first.get("error")
    return message if isinstance(message, str) else ""
