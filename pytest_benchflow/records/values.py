"""Take what a record should hold and what is there apart: a value of another kind counts as nothing."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Parts that should add up to 1 may miss it by a rounding error.
FULL_REWARD = 1 - 1e-9


def now() -> str:
    """Return the time in UTC as ISO 8601 with microseconds, as records hold it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def mapping(value: Any) -> dict[str, Any]:
    """Return `value` when it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """Return `value` when it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """Return `value` when it is a finite number that a float can be, else None; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def integer(value: Any) -> int | None:
    """Return `value` when it is a whole number, else None; true and false are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def reward_of(result: Mapping[str, Any]) -> float | None:
    """Return the finite reward of result.json, None when there is none."""
    return number(mapping(result.get("rewards")).get("reward"))
