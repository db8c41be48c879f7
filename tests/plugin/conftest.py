"""A small benchmark in a directory of its own, and pytest runs over it."""

from __future__ import annotations

import pytest

from tests.plugin.bench import Bench


@pytest.fixture
def bench(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # Where one of these is set, whole messages are repeated: by pytest's own summary, or for GitHub.
    for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return Bench(pytester)
