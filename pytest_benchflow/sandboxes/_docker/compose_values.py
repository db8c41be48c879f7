"""Read single values of a compose file: lists that may be mappings, sizes, durations, variables."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MOST_VALUES = 10_000
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES = {"us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_VARIABLE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)(?:(:?[-+?])((?:[^{}]|\{[^{}]*\})*))?\})")


def as_mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a mapping with names for keys. Raises: ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}; it takes a mapping")  # noqa: TRY004 - a mistake in a file
    return {str(key): said for key, said in value.items()}


def as_list(value: Any, where: str) -> list[Any]:
    """Return a list. Raises: ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{where} is {value!r}; it takes a list")  # noqa: TRY004 - a mistake in a file
    return value


def as_words(value: Any, where: str) -> list[str]:
    """Return a command's words, which may be one text as for a shell. Raises: ValueError."""
    return shlex.split(value) if isinstance(value, str) else [str(each) for each in as_list(value, where)]


def as_pairs(value: Any, where: str) -> dict[str, str | None]:
    """Return names with values, written as a mapping or as NAME=VALUE lines; None: a name alone. Raises: ValueError."""
    if isinstance(value, list):
        lines = [str(each).partition("=") for each in value]
        return {name: said if found else None for name, found, said in lines}
    return {key: _plain(said) for key, said in as_mapping(value, where).items()}


def _plain(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def as_bytes(value: Any, where: str) -> int:
    """Return a size such as 512m or 2gb. Raises: ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([bkmgt]?)i?b?", str(value).strip().lower())
    if found is None:
        raise ValueError(f"{where} is {value!r}; it takes a size such as 512m")
    return int(float(found[1]) * _UNITS[found[2]])


def as_nanoseconds(value: Any, where: str) -> int:
    """Return a duration such as 1m30s, or a number of seconds. Raises: ValueError."""
    text = str(value).strip()
    if re.fullmatch(r"\d+", text):
        return int(text) * 10**9
    parts = re.findall(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{where} is {value!r}; it takes a duration such as 10s")
    return int(sum(float(number) * _TIMES[unit] for number, unit in parts))


def check_size(document: Any) -> None:
    """Count what a document holds with its aliases written out. Raises: ValueError for too much, or without an end."""
    waiting, count = [document], 0
    while waiting:
        value = waiting.pop()
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting.extend(inside)
        count += 1
        if count + len(waiting) > _MOST_VALUES:
            raise ValueError(f"its aliases (*NAME) make more than {_MOST_VALUES} values of it, or contain themselves")


def interpolate(value: Any, values: Mapping[str, str], unset: Callable[[str], Exception]) -> Any:
    """Replace $NAME, ${NAME}, ${NAME:-default} and the like in every text of a value.

    `unset` makes the exception for a name that has neither a value nor a default.
    """
    if isinstance(value, dict):
        return {key: interpolate(said, values, unset) for key, said in value.items()}
    if isinstance(value, list):
        return [interpolate(each, values, unset) for each in value]
    if not isinstance(value, str) or "$" not in value:
        return value

    def replaced(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        name, how, more = found[2] or found[3], found[4] or "", found[5] or ""
        said = values.get(name)
        there = bool(said) if how.startswith(":") else said is not None
        if how.endswith("+"):
            return str(interpolate(more, values, unset)) if there else ""
        if there:
            return said or ""
        if how.endswith("-"):
            return str(interpolate(more, values, unset))
        raise unset(name)

    return _VARIABLE.sub(replaced, value)
