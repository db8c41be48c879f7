"""A small benchmark in a directory of its own, and pytest runs over it."""

from __future__ import annotations

import pytest

from tests.plugin.bench import Bench


@pytest.fixture
def bench(pytester: pytest.Pytester) -> Bench:
    return Bench(pytester)
