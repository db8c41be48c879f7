from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import UnsupportedError
from pytest_benchflow.exporters._file import RowFile, row_line
from pytest_benchflow.exporters._load import load_back, read_back
from pytest_benchflow.exporters.prime_sft import exporter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PLAIN = [{"role": "user", "content": "Hello.", "tool_calls": None, "tool_call_id": None}]
CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
FULL = [
    *PLAIN,
    {"role": "assistant", "content": "", "tool_calls": [CALL], "tool_call_id": None},
    {"role": "tool", "content": "ok", "tool_calls": None, "tool_call_id": "c1"},
]


def row(messages: list[Any], name: str) -> dict[str, Any]:
    return {"messages": messages, "tool_defs": "[]", "reward": 1.0, "info": name}


def written(path: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    with RowFile(path, exporter) as file:
        for each in rows:
            file.add(row_line(each, exporter))
        file.finish()
    return [json.loads(line)["info"] for line in path.read_text("utf-8").splitlines()]


def test_the_first_row_shows_loaders_every_key(tmp_path: Path) -> None:
    rows = [row(PLAIN, "a"), row(PLAIN, "b"), row(FULL, "c"), row(PLAIN, "d"), row(FULL, "e")]
    assert written(tmp_path / "out.jsonl", rows) == ["c", "a", "b", "d", "e"]


def test_rows_without_calls_are_all_written(tmp_path: Path) -> None:
    assert written(tmp_path / "out.jsonl", [row(PLAIN, "a"), row(PLAIN, "b")]) == ["a", "b"]


def test_a_file_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("before\n", "utf-8")

    def interrupted() -> None:
        with RowFile(tmp_path / "out.jsonl", exporter) as file:
            file.add(row_line(row(FULL, "a"), exporter))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "out.jsonl").read_text("utf-8") == "before\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_what_cannot_be_written_is_refused() -> None:
    deep: Any = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(UnsupportedError, match="not_serialisable"):
        row_line(row([{"content": deep}], "a"), exporter)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"messages": [], "tool_defs": "[]", "reward": 1, "info": ""}', "other columns"),
        (b'{"messages": [], "tool_defs": "[]", "reward": 1.0}', "other columns"),
        (b'{"messages": []', "is not JSON"),
        (b"", "0 rows back, and 1 were written"),
    ],
    ids=["another type", "a column less", "torn", "lost"],
)
def test_reading_back_finds_what_is_wrong(line: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_bytes(line + b"\n")
    with pytest.raises(ValueError, match=said):
        read_back(tmp_path / "out.jsonl", 1, exporter.columns)


def test_a_loader_that_is_not_there_is_named_with_its_extra(tmp_path: Path) -> None:
    said = load_back(tmp_path / "none.jsonl", 0, 0, ("no_such_loader",))
    assert said == "not loaded back with no_such_loader, not installed: pip install 'pytest-benchflow[export]'"
