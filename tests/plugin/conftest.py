"""A small benchmark in a directory of its own, and pytest runs over it."""

from __future__ import annotations

import pytest

from tests.plugin.bench import Bench


@pytest.fixture
def bench(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # Where one of these is set, pytest's own summary repeats whole messages.
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    return Bench(pytester)
