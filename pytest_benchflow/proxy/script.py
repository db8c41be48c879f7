"""Write down a model's answers beforehand: the turns of a script and its file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping  # noqa: TC003 - read by pydantic
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a scripted answer; `arguments` is an object, or the JSON text as it is."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptTurn:
    """One answer. Turns are used in order; one with `match` only by a request that holds that text."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    text: str | None = None
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    refusal: str | None = None
    finish: str | None = None  # the format's own word, over stop or tool_calls
    usage: bool = True
    delay: float = 0.0  # seconds before the answer begins
    pause: float = 0.0  # seconds before each event of a stream
    status: int = 200
    error: str | None = None  # what the error body of a status says
    cut: int | None = None  # end the answer abruptly after so many bytes
    hang: bool = False  # never answer
    match: str | None = None
    repeat: bool = False  # answer every request that matches, not only one


def load_script(path: Path) -> list[ScriptTurn]:
    """Read a script: a TOML or JSON file with a list `turns`. Raises: UsageError naming file, turn and key."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as a script of a model ({error})") from None
    turns = data.get("turns") if isinstance(data, dict) else data
    if not isinstance(turns, list):
        raise UsageError(f"{path}: holds no list of turns ([[turns]] in TOML)")
    return [_turn(path, number, turn) for number, turn in enumerate(turns, 1)]


def _turn(path: Path, number: int, values: Any) -> ScriptTurn:
    try:
        return TypeAdapter(ScriptTurn).validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part + 1) if isinstance(part, int) else part for part in first["loc"])
        allowed = ", ".join(each.name for each in fields(Call if "calls" in first["loc"] else ScriptTurn))
        raise UsageError(f"{path}: turn {number}: {place}: {first['msg']}; it takes {allowed}") from None
