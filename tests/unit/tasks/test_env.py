from __future__ import annotations

import pytest

from pytest_benchflow.tasks.env import expand_env, unset_variables

HOST = {"KEY": "leaf", "EMPTY": ""}


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        pytest.param("plain", "plain", id="literal"),
        pytest.param("${KEY}", "leaf", id="set"),
        pytest.param("${KEY}/${KEY}", "leaf/leaf", id="twice"),
        pytest.param("${KEY:-pot}", "leaf", id="set-wins-over-default"),
        pytest.param("${MISSING:-pot}", "pot", id="default"),
        pytest.param("${MISSING:-}", "", id="empty-default"),
        pytest.param("${EMPTY:-pot}", "pot", id="empty-takes-default"),
        pytest.param("$KEY", "$KEY", id="without-braces-is-text"),
        pytest.param("${not a name}", "${not a name}", id="no-name-is-text"),
    ],
)
def test_templates_are_filled(value: str, expanded: str) -> None:
    assert expand_env({"A": value}, HOST.get) == {"A": expanded}
    assert unset_variables({"A": value}, HOST.get) == ()


@pytest.mark.parametrize("value", ["${MISSING}", "${KEY}-${MISSING}", "${EMPTY}"], ids=["alone", "in-part", "empty"])
def test_what_is_unset_is_left_out_and_named(value: str) -> None:
    values = {"A": value, "B": "kept"}
    assert expand_env(values, HOST.get) == {"B": "kept"}
    assert unset_variables(values, HOST.get) == ("EMPTY" if "EMPTY" in value else "MISSING",)


def test_a_filled_value_is_not_filled_again() -> None:
    assert expand_env({"A": "${OUTER}"}, {"OUTER": "${INNER}", "INNER": "x"}.get) == {"A": "${INNER}"}
