"""JSON as agents really send it, without loss."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_benchflow.records.jsontext import dumps, loads


@pytest.mark.parametrize(
    "value",
    [{"a": "\ud800"}, ["\ud83d\ude00"], {"n": 2**70, "s": "\udfff"}, "é\u2028", {"é": [1.5, None, True]}],
    ids=["surrogate", "pair-of-escapes", "big-number", "separator", "ordinary"],
)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert loads(dumps(value).decode()) == loads(dumps(value))
    if value != ["\ud83d\ude00"]:
        assert loads(dumps(value)) == value
    else:
        assert loads(dumps(value)) == ["😀"]


def test_what_is_no_number_is_written_as_null_with_or_without_a_surrogate() -> None:
    assert loads(dumps([math.inf, math.nan])) == [None, None]
    assert loads(dumps({"s": "\ud800", "n": (math.inf, [math.nan])})) == {"s": "\ud800", "n": [None, [None]]}


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        '["\\ud800", NaN]',
        '["\\ud800", Infinity]',
        '{"a": 1',
        '"\\ud800',
        "'x'",
        b'"\xff"',
        "[" * 5000 + '"\\ud800"',
    ],
    ids=["nan", "nan-after-surrogate", "infinity", "cut", "cut-string", "quotes", "no-utf-8", "deep"],
)
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        loads(text)
