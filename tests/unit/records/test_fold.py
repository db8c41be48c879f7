"""A folded log reads as an unfolded one does, whatever is in it, and shares what repeats."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.jsontext import strict
from pytest_benchflow.records.trajectory import Torn, read_exchanges, read_rows, whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.records.trajectory import Log

STYLES: dict[str, dict[str, Any]] = {
    "compact": {"separators": (",", ":"), "ensure_ascii": False},
    "spaced": {},
    "wide": {"separators": (" ,  ", " : ")},
}
TOOLS = [{"name": "bash", "messages": [1], "prompt": ["x"]}]

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text('ab",:[]{}\\\u00e9\u2028\U0001f600', max_size=6)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "messages", "tools", '"']), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Requests that extend, repeat, shorten or leave each other's history."""
    records: list[dict[str, Any]] = []
    history: list[Any] = []
    for _ in range(draw(st.integers(1, 6))):
        history = history[: draw(st.integers(0, len(history)))] if draw(st.booleans()) else history
        history = history + draw(st.lists(values, max_size=3))
        body: dict[str, Any] = {"model": draw(scalars), "messages": history}
        if draw(st.booleans()):
            body = {"tools": draw(st.sampled_from([TOOLS, [], TOOLS * 2])), **body}
        records.append({"id": draw(values), "request": {"body": body}, "response": draw(values)})
    return records


def write(path: Path, records: list[dict[str, Any]], style: str) -> Path:
    path.write_bytes(b"".join(json.dumps(record, **STYLES[style]).encode() + b"\n" for record in records))
    return path


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(records=logs())
def test_folding_changes_no_value(tmp_path: Path, style: str, records: list[dict[str, Any]]) -> None:
    assert read_exchanges(write(tmp_path / "log.jsonl", records, style)) == records


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(records=logs(), data=st.data())
def test_a_changed_byte_is_read_as_without_folding(
    tmp_path: Path, records: list[dict[str, Any]], data: st.DataObject
) -> None:
    path = write(tmp_path / "log.jsonl", records, data.draw(st.sampled_from(sorted(STYLES))))
    assert_read_as_without_folding(path, data, read_exchanges)


