"""Find the wire format that a request path belongs to."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from pytest_benchflow import registry

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Dialect

_HOST = re.compile(r"https?://[^/?]*")
# Azure puts the name of a deployment before the path of the format, and its clients the base URL's version before that.
_AZURE = re.compile(r"(?:/v1)?/openai(?:/deployments/[^/]+(?=/)|(?=/responses)|(?=/v1/))")


@lru_cache(maxsize=256)
def dialect_for(path: str) -> Dialect | None:
    """Return the format of a request path, query or not, or None when it is nobody's."""
    plain = path.partition("?")[0]
    azure = _AZURE.match(plain)
    if azure:
        plain = plain[azure.end() :]
    return next((dialect for dialect in _shipped() if dialect.matches(plain)), None)


@lru_cache(maxsize=256)
def recorded_dialect(path: str) -> Dialect | None:
    """Return the format of a recorded path, which may be a URL, or begin with what a provider puts before it."""
    plain = _HOST.sub("", path.partition("?")[0], count=1).rstrip("/")
    starts = (place for place, character in enumerate(plain) if character == "/")
    return next((found for start in starts if (found := dialect_for(plain[start:]))), None)


@cache
def _shipped() -> tuple[Dialect, ...]:
    return tuple(registry.load("dialects", name, "dialect") for name in registry.shipped("dialects"))
