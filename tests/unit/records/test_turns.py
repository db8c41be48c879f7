"""Work on files is done by one thread at a time, and none waits long for another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_benchflow.records import turns
from pytest_benchflow.records.turns import in_turn

LONG_SEC = 60


def test_threads_work_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONGEST_WAIT_SEC", LONG_SEC)
    under_way: list[int] = []
    waited = threading.Event()

    def work(number: int) -> int:
        under_way.append(number)
        waited.wait(0.01)  # long enough for others to come in, if they could
        together = len(under_way)
        under_way.remove(number)
        return together

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda number: in_turn(work, number), range(12))) == {1}


def test_what_takes_long_holds_up_nobody() -> None:
    begun, end = threading.Event(), threading.Event()

    def long() -> bool:
        begun.set()
        return end.wait(LONG_SEC)

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(in_turn, long)
        assert begun.wait(LONG_SEC)
        assert in_turn(lambda: "done") == "done"
        assert not first.done()
        end.set()
        assert first.result()


def test_a_turn_ends_with_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        in_turn(divmod, 1, 0)
    monkeypatch.setattr(turns, "LONGEST_WAIT_SEC", LONG_SEC)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(in_turn, divmod, 7, 2).result(LONG_SEC / 2) == (3, 1)