def assert_read_as_without_folding(path: Path, data: st.DataObject, read: Callable[[Path], Log]) -> None:
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from(b'",:[]{}\\ x0\x00\xff\xc3'))
    path.write_bytes(raw)
    for line, record in zip([line for line in raw.split(b"\n") if line.strip()], read(path), strict=True):
        try:
            expected = strict(line)
        except ValueError:
            expected = None
        assert (None if isinstance(record, Torn) else record) == (expected if isinstance(expected, dict) else None)


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows whose steps' prompts grow, and whose completion is what they come to hold, or something else."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        talk = draw(st.lists(values, min_size=1, max_size=8))
        cut = draw(st.integers(0, len(talk)))
        head = draw(st.lists(values, max_size=1))
        sizes = sorted(draw(st.lists(st.integers(0, len(talk)), max_size=5)))
        other = draw(st.booleans())
        made.append(
            {
                "prompt": talk[:cut],
                "completion": draw(values) if other else [*talk[cut:], *draw(st.lists(values, max_size=1))],
                "info": draw(values),
                "trajectory": [{"prompt": head + talk[:size], "completion": draw(values)} for size in sizes],
            }
        )
    return made


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=rows())
def test_folding_changes_no_row(tmp_path: Path, style: str, rows: list[dict[str, Any]]) -> None:
    assert read_rows(write(tmp_path / "row", rows, style)) == rows


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=rows(), data=st.data())
def test_a_changed_byte_of_a_row_is_read_as_without_folding(
    tmp_path: Path, rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    assert_read_as_without_folding(
        write(tmp_path / "row", rows, data.draw(st.sampled_from(sorted(STYLES)))), data, read_rows
    )


def exchange(messages: list[Any], **body: Any) -> dict[str, Any]:
    return {"request": {"body": {"tools": TOOLS, "messages": messages, **body}}, "response": {"body": {"n": 1}}}


def test_what_repeats_is_the_same_object(tmp_path: Path) -> None:
    history = [{"role": "user", "content": f"message {number}"} for number in range(6)]
    records = [exchange(history[:2]), exchange(history[:4]), exchange(history[:4]), exchange(history)]
    read = whole(read_exchanges(write(tmp_path / "log.jsonl", records, "spaced")))
    bodies = [record["request"]["body"] for record in read]
    for earlier, later in itertools.pairwise(bodies):
        size = len(earlier["messages"])
        assert all(a is b for a, b in zip(earlier["messages"], later["messages"][:size], strict=True))
        assert earlier["tools"] is later["tools"]


def test_two_conversations_at_a_time_are_each_shared(tmp_path: Path) -> None:
    main = [{"role": "user", "content": f"main {number}"} for number in range(4)]
    side = [{"role": "user", "content": f"side {number}"} for number in range(4)]
    records = [exchange(main[:2]), exchange(side[:2]), exchange(main), exchange(side)]
    read = [
        record["request"]["body"]["messages"]
        for record in whole(read_exchanges(write(tmp_path / "l", records, "spaced")))
    ]
    assert read[2][1] is read[0][1]
    assert read[3][1] is read[1][1]


def test_the_completion_is_what_the_prompts_came_to_hold(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": f"{number} " * 200} for number in range(6)]
    steps = [{"prompt": [{"role": "system"}, *talk[:size]]} for size in (1, 3, 5)]
    # Something stands before the row's own prompt, which therefore opens in another way than a step's.
    row = {"example_id": 0, "prompt": talk[:1], "completion": talk[1:], "info": {}, "trajectory": steps}
    path = write(tmp_path / "rows", [row, row], "spaced")
    read = whole(read_rows(path))[1]
    assert read == row
    assert all(a is b for a, b in zip(read["completion"], read["trajectory"][-1]["prompt"][2:], strict=False))


def test_prompts_of_steps_are_shared(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": str(number)} for number in range(5)]
    row = {"prompt": messages[:1], "trajectory": [{"prompt": messages[:1]}, {"prompt": messages[:3]}]}
    (read,) = whole(read_rows(write(tmp_path / "row", [row], "compact")))
    assert read == row
    assert read["trajectory"][1]["prompt"][0] is read["prompt"][0]


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b'{"request": {"body": {"messages": [{"b": 1, "b": 1}]}}}', "'b' is there twice"),
        (b'{"request": {"body": {"messages": [1], "messages": [1]}}}', "'messages' is there twice"),
        (b'{"a": "\\u0022x", "a": 1, "c": "\\u0022"}', "'a' is there twice"),
        (b'{"a": "\xff"}', "invalid start byte"),
        (b'{"request": {"body": {"messages": [{"c": "\xff"}]}}}', "invalid start byte"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1', "cut off"),
        (b'{"a": 1} {"b": 2}', "something follows"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"request": {"body": {"messages": ' + b"[" * 100_000, "nested too deeply"),
        (b"[1]", "a list, where each line holds a JSON object"),
    ],
    ids=[
        *("key-twice", "message-key-twice", "history-twice", "hidden-quotes", "not-utf8", "message-not-utf8"),
        *("nan", "torn", "two", "deep", "deep-history", "list"),
    ],
)
def test_a_line_that_is_no_record_names_file_and_line(tmp_path: Path, damaged: bytes, said: str) -> None:
    path = tmp_path / "llm_trajectory.jsonl"
    path.write_bytes(json.dumps(exchange([{"c": 1}])).encode() + b"\n" + damaged)
    log = read_exchanges(path)
    assert isinstance(log[0], dict), "what stands before it is read"
    with pytest.raises(RecordError, match=rf"llm_trajectory\.jsonl:2: .*{said}"):
        whole(log)


def test_lone_surrogates_are_read_as_they_were_written(tmp_path: Path) -> None:
    record = exchange([{"content": "\ud83d"}, {"content": "\U0001f600"}])
    path = tmp_path / "log"
    path.write_bytes(json.dumps(record).encode() + b"\n" + json.dumps(record).encode() + b"\n")
    assert read_exchanges(path) == [record, record]


def test_deep_nesting_that_python_can_hold_is_a_value(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    record = exchange([{"content": deep}])
    assert read_exchanges(write(tmp_path / "log", [record, record], "compact")) == [record, record]


def test_a_line_of_200_mb_without_an_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "llm_trajectory.jsonl"
    path.write_bytes(b'{"request": {"body": {"messages": [{"content": "' + b"x" * 200_000_000)
    with pytest.raises(RecordError, match=r"llm_trajectory\.jsonl:1: not JSON .* cut off"):
        whole(read_exchanges(path))
