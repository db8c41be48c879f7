"""What a wire format must offer, and the turns that all of them amount to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_benchflow.records.usage import Usage

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(NamedTuple):
    """A call of a tool by a model; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class Turn(NamedTuple):
    """One turn of a conversation, whatever the wire format."""

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None  # of a tool result
    reasoning: int = 0  # reasoning parts left out of the text
    unsupported: tuple[str, ...] = ()  # item or part types that could not be mapped: the row must be refused


class Outcome(NamedTuple):
    """How an exchange ended; `kind` is completed, truncated, filtered, refused, partial or error, `reason` says why."""

    kind: str
    reason: str | None = None


class Dialect(Protocol):
    """A wire format: the object named `dialect` in `dialects/NAME.py`. Everything is computed from parsed JSON."""

    name: str
    history: str  # the key of a request body's array that grows with the conversation

    def matches(self, path: str) -> bool:
        """Tell whether a request path (no query) is this format's."""

    def streams(self, path: str, body: Mapping[str, Any]) -> str | None:
        """Return the content type of the stream that a request (path with its query) asks for, None for none."""

    def assemble(self, raw: bytes) -> tuple[Any, str | None]:
        """Turn a whole stream into the final body in this format's own shape.

        Nothing is invented; the second value says why the stream is not complete, None when it is.
        """

    def disassemble(self, body: Mapping[str, Any], request: Mapping[str, Any], path: str) -> Iterator[bytes]:
        """Yield a final body as the stream that would answer `request` at `path`; `assemble` gives it back."""

    def outcome(self, status: int | None, body: Any, error: Mapping[str, Any] | None = None) -> Outcome:
        """Classify an exchange; an unknown state is never completed."""

    def request_turns(self, body: Mapping[str, Any]) -> list[Turn]:
        """Return the history a request carries (without what a previous_response_id stands for)."""

    def closes(self, item: Any) -> bool:
        """Tell whether what follows this item of a history can be turned into turns without it."""

    def response_turn(self, body: Any) -> Turn | None:
        """Return the answer as one assistant turn, None when there is none."""

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tools a request offers, as chat-style {"type": "function", "function": {…}} definitions."""

    def usage(self, body: Any) -> Usage | None:
        """Return the tokens of an answer with cache conventions normalised, None when it reports none."""

    def effort(self, body: Any) -> str | None:
        """Return the reasoning effort a request asks for or a response echoes."""

    def error_body(self, status: int, message: str, kind: str) -> bytes:
        """Return an error answer in this format's own shape."""
