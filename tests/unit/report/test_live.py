"""What is shown of rollouts under way: counters, a line each, and nothing that an agent could do with it."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pytest_benchflow.records.underway import UnderWay
from pytest_benchflow.report.board import Board, money, span
from pytest_benchflow.report.live import View
from pytest_benchflow.report.plain import Plain
from pytest_benchflow.settings import Settings


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def rollout(name: str, **values: Any) -> dict[str, Any]:
    made = UnderWay(name=name, task=f"org/{name}", agent="openhands", model="m", skills="default", trial=1)
    return {"rollout": {**made.as_dict(), **values}}


def modelled(name: str, **values: Any) -> dict[str, Any]:
    return rollout(name, **{"calls_model": True, "paid": True, "phase": "agent_execution", **values})


def shown(board: Board, columns: int = 100, lines: int = 40) -> list[str]:
    return [line.rstrip() for line in View(Settings(), colour=False).lines(board.standing(), columns, lines)]


def test_counters_and_lines() -> None:
    clock = Clock()
    board = Board(clock)
    board.take({"planned": 6})
    board.take(modelled("one"), "gw0")
    clock.now += 75
    board.take(modelled("one", exchanges=3, tokens=1234, cost=0.5, tool="shell"), "gw0")
    board.take(modelled("two", phase="verifier", exchanges=1, untold=1, unpriced=1), "gw1")
    board.take(rollout("nop", phase="environment_setup"), "gw1")
    clock.now += 2
    _rule, status, *table = shown(board)
    assert status == "3 under way · 0 finished · 3 left · cost $0.5000 + unknown · time left unknown"
    assert table == [
        "rollout          phase           steps   tokens     cost  last tool",
        "one · openhands  agent 1:17 min      3    1,234  $0.5000  shell",
        "two · openhands  verifier 2 s        1  unknown  unknown  -",
        "nop · openhands  sandbox 2 s         -        -        -  -",
    ]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ("words", "a process tells 'words'"),
        ({"plan": 3}, "a process tells {'plan': 3}"),
        ({"planned": "many"}, "a process tells planned as a str"),
        ({"rollout": {"name": "two"}}, "too much or too little: 'agent'"),
        (rollout("two", colour="red"), "too much or too little: 'colour'"),
        (rollout("two", exchanges="many"), "exchanges of a rollout under way is a str, where int belongs"),
        (rollout("two", tokens=True), "tokens of a rollout under way is a bool"),
        (rollout("two", cost=float("nan")), "cost of a rollout under way is nan"),
        ({"fault": "KeyError: 'one'"}, "KeyError: 'one'"),
    ],
)
def test_what_cannot_be_read_is_kept_as_a_fault_and_changes_nothing(told: Any, says: str) -> None:
    board = Board()
    board.take({"planned": 6})
    board.take(modelled("one"), "gw0")
    before = shown(board)
    board.take(told, "gw1")
    board.take({"fault": "a later one"}, "gw0")
    assert board.fault is not None
    assert board.fault.startswith("gw1: ")
    assert says in board.fault
    assert shown(board) == before
    board.take({"planned": 7}, "gw1")
    assert shown(board) != before


def test_what_has_ended_is_counted_and_tells_how_long_the_rest_takes() -> None:
    clock = Clock()
    board = Board(clock)
    board.take({"planned": 10})
    for number in range(4):
        board.take(modelled(f"r{number}"))
    board.take({"without": "kept"})
    clock.now += 30
    board.take(modelled("r0", ended=True, verdict="pass", healthy=True, seconds=30.0, cost=1.0, exchanges=1))
    assert board.standing().eta is None
    board.take(modelled("r1", ended=True, verdict="unhealthy", healthy=False, seconds=50.0, cost=1.0, exchanges=1))
    standing = board.standing()
    assert (standing.finished, standing.healthy, standing.left, standing.cost) == (2, 1, 5, "$2.00")
    # Five that take 40 s each, and two that have 10 s to go, two at a time.
    assert standing.eta == pytest.approx((5 * 40 + 2 * 10) / 2)
    assert "2 finished · 1 healthy · 1 unhealthy · 5 left · cost $2.00 · time left about 1:50 min" in str(standing)


def test_what_a_process_that_is_gone_had_under_way_is_not_under_way() -> None:
    board = Board()
    board.take({"planned": 3})
    board.take(modelled("one", exchanges=1, cost=0.25), "gw0")
    board.take(modelled("two"), "gw1")
    board.gone("gw0")
    standing = board.standing()
    assert [seen.rollout.name for seen in standing.under_way] == ["two"]
    assert (standing.finished, standing.left, standing.cost) == (0, 2, "$0.2500 + unknown")


def test_nothing_is_shown_where_nothing_is_left() -> None:
    board = Board()
    board.take({"planned": 1})
    board.take(rollout("one", ended=True, verdict="pass", healthy=True, seconds=1.0))
    assert shown(board) == []
    assert shown(board, columns=1) == []


def test_those_without_a_sign_for_long_have_no_room_and_lines_keep_their_places() -> None:
    clock = Clock()
    board = Board(clock)
    for number in range(9):
        clock.now += 1
        board.take(rollout(f"r{number}", phase="verifier"))
    clock.now += 1
    board.take(rollout("r2", phase="records"))
    lines = shown(board, lines=9)  # six of which are the view's
    assert [line.split()[0] for line in lines[1:]] == ["r2", "r6", "r7", "r8", "and"]
    assert lines[-1] == "and 5 more"


@pytest.mark.parametrize("columns", [100, 60, 40, 25, 12, 2])
def test_no_line_is_as_wide_as_the_terminal(columns: int) -> None:
    board = Board()
    board.take({"planned": 2000})
    board.take(modelled("宽" * 30, exchanges=10**6, tokens=10**9, cost=1e6, unpriced=1, tool="t" * 300))
    board.take(modelled("short", step="a step with quite a name"))
    lines = View(Settings(), colour=False).lines(board.standing(), columns, 40)
    from rich.cells import cell_len

    assert lines
    assert max(map(cell_len, lines)) < columns


HOSTILE = ["\x1b[2J\x1b[H", "a\nb\rc\td", "\x9b31m", "[bold red]x[/]", "\u202eevil", "\x00\x07\x08"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_agents_wrote_is_shown_and_not_obeyed(text: str) -> None:
    board = Board()
    board.take(modelled("one", tool=text, step=text, task=text))
    for colour in (True, False):
        lines = View(Settings(), colour=colour).lines(board.standing(), 200, 40)
        plain = "".join(lines)
        assert len(lines) == 4
        for character in "\x9b\x00\x07\x08\r\t\n\u202e":
            assert character not in plain
        assert "\x1b[2J" not in plain
        assert "\x1b[H" not in plain
    if text.startswith("["):
        assert text in plain  # it is no markup


def test_money_that_is_not_known_is_not_nothing() -> None:
    def paid(**values: Any) -> UnderWay:
        return UnderWay.of_dict(modelled("x", **values)["rollout"])

    assert money([UnderWay.of_dict(rollout("x")["rollout"])]) is None
    assert money([paid()]) is None
    assert money([paid(exchanges=1, unpriced=1)]) == "unknown"
    assert money([paid(exchanges=1), paid(exchanges=2, cost=0.5, unpriced=1)]) == "$0.5000 + unknown"
    assert [span(seconds) for seconds in (0.9, 59.9, 60, 3599, 3661)] == [
        "0 s",
        "59 s",
        "1:00 min",
        "59:59 min",
        "1:01:01 h",
    ]


def test_plain_lines_come_once_each_and_a_summary_once_a_minute() -> None:
    clock, written = Clock(), list[str]()
    board = Board(clock)
    plain = Plain(board, Settings(), written.append, clock)
    board.take({"planned": 2})
    board.take(rollout("one"))
    board.take(rollout("one", phase="verifier"))
    plain.tell()
    plain.sum_up()
    clock.now += 61
    plain.sum_up()
    plain.sum_up()
    board.take(rollout("one", ended=True, verdict="unhealthy", category="infra: sandbox", seconds=3.21))
    board.take(rollout("two", ended=True, seconds=None))  # begun and ended between two looks
    plain.close()
    plain.close()
    assert written == [
        "benchflow: begun: one · openhands",
        "benchflow: 1 under way · 0 finished · 1 left · time left unknown",
        "benchflow: ended: one · openhands: unhealthy (infra: sandbox)  3.2 s",
        "benchflow: begun: two · openhands",
        "benchflow: ended: two · openhands: unknown  unknown",
    ]


def test_lines_for_a_terminal_that_is_gone_are_dropped() -> None:
    board, tried = Board(), list[str]()

    def write(line: str) -> None:
        tried.append(line)
        raise OSError(errno.EIO, "Input/output error")

    plain = Plain(board, Settings(), write)
    plain.start()
    board.take(rollout("one"))
    board.take(rollout("one", ended=True, verdict="pass", healthy=True, seconds=1.0))
    plain.close()
    assert [line.split()[1] for line in tried] == ["begun:", "ended:"]
