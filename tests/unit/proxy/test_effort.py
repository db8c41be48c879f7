"""An effort on its way: what is known at each station, and when a reader is warned."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_benchflow.dialects.chat import dialect as chat
from pytest_benchflow.dialects.responses import dialect as responses
from pytest_benchflow.proxy import _effort
from pytest_benchflow.records.jsontext import dumps


def test_a_request_without_an_effort_has_no_evidence() -> None:
    assert _effort.sent(chat, {"messages": []}, None) == {}
    assert _effort.ended(chat, {}, b"null") == []


def test_one_that_was_asked_for_and_not_sent_is_seen() -> None:
    metadata = _effort.sent(chat, {"messages": []}, "max")
    assert _effort.ended(chat, metadata, b"{}") == []
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
    metadata = _effort.sent(responses, {"reasoning": {"effort": "max"}}, "max")
    assert _effort.ended(responses, metadata, dumps({"reasoning": {"effort": echoed}})) == warnings
    assert metadata["effort"] == {"asked": "max", "agent": "max", "upstream": "max", "echoed": echoed}


@pytest.mark.parametrize(
    ("upstream", "warnings"),
    [
        ({"effort": "max"}, []),
        ({"effort": "xhigh"}, ["the reasoning effort max of a request went to the provider as xhigh"]),
        ({"effort": None}, ["the reasoning effort max of a request went to the provider without any"]),
        (None, []),
    ],
    ids=["kept", "clamped", "lost", "never-sent"],
)
def test_a_translation_that_clamps_is_told_of(upstream: dict[str, Any] | None, warnings: list[str]) -> None:
    metadata = {**_effort.sent(chat, {"reasoning_effort": "max"}, "max"), "upstream_calls": 1, "upstream": upstream}
    assert _effort.ended(chat, metadata, b"null") == warnings


def test_no_effort_that_is_asked_for_by_saying_nothing_is_kept() -> None:
    told = {"upstream_calls": 1, "upstream": {"effort": None}}
    metadata = {**_effort.sent(chat, {"reasoning_effort": "none"}, "none"), **told}
    assert _effort.ended(chat, metadata, b"null") == []
