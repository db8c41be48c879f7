"""Turn parsed TOML or YAML tables into typed values, by tables of keys, with errors that name file, key and remedy."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import TaskError

if TYPE_CHECKING:
    from pathlib import Path

# A kind checks one value found under a dotted key and returns it typed.
Kind = Callable[["Reader", str, Any], Any]
Shape = Mapping[str, Kind]


@dataclass(slots=True)
class Reader:
    """Read one file's tables; what is odd but harmless is collected in `warnings`, once each."""

    file: Path
    warnings: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Return the file as errors and warnings name it: with its directory."""
        return f"{self.file.parent.name}/{self.file.name}"

    def warn(self, text: str) -> None:
        """Collect a warning unless it was said before."""
        line = f"{self.label}: {text}"
        if line not in self.warnings:
            self.warnings.append(line)

    def error(self, key: str, problem: str, allowed: str) -> TaskError:
        """Return the error for `key`."""
        return TaskError(f"{self.label}: {key} {problem}; allowed: {allowed}")

    def wrong(self, key: str, value: Any, allowed: str) -> TaskError:
        """Return the error for a value of the wrong type or out of range."""
        return self.error(key, f"is {_shown(value)}", allowed)

    def table(self, key: str, value: Any, shape: Shape, required: Sequence[str] = ()) -> dict[str, Any]:
        """Return the known keys of a table, typed; unknown ones warn. Raises: TaskError."""
        if not isinstance(value, dict):
            raise self.wrong(key, value, f"a table with the keys {', '.join(shape)}")
        found: dict[str, Any] = {}
        for name, item in value.items():
            dotted = f"{key}.{name}" if key else str(name)
            kind = shape.get(name)
            if kind is None:
                self.warn(_unknown(dotted, str(name), shape))
            elif item is not None:
                found[name] = kind(self, dotted, item)
        for name in required:
            if name not in found:
                raise self.error(f"{key}.{name}" if key else name, "is missing", "a value for it")
        return found


def _unknown(dotted: str, name: str, shape: Shape) -> str:
    meant = difflib.get_close_matches(name, shape, n=1)
    return f"unknown key {dotted} is ignored" + (f"; probably {meant[0]} is meant" if meant else "")


def _shown(value: Any) -> str:
    text = repr(value)
    noun = {
        bool: "true or false",
        str: "text",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a table",
    }.get(type(value), type(value).__name__)
    return f"{text if len(text) <= 60 else text[:57] + '…'} ({noun})"


def text(reader: Reader, key: str, value: Any) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise reader.wrong(key, value, "a text")
    return value


def filled(reader: Reader, key: str, value: Any) -> str:
    """Read a text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise reader.wrong(key, value, "a text that is not empty")
    return value


def version(reader: Reader, key: str, value: Any) -> str:
    """Read a version such as "1.4"; YAML and TOML authors also write it as a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise reader.wrong(key, value, 'a version such as "1.4"')
    return str(value)


def flag(reader: Reader, key: str, value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise reader.wrong(key, value, "true or false")
    return value


def number(at_least: float | None = None, above: float | None = None, unit: str = "") -> Kind:
    """Make a kind that reads a finite number within bounds."""
    bound = f" of at least {at_least:g}" if at_least is not None else f" above {above:g}" if above is not None else ""
    allowed = f"a number{unit and ' of ' + unit}{bound}"

    def read(reader: Reader, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise reader.wrong(key, value, allowed)
        if (at_least is not None and value < at_least) or (above is not None and value <= above):
            raise reader.wrong(key, value, allowed)
        return value

    return read


def whole(at_least: int) -> Kind:
    """Make a kind that reads a whole number; 4096.0 counts as one."""

    def read(reader: Reader, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= at_least or value % 1:
            raise reader.wrong(key, value, f"a whole number of at least {at_least}")
        return int(value)

    return read


def user(reader: Reader, key: str, value: Any) -> str | int:
    """Read a user's name or number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int)
        or value == ""
        or (isinstance(value, int) and value < 0)
    ):
        raise reader.wrong(key, value, "a user's name or number")
    return value


def choice(*values: str) -> Kind:
    """Make a kind that reads one of some words."""

    def read(reader: Reader, key: str, value: Any) -> str:
        if value not in values or not isinstance(value, str):
            raise reader.wrong(key, value, ", ".join(values))
        return value

    return read


def texts(reader: Reader, key: str, value: Any) -> tuple[str, ...]:
    """Read a list of texts."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise reader.wrong(key, value, "a list of texts")
    return tuple(value)


def variables(reader: Reader, key: str, value: Any) -> dict[str, str]:
    """Read a table of environment variables; their values are texts or host templates such as ${KEY}."""
    if not isinstance(value, dict):
        raise reader.wrong(key, value, "a table of variables and their texts")
    for name, item in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise reader.wrong(f"{key}.{name}", item, "a variable name without = in it")
        if not isinstance(item, str) or "\0" in item:
            raise reader.wrong(f"{key}.{name}", item, "a text; put it in quotes")
    return dict(value)


def size(reader: Reader, key: str, value: Any) -> int:
    """Read a size such as "2G" or "512M" as MiB."""
    match = (
        re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT])i?B?", value.strip(), re.IGNORECASE)
        if isinstance(value, str)
        else None
    )
    if match is None:
        raise reader.wrong(key, value, 'a size such as "2G" or "512M"')
    mebibytes = float(match[1]) * {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}[match[2].upper()]
    return max(1, math.ceil(mebibytes))


def mapping(reader: Reader, key: str, value: Any) -> dict[str, Any]:
    """Read a table of anything."""
    if not isinstance(value, dict):
        raise reader.wrong(key, value, "a table")
    return dict(value)


def record(shape: Shape, build: Callable[..., Any], required: Sequence[str] = ()) -> Kind:
    """Make a kind that reads a table and hands its keys to `build`."""

    def read(reader: Reader, key: str, value: Any) -> Any:
        return build(**reader.table(key, value, shape, required))

    return read


def list_of(kind: Kind, what: str) -> Kind:
    """Make a kind that reads a list whose items are read by `kind`."""

    def read(reader: Reader, key: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise reader.wrong(key, value, f"a list of {what}")
        return tuple(kind(reader, f"{key}[{index}]", item) for index, item in enumerate(value))

    return read
