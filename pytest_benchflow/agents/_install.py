"""Install an agent once per version and sandbox image, and share it read-only with every rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.catalog.load import Manifest
    from pytest_benchflow.contracts import Backend, Mount
    from pytest_benchflow.tasks.task import Task


async def install(manifest: Manifest, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:
    """Return the mounts of an installed agent."""
    raise NotImplementedError
