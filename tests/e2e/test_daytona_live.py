"""What only Daytona itself can show; runs where a key is at hand."""

from __future__ import annotations

import os

import pytest

from pytest_benchflow.rollout.doctor import probe


@pytest.mark.skipif(not os.environ.get("DAYTONA_API_KEY"), reason="needs an account: DAYTONA_API_KEY is not set")
def test_a_hundred_commands_leave_no_session() -> None:
    said: list[str] = []
    assert probe("daytona", said.append), said
