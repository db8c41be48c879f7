"""What the wire formats share: event streams, counts, error bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Outcome
from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The content type of server-sent events, in which most formats stream.
EVENT_STREAM = "text/event-stream"

# The error type of a record whose answer stopped before its end; what did come is still the answer.
INCOMPLETE = "incomplete_stream"

# Keys under which providers put reasoning beside a message's content.
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")

# What a free-form tool takes, once it is written as a function.
CUSTOM_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def events(raw: bytes) -> Iterator[tuple[str | None, bytes]]:
    """Yield (event name, data) of a server-sent event stream; an unfinished last event is yielded as it is."""
    name: str | None = None
    data: list[bytes] = []
    for line in raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        if not line:
            if data:
                yield name, b"\n".join(data)
            name, data = None, []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
    if data:
        yield name, b"\n".join(data)


def count(value: Any) -> int | None:
    """Return a token count, None for anything that is not a whole number from 0 to what 63 bits hold."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def first_count(holder: Mapping[str, Any], *keys: str) -> int | None:
    """Return the first token count among some fields, None when none of them holds one."""
    for key in keys:
        value = holder.get(key)
        if value is not None and count(value) is not None:
            return int(value)
    return None


def kind_of(part: Any) -> str:
    """Return the type that a part, block or item names; of what is no object, the type it is of."""
    return str(part.get("type")) if isinstance(part, dict) else type(part).__name__


def add_text(part: Mapping[str, Any], field: str, texts: list[str], unsupported: list[str]) -> None:
    """Add the text that a part holds in `field`; a value of another kind is named, not dropped."""
    value = part.get(field)
    if isinstance(value, str):
        texts.append(value)
    else:
        unsupported.append(f"{part.get('type')} with {field} {type(value).__name__}")


def text(value: Any) -> str:
    """Return `value` when it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def error_text(body: Any) -> str:
    """Return what an error body says, in a line."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        error = error.get("message") or error.get("code") or error.get("type") or ""
    return str(error)[:300]


def failure(status: int | None, body: Any, error: Mapping[str, Any] | None) -> Outcome | None:
    """Return how an exchange failed as far as every format agrees, None when its body must be looked at."""
    if error and error.get("type") != INCOMPLETE:
        return Outcome("error", f"{error.get('type')}: {error.get('message')}")
    if status is not None and not 200 <= status < 300:
        return Outcome("error", f"HTTP {status}: {error_text(body)}")
    if not isinstance(body, dict):
        return Outcome("error", "no answer" if body is None else "the answer is not a JSON object")
    if body.get("error"):
        return Outcome("error", f"error body: {error_text(body)}")
    if error:
        return Outcome("partial", str(error.get("message")))
    return None


def single_effort(*found: Any) -> str | None:
    """Return the effort that a body's fields name; two that contradict each other are returned as both, "high|max"."""
    named = list(dict.fromkeys(value for value in found if isinstance(value, str)))
    return "|".join(named) or None


def named_effort(body: Any) -> str | None:
    """Return the effort that a body names in any spelling of OpenAI's and Anthropic's formats, or both of two."""
    body = mapping(body)
    nested = (mapping(body.get(holder)).get("effort") for holder in ("reasoning", "output_config"))
    return single_effort(body.get("reasoning_effort"), *nested)


def arguments_text(value: Any, unsupported: list[str]) -> str:
    """Return a call's arguments as JSON text; a string is the text itself, as the model wrote it."""
    if isinstance(value, str):
        return value
    try:
        return "" if value is None else dumps(value).decode()
    except RecursionError:
        unsupported.append("a value nested too deeply")
        return ""


def listed(value: Any) -> list[Any]:
    """Return what should be a list as one, so that a value of another kind is met by whoever reads the items."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def event(value: Any, name: str | None = None) -> bytes:
    """Return one server-sent event with JSON data."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + dumps(value) + b"\n\n"


def pieces(value: str, size: int = 24) -> Iterator[str]:
    """Yield a text in pieces as a model streams it; an empty text is one empty piece."""
    for start in range(0, max(len(value), 1), size):
        yield value[start : start + size]
