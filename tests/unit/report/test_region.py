"""Lines below a program's own leave its screen as it would be without them, whatever it writes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from typing import TYPE_CHECKING

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_benchflow.report.region import Region

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS, LINES = 20, 8


class Desk:
    """A terminal, a file that is written to it, and what its screen shows."""

    def __init__(self, columns: int = COLUMNS, lines: int = LINES) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=1000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        self._end, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.descriptor = theirs
        self.file = os.fdopen(os.dup(theirs), "w", encoding="utf-8")

    def draw(self) -> None:
        """Draw what was written."""
        self.file.flush()
        while select.select([self._end], [], [], 0)[0]:
            self._stream.feed(os.read(self._end, 65536))

    def press_enter(self) -> None:
        """Press Enter, which the terminal itself echoes."""
        os.write(self._end, b"\n")
        select.select([self._end], [], [])

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    @property
    def lines(self) -> list[str]:
        self.draw()
        return [line.rstrip() for line in self.screen.display]

    @property
    def everything(self) -> str:
        self.draw()
        above = ["".join(line[column].data for column in range(COLUMNS)).rstrip() for line in self.screen.history.top]
        return "\n".join([*above, *self.lines]).rstrip()

    def close(self) -> None:
        self.file.close()
        os.close(self._end)


@pytest.fixture
def desk() -> Iterable[Desk]:
    made = Desk()
    yield made
    made.close()


def test_lines_are_below_and_the_cursor_stays(desk: Desk) -> None:
    region = Region([desk.file], desk.descriptor)
    region.open()
    desk.file.write("first\nsecond")
    region.show(["one", "two"])
    assert desk.lines[:5] == ["first", "second", "one", "two", ""]
    assert (desk.screen.cursor.y, desk.screen.cursor.x) == (1, 6)
    desk.file.write(" and\nthird ")
    assert desk.lines[:5] == ["first", "second and", "third", "one", "two"]
    assert (desk.screen.cursor.y, desk.screen.cursor.x) == (2, 6)
    region.show(["one"])
    assert desk.lines[:5] == ["first", "second and", "third", "one", ""]
    region.close()
    region.close()
    desk.file.write("x\n")
    assert desk.lines[:4] == ["first", "second and", "third x", ""]


def test_at_the_bottom_the_screen_makes_room(desk: Desk) -> None:
    region = Region([desk.file], desk.descriptor)
    region.open()
    desk.file.write("\n".join(f"line {number}" for number in range(LINES)))
    region.show(["a", "b", "c"])
    assert desk.lines == ["line 3", "line 4", "line 5", "line 6", "line 7", "a", "b", "c"]
    region.show([f"row {number}" for number in range(40)])
    assert desk.lines == ["line 6", "line 7", *(f"row {number}" for number in range(6))]
    region.close()
    assert desk.everything.split("\n") == [f"line {number}" for number in range(LINES)]


def test_what_cannot_be_encoded_moves_nothing(desk: Desk) -> None:
    region = Region([desk.file], desk.descriptor)
    region.open()
    desk.file.write("a")
    region.show(["below"])
    with pytest.raises(UnicodeEncodeError):
        desk.file.write("\ud800")
    desk.file.write("b")
    assert desk.lines[:2] == ["ab", "below"]
    region.close()


def test_a_terminal_that_grows_shows_more(desk: Desk) -> None:
    region = Region([desk.file], desk.descriptor)
    rows = [f"row {number}" for number in range(12)]
    region.open()
    desk.file.write("mine")
    region.show(rows)
    assert desk.lines == ["mine", *rows[: LINES - 2], ""]
    desk.resize(COLUMNS, LINES + 3)
    region.show(rows)
    assert desk.lines == ["mine", *rows[: LINES + 1], ""]
    region.close()
    assert [line for line in desk.lines if line] == ["mine"]


def test_a_file_has_its_own_write_back(desk: Desk) -> None:
    usual = desk.file.write
    region = Region([desk.file], desk.descriptor)
    region.open()
    assert desk.file.write != usual
    region.close()
    assert desk.file.write == usual


@pytest.mark.parametrize("after", ["show", "write", "close"])
@pytest.mark.parametrize("last", ["mine", "", "x" * (COLUMNS + 3), "\n" * LINES])
def test_enter_leaves_no_line_behind(desk: Desk, after: str, last: str) -> None:
    region = Region([desk.file], desk.descriptor)
    region.open()
    desk.file.write(last)
    desk.file.flush()
    region.show(["one", "two"])
    desk.draw()
    above = [line for line in desk.lines if line][:-2]
    desk.press_enter()
    if after == "show":
        region.show(["one", "three"])
        assert [line for line in desk.lines if line] == [*above, "one", "three"]
    elif after == "write":
        desk.file.write("more")
        assert [line for line in desk.lines if line] == [*above, "more", "one", "two"]
    region.close()
    assert [line for line in desk.lines if line] == [*above, *(["more"] if after == "write" else [])]


def test_a_terminal_that_is_gone_breaks_nothing_of_the_region() -> None:
    desk = Desk()
    desk.file.reconfigure(write_through=True)
    usual = desk.file.write
    region = Region([desk.file], desk.descriptor)
    region.open()
    region.show(["one"])
    os.close(desk._end)
    region.show(["two"])
    region.close()
    assert desk.file.write == usual
    desk.file.close()
    with pytest.raises(OSError, match=r"\[Errno 9\]"):
        os.fstat(desk.descriptor)


WORDS = st.sampled_from(
    [
        "a",
        "test.py ",
        "." * 7,
        "=" * COLUMNS,
        "x" * 33,
        "\n",
        "\n\n",
        "ok\n",
        "\r",
        "\x1b[31mred\x1b[0m",
        "\x1b[0m",
        "宽宽",
    ]
)
SHOWN = st.lists(st.sampled_from(["", "row", "r" * (COLUMNS - 1), "\x1b[1mbold\x1b[0m"]), max_size=LINES + 2)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(st.tuples(st.just("write"), WORDS), st.tuples(st.just("show"), SHOWN)), max_size=40))
def test_whatever_is_written_and_shown_the_screen_is_the_same(steps: list[tuple[str, object]]) -> None:
    watched, plain = Desk(), Desk()
    region = Region([watched.file], watched.descriptor)
    region.open()
    for what, value in steps:
        if what == "write":
            watched.file.write(str(value))
            plain.file.write(str(value))
        elif isinstance(value, list):
            region.show(value)
        watched.draw()
    region.close()
    for desk in (watched, plain):
        desk.file.write("\n.\n")
    try:
        assert watched.everything == plain.everything
    finally:
        os.close(plain.descriptor)
        watched.close()
        plain.close()
