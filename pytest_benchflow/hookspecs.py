"""Hooks for third parties: agents, sandboxes, checks, exporters, and word of a finished rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


@pytest.hookspec
def pytest_benchflow_agents() -> Mapping[str, Callable[[str], Any]]:
    """Return agent factories by name; each takes the name a user typed and returns a `contracts.Agent`."""
    return {}


@pytest.hookspec
def pytest_benchflow_sandboxes() -> Mapping[str, Any]:
    """Return sandbox backends by name, each a `contracts.Backend`."""
    return {}


@pytest.hookspec
def pytest_benchflow_checks() -> Mapping[str, Callable[..., None]]:
    """Return checks by name, each made with `pytest_benchflow.checks.check`."""
    return {}


@pytest.hookspec
def pytest_benchflow_exporters() -> Mapping[str, Any]:
    """Return export formats by name, each a `contracts.Exporter`; the command line alone asks for them."""
    return {}


@pytest.hookspec
def pytest_benchflow_rollout_finished(path: Path) -> None:
    """Hear that the rollout in directory `path` has finished; its artifacts are complete."""
