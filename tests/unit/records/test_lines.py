"""Lines of a file as stretches of a window, whatever their length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.records import lines
from pytest_benchflow.records.lines import each_line

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lines, "_WINDOW", 4)
    monkeypatch.setattr(lines, "_LARGE", 64)
    return tmp_path / "log.jsonl"


def read(path: Path) -> list[tuple[int, bytes, bool]]:
    return [(line.number, line.bytes(), line.ended) for line in each_line(path)]


@pytest.mark.parametrize("length", [0, 1, 14, 15, 16, 17, 31, 63, 64, 200, 5000])
def test_lines_of_any_length_come_whole(file: Path, length: int) -> None:
    file.write_bytes(b"a" * length + b"!\n" + b"b" * length + b"!\n" + b"c")
    assert read(file) == [(1, b"a" * length + b"!", True), (2, b"b" * length + b"!", True), (3, b"c", False)]


@pytest.mark.parametrize("window", [8, 9, 10, 11, 100])
def test_lines_shorter_than_a_window_come_whole(file: Path, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_WINDOW", window)
    file.write_bytes(b"".join(b"%03d\n" % number for number in range(100)))
    assert read(file) == [(number + 1, b"%03d" % number, True) for number in range(100)]


def test_blank_lines_are_left_out_and_counted(file: Path) -> None:
    file.write_bytes(b"\n  \t\r\n1\n\n\n2\n \n")
    assert read(file) == [(3, b"1", True), (6, b"2", True)]


def test_only_a_newline_ends_a_line(file: Path) -> None:
    text = "a\u2028b\u0085c\x0bd\x0ce\rf"
    file.write_text(text + "\n", encoding="utf-8", newline="\n")
    assert read(file) == [(1, text.encode(), True)]


def test_a_window_is_let_go_before_the_next_is_read(file: Path) -> None:
    file.write_bytes(b"a" * 20 + b"\n" + b"b" * 20 + b"\n")
    first, second = each_line(file)
    assert (first.buffer, second.bytes()) == (b"", b"b" * 20)


def test_an_empty_file_has_no_line(file: Path) -> None:
    file.touch()
    assert read(file) == []
