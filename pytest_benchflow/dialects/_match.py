"""Find the wire format that a request path belongs to."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from pytest_benchflow import registry

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Dialect


def dialect_for(path: str) -> Dialect | None:
    """Return the format of a request path, query or not, or None when it is nobody's."""
    plain = path.partition("?")[0]
    return next((dialect for dialect in _shipped() if dialect.matches(plain)), None)


@cache
def _shipped() -> tuple[Dialect, ...]:
    return tuple(registry.load("dialects", name, "dialect") for name in registry.shipped("dialects"))
