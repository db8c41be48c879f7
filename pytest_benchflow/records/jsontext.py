"""Read and write JSON text: fast where it can be, and without loss where agents sent lone surrogates."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import orjson


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    """Parse strict JSON; a lone surrogate escape is kept as such. Raises: ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # orjson refuses lone surrogates, which are legal JSON text and do come from agents.
        text = data if isinstance(data, str) else bytes(data).decode()
        if "\\u" not in text:
            raise
        try:
            return json.loads(text, parse_constant=_refuse)
        except RecursionError:
            raise error from None


def dumps(value: Any) -> bytes:
    """Write compact JSON; lone surrogates become escapes, NaN and infinities null. Raises: TypeError."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
