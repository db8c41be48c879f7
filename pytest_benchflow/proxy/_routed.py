"""Send each request the shortest way: as it is where the provider speaks its format, else through LiteLLM."""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_benchflow.contracts import ModelRequest, ModelResponse
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.errors import ProviderError
from pytest_benchflow.proxy._pacing import account_name
from pytest_benchflow.proxy.http import HttpUpstream
from pytest_benchflow.proxy.litellm import TranslatedUpstream, Translation
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from pytest_benchflow.contracts import Dialect, Upstream

# What Azure's clients put before the path of a format, and in its query; the route has its own.
_AZURE = re.compile(r"(?:/v1)?/openai(?:/deployments/[^/]+(?=/)|(?=/responses)|(?=/v1/))")
_API_VERSION = re.compile(r"(?:(?<=\?)|&)api-version=[^&]*&?")


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is reached; `natives` maps a wire format to the URL below which it is served."""

    model: str  # as the provider names it
    natives: Mapping[str, str]
    key: str | None = field(default=None, repr=False)
    key_source: str | None = None  # the variable it came from
    key_header: str | None = None
    query: str = ""
    litellm_model: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    untranslatable: str | None = None  # why LiteLLM cannot be asked, with what to do
    timeout: float | None = None  # seconds for one whole answer

    @property
    def key_name(self) -> str:
        """Return what a session knows the key by: its variable, or that there is none."""
        return (
            self.key_source or f"no key for {next(iter(self.natives.values()), self.litellm_model.partition('/')[0])}"
        )


class RoutedUpstream:
    """An upstream that chooses the way for each request by its format (`contracts.Upstream`)."""

    replays = False

    def __init__(self, way: Way) -> None:
        self.way = way
        parameters = (f"{name}={value}" for name, value in sorted(way.parameters.items()))
        self.account = account_name(
            way.key, *sorted(way.natives.values()), *parameters
        )  # whose calls are paced together
        # Hears of a key that the provider refuses: its `key_name`, and what was said; None where that may be
        # about the request alone.
        self.rejected: Callable[[str, str | None], None] | None = None
        self._refused: str | None = None
        self._ways: dict[str, Upstream] = {}
        self._translation: Translation | None = None
        self._own_translation = False

    def use(self, translation: Translation, *, dialect: str | None) -> None:
        """Share a session's LiteLLM process, and begin to start it where the agent's format will need it."""
        self._translation = translation
        if dialect is not None and dialect not in self.way.natives and not self.way.untranslatable:
            translation.begin()

    async def send(self, request: ModelRequest) -> ModelResponse:
        """Send and return when the status is known. Raises: ProviderError."""
        dialect = dialect_for(request.path)
        if dialect is None:
            raise ProviderError(f"no model API has the path {request.path}")
        if self._refused is not None:
            told = {"upstream_attempt": 0, "rejected": self._refused}
            return _own(dialect, 401, f"{self._refused}, and is not asked again", told)
        upstream = self._ways.get(dialect.name)
        if upstream is None:
            upstream = self._ways[dialect.name] = self._made(dialect.name)
        if dialect.name in self.way.natives:
            request = self._placed(request)
        limit = self.way.timeout
        until = None if limit is None else asyncio.get_running_loop().time() + limit
        try:
            async with asyncio.timeout_at(until):
                answer = await self._judged(await upstream.send(request), dialect.name)
        except TimeoutError:
            message = f"the model did not answer within {limit:g} s (--benchflow-model-timeout)"
            return _own(dialect, 504, message, {"upstream_timeout": limit})
        if until is None:
            return answer
        chunks = _until(answer.chunks, until, f"the answer was not whole after {limit:g} s (--benchflow-model-timeout)")
        return ModelResponse(answer.status, answer.headers, chunks, answer.metadata)

    async def close(self) -> None:
        """Close connections; safe to call twice."""
        for upstream in self._ways.values():
            await upstream.close()
        if self._own_translation and self._translation is not None:
            await self._translation.close()

    async def _judged(self, answer: ModelResponse, dialect: str) -> ModelResponse:
        """Return an answer whose metadata says so where it rejects the key, and take note of that."""
        way, chunks = self.way, answer.chunks
        if answer.status == 400 and "generateContent" in way.natives:
            # Google tells of a wrong key with 400.
            came, broke = [], None
            try:
                async for chunk in chunks:
                    came.append(chunk)
            except ProviderError as error:
                broke = error
            chunks = _again(came, broke)
            rejects = _names_key(b"".join(came))
        else:
            rejects = answer.status in (401, 403)
        metadata = answer.metadata
        if rejects:
            url = mapping(metadata.get("upstream")).get("url") or way.natives.get(dialect)
            who = urlsplit(url).netloc if url else way.litellm_model.partition("/")[0]
            key = f"the key in {way.key_source}" if way.key_source else "a request without a key"
            said = f"{who} answered {answer.status}"
            metadata = {**metadata, "rejected": f"{said} to {key}"}
            certain = answer.status != 403
            if certain:  # what is known stays so, whatever is still answered to others
                self._refused = metadata["rejected"]
            if self.rejected is not None:
                self.rejected(way.key_name, said if certain else None)
        return ModelResponse(answer.status, answer.headers, chunks, metadata)

    def _made(self, dialect: str) -> Upstream:
        way = self.way
        if dialect in way.natives:
            key = None if way.key_header else way.key
            return HttpUpstream(way.natives[dialect], api_key=key, model=way.model)
        if way.untranslatable:
            raise ProviderError(f"{way.model} does not speak the format {dialect}, and {way.untranslatable}")
        if self._translation is None:
            self._translation, self._own_translation = Translation(secrets.token_hex(8)), True
        return TranslatedUpstream(
            self._translation,
            way.litellm_model,
            parameters=way.parameters,
            environment=way.environment,
            timeout=way.timeout,
        )

    def _placed(self, request: ModelRequest) -> ModelRequest:
        """Return the request with the provider's own path, query and key header."""
        way, path = self.way, request.path
        if azure := _AZURE.match(path):
            path = _API_VERSION.sub("", path[azure.end() :]).rstrip("?&")
        if way.query:
            path += f"{'&' if '?' in path else '?'}{way.query}"
        headers = request.headers
        if way.key_header and way.key:
            shown = f"Bearer {way.key}" if way.key_header == "Authorization" else way.key
            headers = {**headers, way.key_header: shown}
        if path is request.path and headers is request.headers:
            return request
        return replace(request, path=path, headers=headers)


