"""No item of any type is dropped: it becomes part of a turn, or it is named as what no turn can hold."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.contracts.dialectitems import MARK, PLACES, Place
from tests.contracts.dialectrig import RIGS

MAPPED = {f"{name}-{kind}": (place, item) for name, place in PLACES.items() for kind, item in place.mapped.items()}
UNSUPPORTED = {f"{name}-{kind}": (place, kind) for name, place in PLACES.items() for kind in place.unsupported}
ANSWERS = {name: place for name, place in PLACES.items() if place.answer is not None}


def named(kind: str, unsupported: tuple[str, ...]) -> bool:
    return any(kind in re.split(r"\W+", reason) for reason in unsupported)


@pytest.mark.parametrize("case", MAPPED.values(), ids=MAPPED.keys())
def test_a_mapped_type_is_there_in_a_turn(case: tuple[Place, dict[str, Any]]) -> None:
    place, item = case
    dialect = RIGS[place.format].dialect
    turns = dialect.request_turns(place.put(item))
    assert [turn.unsupported for turn in turns] == [()]
    assert MARK in str(turns[0]) or turns[0].reasoning == 1, "what it says is in the turn, or counted as reasoning"
    if place.answer is not None:
        assert dialect.outcome(200, place.answer(item)).kind in ("completed", "refused")
        answer = dialect.response_turn(place.answer(item))
        assert answer == turns[0]


@pytest.mark.parametrize("case", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_a_type_that_no_turn_can_hold_is_named(case: tuple[Place, str]) -> None:
    place, kind = case
    dialect = RIGS[place.format].dialect
    (turn,) = dialect.request_turns(place.put({"type": kind}))
    assert named(kind, turn.unsupported)
    if place.answer is not None:
        body = place.answer({"type": kind})
        assert dialect.outcome(200, body).kind == "completed", "the provider's own work is known, only not trained on"
        answer = dialect.response_turn(body)
        assert answer is not None
        assert named(kind, answer.unsupported)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_an_unknown_type_is_named(place: Place) -> None:
    turns = RIGS[place.format].dialect.request_turns(place.put({"type": "hologram"}))
    assert any(named("hologram", turn.unsupported) for turn in turns)


@pytest.mark.parametrize("place", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_with_an_unknown_type_is_not_complete(place: Place) -> None:
    assert place.answer is not None
    dialect = RIGS[place.format].dialect
    body = place.answer({"type": "hologram"})
    outcome = dialect.outcome(200, body)
    assert outcome.kind == "partial"
    assert "hologram" in str(outcome.reason)
    answer = dialect.response_turn(body)
    assert answer is not None
    assert named("hologram", answer.unsupported)


@pytest.mark.parametrize(
    "item",
    [None, 7, "text", ["nested"], {}, {"type": None}],
    ids=["null", "number", "text", "list", "empty", "no-type"],
)
@pytest.mark.parametrize("name", RIGS)
def test_an_item_of_no_shape_is_not_dropped(name: str, item: Any) -> None:
    rig = RIGS[name]
    turns = rig.dialect.request_turns(rig.request(rig.user("go"), item, rig.user("on")))
    assert [turn.text for turn in turns if not turn.unsupported] == ["go", "on"]
    assert sum(bool(turn.unsupported) for turn in turns) == 1
