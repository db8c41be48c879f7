"""Keep what an agent must not steer out of what goes upstream: routing, retries, credentials."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from pytest_benchflow.records.jsontext import loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MODEL_IN_BODY = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')
# Numbers stay texts: only where they end is asked.
_VALUES = json.JSONDecoder(parse_int=str, parse_float=str)
_BETWEEN = re.compile(r"[ \t\r\n,:]*")
_MODEL_IN_PATH = re.compile(r"/([^/:?]+)(?=:\w+(?:\?|\Z))")

# Knobs by which a client of a LiteLLM-like server redirects a call, multiplies it or fakes its answer.
CONTROLS = frozenset(
    {
        "additional_drop_params",
        "api_base",
        "api_key",
        "api_type",
        "api_version",
        "base_url",
        "context_window_fallbacks",
        "custom_llm_provider",
        "deployment_id",
        "drop_params",
        "extra_headers",
        "fallbacks",
        "max_retries",
        "mock_response",
        "mock_timeout",
        "mock_tool_calls",
        "model_list",
        "num_retries",
        "stream_timeout",
    }
)
_CONTROL_PREFIXES = ("x-litellm-", "litellm_")
_QUERY_CREDENTIALS = frozenset({"key", "api-key", "access_token"})

# Credentials, and what concerns only the connection between agent and gateway.
_HEADERS_KEPT_BACK = frozenset(
    {
        "accept-encoding",
        "api-key",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "num-retries",
        "openai-organization",
        "openai-project",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-api-key",
        "x-goog-api-key",
    }
)
_ANSWER_HEADERS_KEPT_BACK = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "server",
        "set-cookie",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "date",
    }
)


def is_control(name: str) -> bool:
    """Tell whether a header, query or body key is one an agent may not use."""
    lowered = name.lower()
    return lowered in CONTROLS or lowered.startswith(_CONTROL_PREFIXES)


def request_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what may go upstream of an agent's headers."""
    return {name: value for name, value in headers.items() if not _kept_back(name)}


@lru_cache(1024)
def _kept_back(name: str) -> bool:
    return name.lower() in _HEADERS_KEPT_BACK or is_control(name.replace("-", "_")) or is_control(name)


def answer_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what an agent may see of an upstream's headers."""
    return {name: value for name, value in headers.items() if name.lower() not in _ANSWER_HEADERS_KEPT_BACK}


def query(text: str) -> tuple[str, list[str]]:
    """Return a query string without controls and credentials, untouched when it has none, and their names."""
    named = [(unquote_plus(pair.partition("=")[0]), pair) for pair in text.split("&")]
    dropped = [name for name, _ in named if is_control(name) or name.lower() in _QUERY_CREDENTIALS]
    return "&".join(pair for name, pair in named if name not in dropped), dropped


def path_model(path: str) -> str | None:
    """Return the model that a request path names (…/models/MODEL:action), None when its body does."""
    found = _MODEL_IN_PATH.search(path)
    return found[1] if found else None


def with_path_model(path: str, model: str) -> str:
    """Return a request path with another model in it."""
    return _MODEL_IN_PATH.sub(lambda _: f"/{model}", path)


def body_controls(body: Any) -> list[str]:
    """Return the names of the controls at the top level of a request body."""
    return [name for name in body if is_control(name)] if isinstance(body, dict) else []


def with_model(raw: bytes, body: Mapping[str, Any], model: str) -> bytes:
    """Return a request that names another model, every other byte as it was; `body` is its JSON value."""
    wanted = {**body, "model": model}
    # The first is nearly always the one: what else is named so lies in a tool's definition or its arguments.
    for place in _MODEL_IN_BODY.finditer(raw):
        changed = raw[: place.start(1)] + json.dumps(model).encode() + raw[place.end(1) :]
        if loads(changed) == wanted:
            return changed
    return edit(raw, replace={"model": model})


def edit(raw: bytes, *, drop: Iterable[str] = (), replace: Mapping[str, Any] | None = None) -> bytes:
    """Return a JSON object with top-level members taken out or given another value, every other byte as it was."""
    dropped, news = frozenset(drop), dict(replace or {})
    text = raw.decode()
    members = list(_members(text))
    parts = [text[: members[0].start if members else text.index("{") + 1]]
    kept = 0
    for before, member in zip((None, *members), members, strict=False):
        if member.name in dropped:
            continue
        if kept and before is not None:
            parts.append(text[before.end : member.start])
        kept += 1
        if member.name in news:
            parts += [text[member.start : member.value], json.dumps(news[member.name])]
        else:
            parts.append(text[member.start : member.end])
    for name in news.keys() - {member.name for member in members}:
        parts.append(f"{',' if kept else ''}{json.dumps(name)}:{json.dumps(news[name])}")
        kept += 1
    parts.append(text[members[-1].end if members else len(parts[0]) :])
    return "".join(parts).encode()


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object: its name, and where its text, and in that its value, begins and ends."""

    name: str
    start: int
    value: int
    end: int


def _members(text: str) -> Iterator[_Member]:
    """Yield the members of a JSON object that is known to be one."""
    place = _skipped(text, text.index("{") + 1)
    while text[place] == '"':
        name, end = _VALUES.raw_decode(text, place)
        value = _skipped(text, end)
        _, end = _VALUES.raw_decode(text, value)
        yield _Member(name, place, value, end)
        place = _skipped(text, end)


def _skipped(text: str, place: int) -> int:
    """Return where something begins after white space and the signs between members."""
    found = _BETWEEN.match(text, place)
    return found.end() if found else place
