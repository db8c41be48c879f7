"""Read what commands are answered with."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, get_args

from pytest_benchflow.contracts import PhaseName
from pytest_benchflow.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_KINDS: dict[str, tuple[type, ...]] = {
    "command": (str,),
    "phase": (str,),
    "exit_code": (int,),
    "stdout": (str,),
    "stderr": (str,),
    "seconds": (int, float),
    "files": (dict,),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes of the commands that fit: `command` is a pattern for their words, joined by spaces."""

    command: str = "*"
    phase: str | None = None  # None: in any
    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0  # that it takes
    files: Mapping[str, str] = field(default_factory=dict)  # absolute path -> text, there when it has ended

    def fits(self, argv: Sequence[str], phase: PhaseName) -> bool:
        """Tell whether it is the answer to a command."""
        return self.phase in (None, phase) and fnmatchcase(" ".join(argv), self.command)


def read_answers(file: Path) -> tuple[Answer, ...]:
    """Read the tables [[answer]] of a file; the first that fits a command counts. Raises: TaskError."""
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: {error}") from None
    tables = content.pop("answer", [])
    if content or not isinstance(tables, list):
        raise TaskError(f"{file} has {', '.join(content) or 'an answer that is no list'}; it takes tables [[answer]]")
    return tuple(_answer(file, table) for table in tables)


def _answer(file: Path, table: Any) -> Answer:
    for key, value in table.items() if isinstance(table, dict) else [(table, table)]:
        if key not in _KINDS:
            raise TaskError(f"{file}: an answer has {key!r}; it takes {', '.join(_KINDS)}")
        if not isinstance(value, _KINDS[key]) or isinstance(value, bool):
            raise TaskError(f"{file}: {key} is {value!r}; it takes {_KINDS[key][-1].__name__}")
    answer = Answer(**table)
    if answer.phase not in (None, *get_args(PhaseName)):
        raise TaskError(f"{file}: phase is {answer.phase!r}; it takes {', '.join(get_args(PhaseName))}")
    if not 0 <= answer.seconds < float("inf"):
        raise TaskError(f"{file}: seconds is {answer.seconds}; it takes a number from 0")
    for path, text in answer.files.items():
        if not path.startswith("/") or not isinstance(text, str):
            raise TaskError(f"{file}: files has {path!r}; it takes texts by absolute path")
    return answer
