"""An effort on its way: what is known at each station, and when a reader is warned."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.proxy import _effort
from pytest_benchflow.records.jsontext import dumps

CHAT, RESPONSES = dialect_for("/v1/chat/completions"), dialect_for("/v1/responses")
assert CHAT is not None
assert RESPONSES is not None


def test_a_request_without_an_effort_has_no_evidence() -> None:
    assert _effort.sent(CHAT, {"messages": []}, None) == {}
    assert _effort.ended(CHAT, {}, b"null") == []


def test_one_that_was_asked_for_and_not_sent_is_seen() -> None:
    metadata = _effort.sent(CHAT, {"messages": []}, "max")
    assert _effort.ended(CHAT, metadata, b"{}") == []
    assert metadata["effort"] == {"asked": "max", "agent": None, "upstream": None, "echoed": None}


@pytest.mark.parametrize(
    ("echoed", "warnings"),
    [
        ("max", []),
        (None, []),
        ("high", ["the provider answered with the reasoning effort high where max was sent"]),
    ],
    ids=["kept", "not-told", "clamped"],
)
def test_a_provider_that_clamps_is_told_of(echoed: str | None, warnings: list[str]) -> None:
    metadata = _effort.sent(RESPONSES, {"reasoning": {"effort": "max"}}, "max")
    assert _effort.ended(RESPONSES, metadata, dumps({"reasoning": {"effort": echoed}})) == warnings
    assert metadata["effort"] == {"asked": "max", "agent": "max", "upstream": "max", "echoed": echoed}


@pytest.mark.parametrize(
    ("upstream", "warnings"),
    [
        ({"effort": "max"}, []),
        ({"effort": "xhigh"}, ["the reasoning effort max of a request went to the provider as xhigh"]),
        ({"effort": None}, ["the reasoning effort max of a request went to the provider as none"]),
        (None, []),
    ],
    ids=["kept", "clamped", "lost", "never-sent"],
)
def test_a_translation_that_clamps_is_told_of(upstream: dict[str, Any] | None, warnings: list[str]) -> None:
    metadata = {**_effort.sent(CHAT, {"reasoning_effort": "max"}, "max"), "upstream_calls": 1, "upstream": upstream}
    assert _effort.ended(CHAT, metadata, b"null") == warnings
