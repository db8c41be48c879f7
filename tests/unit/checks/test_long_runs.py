"""Long runs, and a race in which a late answer is dropped, hold every law to the token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.checks import run_checks
from pytest_benchflow.checks._evidence import rebuilt
from pytest_benchflow.records.rollout import Rollout
from tests.unit.rollouts import OPENING, Talk, assistant, call, exchange, result_of, write_rollout

if TYPE_CHECKING:
    from pathlib import Path

# A production run of 50 exchanges in which a client gave up and asked again: what it cost, and what of that counts.
BILLED, SELECTED, EXCLUDED = 3_218_038, 2_954_590, 263_448


def run_of(length: int) -> list[dict[str, Any]]:
    talk = Talk()
    for number in range(length - 1):
        talk.ask(assistant(f"Step {number}.", call(f"c{number}"), call(f"d{number}")))
    talk.ask(assistant("", call("end", "finish", message="Done.")))
    return talk.records


@pytest.mark.parametrize("length", [9, 25, 50, 105])
def test_long_runs_hold_every_law(tmp_path: Path, length: int) -> None:
    rollout = Rollout(write_rollout(tmp_path, run_of(length)).path)
    assert not run_checks(rollout).findings
    row = rebuilt(rollout)
    assert [step["extras"]["exchange_index"] for step in row.row["trajectory"]] == list(range(length))
    assert row.tokens == {"billed": 110 * length, "selected": 110 * length, "excluded": 0}


def race(late_is_used: bool) -> list[dict[str, Any]]:
    """Return 50 exchanges: two answers to one request, of which a later request carries one."""
    share, rest = divmod(SELECTED, 49)
    records = []
    history = list(OPENING)
    for number in range(48):
        answer = assistant(f"Step {number}.", call(f"c{number}"))
        records.append(exchange(history, answer, tokens=(share - 10, 10)))
        history = [*history, answer, result_of(f"c{number}")]
        if number == 23:
            other = exchange(
                history, assistant("Another way.", call("late")), tokens=(EXCLUDED - 10, 10), client_gone=True
            )
            records.append(other)
    records.append(
        exchange(history, assistant("", call("end", "finish", message="Done.")), tokens=(share + rest - 10, 10))
    )
    if late_is_used:
        # The answer that came first is the one that no request carries: the late one's call was executed.
        records[24], records[25] = records[25], records[24]
    return records


@pytest.mark.parametrize("late_is_used", [False, True], ids=["late-one-dropped", "first-one-dropped"])
def test_a_race_adds_up_to_the_token(tmp_path: Path, late_is_used: bool) -> None:
    records = race(late_is_used)
    rollout = Rollout(write_rollout(tmp_path, records).path)
    assert not run_checks(rollout).findings
    row = rebuilt(rollout)
    assert row.tokens == {"billed": BILLED, "selected": SELECTED, "excluded": EXCLUDED}
    assert len(row.row["trajectory"]) == 49
    dropped = [each for each in row.exchanges if not each["selected"]]
    assert [(each["index"], each["reason"]) for each in dropped] == [(25 if late_is_used else 24, "superseded_retry")]


def test_an_answer_after_the_end_is_billed_and_no_step(tmp_path: Path) -> None:
    records = run_of(9)
    late = exchange(records[4]["request"]["body"]["messages"], assistant("", call("late")), client_gone=True)
    rollout = Rollout(write_rollout(tmp_path, [*records, late | {"metadata": {"started_seq": 4.5}}]).path)
    assert not run_checks(rollout).findings
    assert rebuilt(rollout).tokens == {"billed": 1100, "selected": 990, "excluded": 110}
