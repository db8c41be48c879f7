"""The rollout ran where and how config.json says: the sandbox, the way to the agent, the verifier's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import NotApplicableError, evidence
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from pytest_benchflow.records.rollout import Rollout

_TRANSPORTS = ("local-stdio", "docker-stdio", "ssh", "pty", "provider-default")
# Sandboxes by what reaches an agent in them. Of one that is not named here only the name of the way is judged.
_REACHED_BY = {
    "local": ("local-stdio", "pty"),
    "host": ("local-stdio", "pty"),
    "docker": ("docker-stdio", "pty", "provider-default"),
    "ssh": ("ssh", "pty"),
    "daytona": ("ssh", "pty", "provider-default"),
    "modal": ("ssh", "pty", "provider-default"),
    "e2b": ("ssh", "pty", "provider-default"),
    "runloop": ("ssh", "pty", "provider-default"),
}


@check(needs=("model", "config"))
def check_transport_fits(rollout: Rollout) -> None:
    """The way to the agent (acp_transport) is recorded, and leads into the sandbox that config.json names."""
    transport = evidence(rollout, rollout.config.get("acp_transport"), "the agent's transport (acp_transport)")
    known = ", ".join(_TRANSPORTS)
    assert transport in _TRANSPORTS, f"config.json: acp_transport is {transport!r}; the transports are {known}"
    environment = rollout.config.get("environment")
    fitting = _REACHED_BY.get(str(environment).lower())
    if fitting is None:
        raise NotApplicableError(f"which transports reach an agent in {environment!r} is not known here")
    assert transport in fitting, (
        f"config.json: acp_transport {transport} cannot reach an agent in {environment}; {', '.join(fitting)} can"
    )


@check(category="verifier", needs=("config",))
def check_verifier_place_recorded(rollout: Rollout) -> None:
    """Law 8: config.json says whether the verifier shared the agent's sandbox or had its own (environment_mode)."""
    mode = evidence(rollout, rollout.config.get("environment_mode"), "the verifier's place (environment_mode)")
    assert mode in ("shared", "separate"), f"config.json: environment_mode is {mode!r}; it is shared or separate"


@check(category="infra", needs=("model", "result"))
def check_agent_settings_kept(rollout: Rollout) -> None:
    """The agent's settings are those it was launched with: it took none of them for corrupted and replaced none."""
    found = mapping(rollout.result.get("agent_settings"))
    if not found:
        raise NotApplicableError("this agent is launched without a file of settings, or was not launched")
    assert found.get("kept") is True, f"{found.get('file')} is not what the agent was launched with: {found.get('why')}"
