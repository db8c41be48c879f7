"""Read a written file back as trainers load it: the last gate of an export."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

# Loaders learn the columns from a first block of about this size.
_BLOCK = 8 * 1024 * 1024
_MISSING = "it was not loaded back for lack of pyarrow: pip install 'pytest-benchflow[export]'"


def load_back(path: Path, rows: int, longest: int) -> str | None:
    """Load a JSONL file of `rows` rows; return a sentence when nothing is there to load it with, else None.

    Raises: RecordError when it does not load, or loads as something else.
    """
    if importlib.util.find_spec("pyarrow") is None:
        return _MISSING
    if not rows:
        return None
    found = _through_pyarrow(path, max(_BLOCK, longest + 1))
    if found != rows:
        raise RecordError(f"{path}: pyarrow read {found} rows back, and {rows} were written")
    if importlib.util.find_spec("datasets") is not None:
        found = _through_datasets(path)
        if found != rows:
            raise RecordError(f"{path}: datasets read {found} rows back, and {rows} were written")
    return None


def _through_pyarrow(path: Path, block: int) -> int:
    # Named as text: neither package is a dependency of the core.
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


def _through_datasets(path: Path) -> int:
    datasets: Any = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="benchflow-export-") as cache:
        try:
            loaded = datasets.Dataset.from_json(str(path), cache_dir=cache)
            return len(loaded)
        except (datasets.exceptions.DatasetGenerationError, TypeError, ValueError) as error:
            raise RecordError(f"{path}: datasets cannot load what was written: {error.__cause__ or error}") from None
