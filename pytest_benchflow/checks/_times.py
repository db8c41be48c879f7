"""Read the times in records: some say their zone and some do not, and those two are never compared."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def moment(value: Any) -> datetime | None:
    """Return a time as records hold it, None for what is none."""
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds between two times; None when one is not known, or only one says its zone."""
    if start is None or end is None or (start.tzinfo is None) != (end.tzinfo is None):
        return None
    return (end - start).total_seconds()
