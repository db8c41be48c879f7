"""Where an agent's files are inside a sandbox."""

from __future__ import annotations

from pytest_benchflow.contracts import INSTALL_ROOT


def agent_dir(name: str) -> str:
    """Return the directory that install_cmd is given as BENCHFLOW_AGENT_DIR."""
    return f"{INSTALL_ROOT}/agents/{name}"
