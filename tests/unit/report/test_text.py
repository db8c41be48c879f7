"""Text that a terminal shows and does not obey, and numbers in words."""

from __future__ import annotations

import pytest

from pytest_benchflow.report.text import cost_text, counted, one_line, printable, reward_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("umlaut ä and 字", "umlaut ä and 字"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb", "a\\u202eb"),
        ("bell\x07\x00", "bell\\x07\\x00"),
        ("lone \ud800", "lone \\ud800"),
        ("carriage\rreturn", "carriage\\x0dreturn"),
        ("two\nlines", "two\nlines"),
        ("::stop-commands::x", "\\x3a:stop-commands::x"),
        ("said:\n \u3000::error::x\n\n::y", "said:\n \u3000\\x3a:error::x\n\n\\x3a:y"),
        ("a ##[add-mask]b ##vso[task.x]c", "a ##\\x5badd-mask]b ##vso\\x5btask.x]c"),
        ("std::move(x) is # no [command] ## here", "std::move(x) is # no [command] ## here"),
    ],
    ids=["ascii", "unicode", "escape", "c1", "bidi", "bell", "surrogate", "return", "newline",
         "command", "later-commands", "old-commands", "no-command"],
)  # fmt: skip
def test_nothing_commands_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert printable("x" * 12, limit=10) == "x" * 10 + "… (2 characters more)"


def test_one_line_folds_white_space() -> None:
    assert one_line("a\n  b\tc\r\n") == "a b c"


@pytest.mark.parametrize(
    ("reward", "text"),
    [(None, "unknown"), (0.0, "0"), (1.0, "1"), (1 / 3, "0.333"), (-2.5, "-2.5"), (100.0, "100")],
    ids=["unknown", "zero", "one", "third", "negative", "hundred"],
)
def test_rewards(reward: float | None, text: str) -> None:
    assert reward_text(reward) == text


@pytest.mark.parametrize(
    ("cost", "text"),
    [(None, "unknown"), (0.0123, "$0.0123"), (1234.5, "$1,234.50")],
    ids=["unknown", "cents", "dollars"],
)
def test_costs(cost: float | None, text: str) -> None:
    assert cost_text(cost) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234, "1,234 files")])
def test_numbers_of_things(number: int, text: str) -> None:
    assert counted(number, "file") == text
