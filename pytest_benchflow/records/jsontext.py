"""Read and write JSON text: fast where it can be, and without loss where agents sent lone surrogates."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import jiter
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


class DuplicateKeyError(ValueError):
    """A JSON object names a key twice: which value counts would depend on the reader."""


def strict(data: bytes | bytearray) -> Any:
    """Parse strict JSON that readers cannot disagree on: UTF-8, no key twice, no NaN. Raises: ValueError."""
    try:
        # orjson is a little faster, and takes the last of two equal keys for good.
        return jiter.from_json(bytes(data), catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="keys")
    except ValueError:
        # The careful reader knows lone surrogates, and says better what is wrong.
        return _careful(data.decode())


def _careful(text: str) -> Any:
    value, end = scan_element(text, len(text) - len(text.lstrip(" \t\r\n")))
    if text[end:].strip(" \t\r\n"):
        raise ValueError(f"something follows the value at character {end}")
    return value


def scan_element(text: str, start: int) -> tuple[Any, int]:
    """Parse the value that begins at `start` and return it with where it ends. Raises: ValueError."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None


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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise DuplicateKeyError(f"the key {next(n for n in names if names.count(n) > 1)!r} is there twice")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# The standard decoder says where a value ends, which orjson does not.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
