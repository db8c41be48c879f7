"""Append records to JSONL files and read them back as a stream; records end at a newline only."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.files import open_plain, write_whole
from pytest_benchflow.records.jsontext import dumps, loads, strict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Journal:
    """An append-only JSONL file, never behind a link: each record reaches the kernel whole before `append` returns.

    `prepare` sees every record before it is written (redaction, a phase, a time).
    """

    def __init__(self, path: Path, prepare: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.path = path
        self.count = 0
        self._prepare = prepare
        self._lock = threading.Lock()
        self._fd: int | None = None

    def append(self, record: dict[str, Any]) -> None:
        """Write one record. Raises: OSError when the disk does; a part-written line is cut off again."""
        self.append_line(dumps(self._prepare(record) if self._prepare else record))

    def append_line(self, *parts: bytes) -> None:
        """Write one line that is already JSON without a newline, whole or in parts."""
        with self._lock:
            self._write_whole(self._opened(), (*parts, b"\n"))
            self.count += 1

    def open(self) -> None:
        """Make the file, where the first record is not to wait for that."""
        with self._lock:
            self._opened()

    def _opened(self) -> int:
        if self._fd is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = open_plain(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return self._fd

    def empty(self) -> None:
        """Take all lines out of the file. Raises: OSError."""
        with self._lock:
            if self._fd is not None:
                os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    @staticmethod
    def _write_whole(fd: int, parts: tuple[bytes, ...]) -> None:
        start = os.fstat(fd).st_size
        try:
            written = os.writev(fd, parts)
            # Joined only where it has to be: a body may be large.
            rest = memoryview(b"".join(parts))[written:] if written < sum(map(len, parts)) else memoryview(b"")
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:
            os.ftruncate(fd, start)
            raise


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (1-based line number, bytes without the newline) for each line that is not blank."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.rstrip(b"\n")


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each record of a JSONL file. Raises: RecordError naming file and line."""
    for number, line in read_lines(path):
        try:
            record = loads(line)
        except ValueError as error:
            raise RecordError(f"{path}:{number}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise RecordError(f"{path}:{number}: a {type(record).__name__}, where each line holds a JSON object")
        yield record


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [orjson.dumps(value, option=orjson.OPT_INDENT_2), b"\n"])


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object, no key of it twice. Raises: RecordError."""
    try:
        value = strict(path.read_bytes())
    except FileNotFoundError:
        raise RecordError(f"{path}: there is no such file") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise RecordError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise RecordError(f"{path}: a {type(value).__name__}, where a JSON object belongs")
    return value
