"""Read a written file back as those who get it do: the last gate of an export."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.journal import read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

# Loaders learn the columns from a first block of about this size.
_BLOCK = 8 * 1024 * 1024


def read_back(path: Path, rows: int, columns: Mapping[str, type] | None) -> None:
    """Parse every line as strict JSON again and compare the columns. Raises: RecordError."""
    found = 0
    for number, line in read_lines(path):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise RecordError(f"{path}:{number}: what was written is not JSON ({error})") from None
        if columns is not None and {key: type(value) for key, value in row.items()} != dict(columns):
            raise RecordError(f"{path}:{number}: what was written has other columns than {', '.join(columns)}")
        found += 1
    _compare(path, "the file", found, rows)


def load_back(path: Path, rows: int, longest: int, loaders: Sequence[str]) -> str | None:
    """Load a file of `rows` rows with every loader; return a sentence when one is not installed, else None.

    `longest` is the size of its longest line in bytes. Raises: RecordError when it does not load.
    """
    missing = [name for name in loaders if importlib.util.find_spec(name) is None]
    for name in loaders if rows else ():
        if name not in missing:
            _compare(path, name, _LOADERS[name](path, max(_BLOCK, longest + 1)), rows)
    if not missing:
        return None
    return f"not loaded back with {' and '.join(missing)}, not installed: pip install 'pytest-benchflow[export]'"


def _compare(path: Path, reader: str, found: int, rows: int) -> None:
    if found != rows:
        raise RecordError(f"{path}: {reader} gave {found} rows back, and {rows} were written")


def _through_pyarrow(path: Path, block: int) -> int:
    # Named as text: these packages are no dependency of the core.
    pyarrow: Any = importlib.import_module("pyarrow")
    json: Any = importlib.import_module("pyarrow.json")
    found = 0
    try:
        with json.open_json(path, read_options=json.ReadOptions(block_size=block)) as reader:
            for batch in reader:
                found += batch.num_rows
    except pyarrow.ArrowException as error:
        raise RecordError(f"{path}: pyarrow cannot load what was written: {error}") from None
    return found


def _through_datasets(path: Path, _block: int) -> int:
    datasets: Any = importlib.import_module("datasets")
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory(prefix="benchflow-export-") as cache:
            return len(datasets.Dataset.from_json(str(path), cache_dir=cache))
    except (datasets.exceptions.DatasetsError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: datasets cannot load what was written: {error.__cause__ or error}") from None
    finally:
        if not bars:
            datasets.enable_progress_bars()


_LOADERS: dict[str, Callable[[Path, int], int]] = {"pyarrow": _through_pyarrow, "datasets": _through_datasets}
