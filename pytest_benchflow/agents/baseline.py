"""The agent that ships with this package: one program file, brought into the sandbox as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.agents._catalog import CatalogAgent
from pytest_benchflow.agents._place import agent_dir
from pytest_benchflow.catalog.load import shipped
from pytest_benchflow.contracts import Mount

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Backend
    from pytest_benchflow.tasks.task import Task

PROGRAM = Path(__file__).with_name("_baseline_program.py")


class Baseline(CatalogAgent):
    """A catalogue agent that needs no installation."""

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:
        """Mount the program; it needs a python3 in the sandbox and nothing else."""
        del backend, task, log_dir
        return (Mount(PROGRAM, f"{agent_dir(self.name)}/agent.py"),)


def agent(name: str) -> Baseline:
    """Return the agent."""
    manifest = shipped(name)
    assert manifest is not None, f"catalog/{name}.toml ships beside this file"
    return Baseline(manifest)
