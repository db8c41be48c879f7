"""A small benchmark in a directory of its own, and pytest runs over it."""

from __future__ import annotations

import pytest

from tests.conftest import LEAN
from tests.plugin.bench import Bench


@pytest.fixture
def bench(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # Where one of these is set, whole messages are repeated: by pytest's own summary, or for GitHub.
    for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    # The fixture of pytest's own has taken it away.
    monkeypatch.setenv("PYTEST_ADDOPTS", LEAN)
    return Bench(pytester)
