from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.exporters._branches import branches
from pytest_benchflow.training.row import build_row
from tests.unit.rollouts import (
    Talk,
    assistant,
    call,
    config,
    exchange,
    result,
    result_of,
    system,
    three_steps,
    user,
    write_records,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def cut(path: Path, records: Sequence[Any], role: str = "policy") -> list[list[int]]:
    row = build_row(write_records(path, records), result=result(records), config=config())
    return [[exchange.index for exchange in branch.exchanges] for branch in branches(row.records, role)]


def test_a_conversation_that_grows_is_one_branch(tmp_path: Path) -> None:
    assert cut(tmp_path, three_steps()) == [[0, 1, 2]]


def test_a_history_that_was_replaced_starts_another(tmp_path: Path) -> None:
    before, after = Talk(), Talk(system(), user(), user("Summary: parse.py was read."))
    before.ask(assistant("I look.", call("c1")))
    before.ask(assistant("What next?"))
    after.ask(assistant("", call("c2")))
    after.ask(assistant("Repaired."))
    assert cut(tmp_path, before.records + after.records) == [[0, 1], [2, 3]]


def test_a_history_that_keeps_its_last_turns_starts_another_too(tmp_path: Path) -> None:
    talk = Talk()
    for number in range(3):
        talk.ask(assistant("", call(f"c{number}")))
    short = [system(), user(), user("Some turns are left out."), *talk.history[-2:]]
    records = [*talk.records, exchange(short, assistant("Repaired."))]
    assert cut(tmp_path, records) == [[0, 1, 2], [3]]


@pytest.mark.parametrize(
    "sent_back",
    [
        {"role": "assistant", "content": None, "tool_calls": [call("c1", cmd="ls")]},
        {"role": "assistant", "content": "  I look. \n", "tool_calls": [call("c1", cmd="ls")]},
        {"role": "assistant", "content": "I look.", "tool_calls": [call("c1", cmd="ls") | {"index": 0}]},
    ],
    ids=["text gone", "text trimmed otherwise", "other keys"],
)
def test_an_answer_that_a_client_sends_back_changed_is_still_that_answer(sent_back: Any, tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("I look.", call("c1", cmd="ls")), used=False)
    talk.history += [sent_back, result_of("c1")]
    talk.ask(assistant("Done."))
    assert cut(tmp_path, talk.records) == [[0, 1]]


def test_an_answer_that_was_not_used_is_no_branch(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("late")), used=False)
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("Done."))
    assert cut(tmp_path, talk.records) == [[1, 2]]


def test_two_histories_that_go_on_from_one_answer_share_it(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    shared = list(talk.history)
    talk.ask(assistant("One end."))
    records = [*talk.records, exchange([*shared, user("Try again.")], assistant("Another end."))]
    assert cut(tmp_path, records) == [[0, 1], [0, 2]]


def test_side_calls_have_branches_of_their_own(tmp_path: Path) -> None:
    title = exchange([system("Name the conversation."), user()], assistant("Parser repair"), tools=None)
    assert cut(tmp_path, [title, *three_steps()]) == [[1, 2, 3]]
    assert cut(tmp_path, [title, *three_steps()], "side") == [[0]]
