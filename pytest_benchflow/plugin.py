"""The pytest hooks of this package, each a few lines that hand on at once (entry point: benchflow)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow import hookspecs

if TYPE_CHECKING:
    import pytest


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let third parties register agents, sandboxes and checks."""
    pluginmanager.add_hookspecs(hookspecs)
