"""How late a loop is while its process works is not hidden by the time in which it only waits."""

from __future__ import annotations

from benchmarks.concurrency import ASKED_EACH_SEC, AT_WORK, TOGETHER, Lateness


def lateness(*parts: tuple[int, float, float]) -> Lateness:
    """Return samples: how many, how late each was, and the CPU seconds that the process used in each."""
    late, used = Lateness(), 0.0
    for count, seconds, cpu in parts:
        for _ in range(count):
            used += cpu
            late.seconds.append(seconds)
            late.used.append(used)
    return late


def test_what_was_found_while_all_waited_is_not_counted() -> None:
    waiting, working = AT_WORK * ASKED_EACH_SEC / 5, AT_WORK * ASKED_EACH_SEC * 2
    late = lateness((50 * TOGETHER, 0.0001, waiting), (TOGETHER, 0.02, working), (50 * TOGETHER, 0.0001, waiting))
    assert late.at(0.99) == 0.0001
    assert late.at_work().seconds == [0.02] * TOGETHER
    assert late.at_work().at(0.99) == 0.02


def test_where_the_process_never_worked_all_is_counted() -> None:
    late = lateness((3 * TOGETHER, 0.001, 0.0))
    assert late.at_work() is late
    assert lateness((1, 0.001, 1.0)).at_work().at(0.99) == 0.001
