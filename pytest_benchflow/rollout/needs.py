"""Compare what a task needs with what a kind of sandbox can do here, before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Agent, Backend, Network
    from pytest_benchflow.tasks.task import NetworkPolicy, Step, Task

# Where an agent's network is taken from: its own table of the task, nowhere, or the environment's table too.
DECLARED, CLOSED, ENVIRONMENT = "declared", "proxy", "environment"
# Limits whose want changes how a task goes; the others protect the machine alone.
_FELT = {"memory_mb": "memory", "cpus": "cpus"}


class Policy(NamedTuple):
    """What a phase may reach; `hosts` are those of an allowlist."""

    network: Network
    hosts: tuple[str, ...] = ()


def agent_policy(task: Task, step: Step, source: str) -> Policy:
    """Return what a step's agent may reach: its model only, unless its task declares more and `source` lets it.

    What `[environment]` says is taken for the agent when asked alone: templates of tasks open it without a thought.
    Where it says nothing it means the internet then, as it does for a verifier.
    """
    declared = step.agent.network
    silent: Network = "proxy"
    if declared.mode is None and source == ENVIRONMENT:
        declared, silent = task.environment.network, "public"
    if source == CLOSED:
        return Policy("proxy")
    return _policy(declared, {None: silent, "no-network": "proxy", "public": "public", "allowlist": "allowlist"})


def verifier_policy(task: Task, step: Step) -> Policy:
    """Return what a step's verifier may reach: what the task declares for it or for its environment, else public."""
    declared = step.verifier.network if step.verifier.network.mode else task.environment.network
    return _policy(declared, {None: "public", "no-network": "none", "public": "public", "allowlist": "allowlist"})


def _policy(declared: NetworkPolicy, networks: dict[str | None, Network]) -> Policy:
    return Policy(networks[declared.mode], declared.allowed_hosts if declared.mode == "allowlist" else ())


def withheld(task: Task, source: str) -> list[str]:
    """Return a warning for each network that a task speaks of and its agent does not get."""
    told = []
    for step in task.steps:
        own, environment = step.agent.network.mode, task.environment.network.mode
        if source == CLOSED and own in ("public", "allowlist"):
            told.append(f"the task gives its agent the network ({own}); --benchflow-agent-network=proxy withholds it")
        elif source == DECLARED and own is None and environment in ("public", "allowlist"):
            told.append(
                f"the task opens the network ({environment}) in [environment] and not in [agent], so that its agent "
                "reaches its model only; --benchflow-agent-network=environment lets it out"
            )
    return list(dict.fromkeys(told))


def why_unable(backend: Backend, agent: Agent, task: Task, source: str) -> str | None:
    """Return the reason to skip a task that needs what this kind of sandbox cannot do here; None when it can."""
    able, name = backend.capabilities, backend.name
    for step in task.steps:
        phases = {"agent": agent_policy(task, step, source).network}
        if step.setup is not None:
            phases["setup"] = "none"
        if step.tests is not None:
            phases["verifier"] = verifier_policy(task, step).network
        for phase, network in phases.items():
            if network not in able.networks:
                enforced = ", ".join(sorted(able.networks)) or "none"
                return (
                    f"needs a sandbox that holds its {phase} to the network {network!r}: "
                    f"the {name} sandbox enforces {enforced} here"
                )
        for phase, user in {"agent": step.agent.user, "verifier": step.verifier.user}.items():
            if not able.root and str(user).partition(":")[0] in ("root", "0"):
                return f"needs a sandbox with a root user for its {phase}: the {name} sandbox has none here"
    if not able.programs and agent.uses_model:
        return (
            f"needs a sandbox that runs programs, for the agent {agent.name}: the {name} sandbox answers from a script"
        )
    if not able.stdin and agent.uses_model:
        return f"needs a sandbox whose commands take input, for the agent {agent.name}: the {name} sandbox's do not"
    return None


def not_held(backend: Backend, task: Task) -> list[str]:
    """Return a warning for each limit that a task asks for, would feel the want of, and does not get here."""
    asked = [key for key, limit in _FELT.items() if limit not in backend.capabilities.limits]
    missing = [key for key in asked if getattr(task.environment, key) is not None]
    return [f"the task asks for {key}, which the {backend.name} sandbox does not hold here" for key in missing]


def network_record(task: Task, source: str) -> dict[str, Any]:
    """Return the effective policy of each phase, as config.json holds it: of the first step, and of every step."""
    steps = {
        step.name or "task": {
            phase: {"network": policy.network, "allowed_hosts": list(policy.hosts)}
            for phase, policy in (
                ("agent", agent_policy(task, step, source)),
                ("verifier", verifier_policy(task, step)),
            )
        }
        for step in task.steps
    }
    first = next(iter(steps.values()))
    return {**{phase: policy["network"] for phase, policy in first.items()}, "agent_from": source, "steps": steps}