def _own(dialect: Dialect, status: int, message: str, metadata: Mapping[str, Any]) -> ModelResponse:
    """Return an error that no provider answered with."""

    async def chunks() -> AsyncIterator[bytes]:
        yield dialect.error_body(status, message, "timeout" if status == 504 else "authentication_error")

    return ModelResponse(status, {"Content-Type": "application/json"}, chunks(), metadata)


def _names_key(raw: bytes) -> bool:
    """Tell whether an error of Google's has the key for its reason; its message may quote anything from a request."""
    try:
        told = loads(raw)
    except ValueError:
        return False
    error = mapping(mapping(next(iter(sequence(told)), told)).get("error"))
    return any(mapping(each).get("reason") == "API_KEY_INVALID" for each in sequence(error.get("details")))


async def _again(came: Iterable[bytes], broke: ProviderError | None) -> AsyncIterator[bytes]:
    """Yield what came of an answer, which ends as it did."""
    for chunk in came:
        yield chunk
    if broke is not None:
        raise broke


async def _until(chunks: AsyncIterator[bytes], end: float, message: str) -> AsyncIterator[bytes]:
    try:
        while True:
            try:
                async with asyncio.timeout_at(end):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            yield chunk
    except TimeoutError:
        raise ProviderError(message) from None
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
