"""Read the logs of a rollout, each once: exchanges, trainer rows and events, with what repeats in them shared."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.fold import Folder
from pytest_benchflow.records.jsontext import strict
from pytest_benchflow.records.lines import Line, each_line
from pytest_benchflow.records.rowfold import RowFolder
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# What grows or repeats in a request, whatever its format.
_REPEATED = ("messages", "input", "contents", "tools")


@dataclass(frozen=True, slots=True)
class Torn:
    """A line that is no record; `problem` names file and line."""

    problem: str


Log = list[dict[str, Any] | Torn]


def read_exchanges(path: Path) -> Log:
    """Return the records of llm_trajectory.jsonl; messages that several requests carry are the same objects.

    Raises: OSError.
    """
    folder = _FOLDERS.exchanges.start()
    log = [_record(path, line, folder.parse) for line in each_line(path)]
    # Lets go of what other files do not have in common with this one.
    folder.start()
    return log


def read_rows(path: Path) -> Log:
    """Return the rows of results.jsonl; messages that several steps' prompts hold are the same objects.

    Raises: OSError.
    """
    return [_record(path, line, _FOLDERS.rows.start().parse) for line in each_line(path)]


def read_events(path: Path) -> Log:
    """Return the records of acp_trajectory.jsonl. Raises: OSError."""
    return [_record(path, line, lambda each: strict(each.bytes())) for line in each_line(path)]


def whole(log: Log) -> list[dict[str, Any]]:
    """Return the records of a log. Raises: RecordError naming the first line that is none."""
    torn = next((record for record in log if isinstance(record, Torn)), None)
    if torn is not None:
        raise RecordError(torn.problem)
    return [record for record in log if not isinstance(record, Torn)]


def _record(path: Path, line: Line, parse: Callable[[Line], Any]) -> dict[str, Any] | Torn:
    try:
        record = parse(line)
    except ValueError as error:
        cut = "" if line.ended else "; the line has no end, its writer was cut off"
        return Torn(f"{path.name}:{line.number}: not JSON ({error}){cut}")
    if not isinstance(record, dict):
        return Torn(f"{path.name}:{line.number}: a {type(record).__name__}, where each line holds a JSON object")
    return record


def _asked(record: Any) -> list[dict[str, Any]]:
    return [mapping(mapping(mapping(record).get("request")).get("body"))]


class _Folders(threading.local):
    """The folders of a thread: rollouts of one experiment have tools and system prompt in common."""

    def __init__(self) -> None:
        self.exchanges = Folder(_REPEATED, _asked)
        self.rows = RowFolder()


_FOLDERS = _Folders()
