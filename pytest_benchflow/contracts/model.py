"""What stands between an agent and its model: the endpoint that it asks, and the upstream that answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Mapping


class Endpoint(Protocol):
    """The door to the model for one rollout."""

    token: str  # what the agent shows as its API key; valid for this rollout only
    mismatch: str | None  # the first difference from a recording that does not fit
    rejected: str | None  # how the provider rejected the key, after which it is not asked again

    @property
    def open_requests(self) -> tuple[str, ...]:
        """Return the ids of the requests that have no answer yet, without those the agent gave up for another try."""

    @property
    def received(self) -> int:
        """Return how many requests have come so far."""

    async def port(self) -> int:
        """Return a loopback TCP port of the host on which this endpoint listens."""

    async def adopt(self, listener: socket.socket) -> None:
        """Serve this endpoint on a listening socket made elsewhere (inside a sandbox's network)."""

    async def close(self) -> EndpointReport:
        """Stop listening, void the token, end and record every open exchange, close the upstream; safe twice."""


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """What passed through an endpoint: law 1 says that both numbers are equal."""

    received: int
    recorded: int
    mismatch: str | None = None  # the first replay difference, when a recording did not fit
    warnings: tuple[str, ...] = ()
    in_flight: tuple[str, ...] = ()  # the requests without an answer when it was closed
    # The reasoning efforts that came: each as asked for, as the agent sent it, as it went upstream, as it was echoed.
    efforts: tuple[Mapping[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request as it goes upstream: agent's bytes, our controls stripped, no credential of the agent."""

    method: str
    path: str  # with the query string, as the agent sent it
    headers: Mapping[str, str]
    body: bytes
    model: str | None = None  # as the body names it, where whoever made this has looked


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """An upstream's answer; `chunks` must be consumed or closed."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Upstream(Protocol):
    """Where a gateway sends requests: a provider, a recording, a scripted model."""

    replays: bool  # it compares requests with recorded ones, and so is sent them as they are recorded

    async def send(self, request: ModelRequest) -> ModelResponse:
        """Send and return when the status is known. Raises: ProviderError (never a client library's class)."""

    async def close(self) -> None:
        """Free connections; safe to call twice."""
