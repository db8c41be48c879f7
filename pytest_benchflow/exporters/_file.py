"""Write an export: every row checked, the file whole or not there at all, and then read back as trainers do."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from pytest_benchflow.errors import UnsupportedError
from pytest_benchflow.exporters._load import load_back, read_back
from pytest_benchflow.training.messages import scrub

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from pytest_benchflow.contracts import Exporter


@dataclass(frozen=True, slots=True)
class Line:
    """A row as JSON text, and whether it shows loaders every column."""

    text: bytes
    shows_all: bool


class RowFile:
    """A JSONL file in the making: a draft beside `path` that takes its name in `finish`.

    Loaders learn the columns from the first rows alone. So rows that lack calls or tool results are kept back until
    one that shows every column has been written.
    """

    def __init__(self, path: Path, exporter: Exporter) -> None:
        self.path = path
        self.rows = 0
        self.longest = 0
        self._columns = exporter.columns
        self._loaders = exporter.loaders
        self._shown = False
        self._draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._draft.unlink, missing_ok=True)
        self._file: BinaryIO = self._stack.enter_context(self._draft.open("xb"))
        self._kept: BinaryIO = self._stack.enter_context(tempfile.TemporaryFile(dir=self.path.parent))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add(self, line: Line) -> None:
        """Write a row. Raises: OSError."""
        self.rows += 1
        self.longest = max(self.longest, len(line.text))
        self._shown = self._shown or line.shows_all
        (self._file if self._shown else self._kept).write(line.text + b"\n")
        if self._shown:
            self._flush_kept()

    def finish(self) -> str | None:
        """Read the file back, give it its name, and return what could not be tried, None when all was.

        Raises: RecordError when it does not load.
        """
        self._flush_kept()
        self._file.flush()
        os.fsync(self._file.fileno())
        read_back(self._draft, self.rows, self._columns)
        missing = load_back(self._draft, self.rows, self.longest, self._loaders)
        self._draft.replace(self.path)
        return missing

    def _flush_kept(self) -> None:
        self._kept.seek(0)
        while block := self._kept.read(1 << 20):
            self._file.write(block)
        self._kept.seek(0)
        self._kept.truncate()


def row_line(row: dict[str, Any], exporter: Exporter) -> Line:
    """Return a row as strict JSON. Raises: UnsupportedError naming what cannot be written."""
    try:
        text = orjson.dumps(row)
    except TypeError:
        try:
            row = scrub(row)
            text = orjson.dumps(row)
        except (TypeError, RecursionError) as error:
            raise UnsupportedError(f"not_serialisable: {error}") from None
    if exporter.columns is not None:
        kinds = {key: type(value) for key, value in row.items()}
        assert kinds == dict(exporter.columns), f"a row has the columns {kinds}, not {exporter.columns}"
    return Line(text, not exporter.loaders or _shows_all(row))


def _shows_all(row: Mapping[str, Any]) -> bool:
    """Tell whether the messages of a row show every key that another's may have."""
    messages = row["messages"]
    return any(m.get("tool_calls") for m in messages) and any(m.get("tool_call_id") for m in messages)
