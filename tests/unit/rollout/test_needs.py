"""What a task needs is compared with what a sandbox can do, and what each phase may reach follows from what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.agents.baseline import agent as baseline
from pytest_benchflow.agents.nop import agent as nop
from pytest_benchflow.contracts import Capabilities
from pytest_benchflow.errors import UnsupportedError, UsageError
from pytest_benchflow.rollout.cell import resolve
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.needs import agent_policy, network_record, not_held, verifier_policy, why_unable
from pytest_benchflow.sandboxes.local import LocalBackend
from pytest_benchflow.tasks.load import load_task
from pytest_benchflow.tasks.task import NetworkPolicy, Task
from tests.contracts.sandboxrig import make_task

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import Network

EVERY: frozenset[Network] = frozenset({"proxy", "public", "allowlist", "none"})
ABLE = Capabilities(networks=EVERY, limits=frozenset({"memory", "cpus"}), root=True)
SILENT, PUBLIC, CLOSED = NetworkPolicy(), NetworkPolicy("public"), NetworkPolicy("no-network")
LISTED = NetworkPolicy("allowlist", ("pypi.org", "*.pythonhosted.org"))


class Limited(LocalBackend):
    """A backend that can do what it is told it can."""

    name = "limited"

    def __init__(self, able: Capabilities) -> None:
        self._able = able

    @property
    def capabilities(self) -> Capabilities:
        return self._able


def task_with(
    path: Path, *, agent: NetworkPolicy = SILENT, verifier: NetworkPolicy = SILENT, **environment: Any
) -> Task:
    task = make_task(path, **environment)
    (step,) = task.steps
    step = replace(step, agent=replace(step.agent, network=agent), verifier=replace(step.verifier, network=verifier))
    return replace(task, steps=(step,))


@pytest.mark.parametrize(
    ("own", "environment", "declared", "env_too"),
    [
        pytest.param(SILENT, SILENT, "proxy", "public", id="nothing"),
        pytest.param(SILENT, PUBLIC, "proxy", "public", id="only-the-environment"),
        pytest.param(SILENT, LISTED, "proxy", "allowlist", id="only-the-environments-list"),
        pytest.param(SILENT, CLOSED, "proxy", "proxy", id="a-closed-environment"),
        pytest.param(PUBLIC, SILENT, "public", "public", id="public"),
        pytest.param(PUBLIC, CLOSED, "public", "public", id="public-in-a-closed-environment"),
        pytest.param(CLOSED, PUBLIC, "proxy", "proxy", id="closed-in-a-public-environment"),
        pytest.param(LISTED, PUBLIC, "allowlist", "allowlist", id="a-list"),
    ],
)
def test_an_agent_gets_what_is_declared_for_it(
    tmp_path: Path, own: NetworkPolicy, environment: NetworkPolicy, declared: str, env_too: str
) -> None:
    task = task_with(tmp_path, agent=own, network=environment)
    (step,) = task.steps
    found = [agent_policy(task, step, source) for source in ("declared", "environment", "proxy")]
    assert [policy.network for policy in found] == [declared, env_too, "proxy"]
    assert all(policy.hosts == (LISTED.allowed_hosts if policy.network == "allowlist" else ()) for policy in found)


@pytest.mark.parametrize(
    ("own", "environment", "network"),
    [
        pytest.param(SILENT, SILENT, "public", id="nothing"),
        pytest.param(SILENT, CLOSED, "none", id="the-environments"),
        pytest.param(LISTED, CLOSED, "allowlist", id="its-own-list"),
        pytest.param(CLOSED, PUBLIC, "none", id="its-own-want-of-one"),
    ],
)
def test_a_verifier_gets_its_own_else_its_environments(
    tmp_path: Path, own: NetworkPolicy, environment: NetworkPolicy, network: str
) -> None:
    task = task_with(tmp_path, verifier=own, network=environment)
    policy = verifier_policy(task, task.steps[0])
    assert policy == (network, LISTED.allowed_hosts if network == "allowlist" else ())


@pytest.mark.parametrize("key", ["true", "false"])
def test_the_deprecated_key_opens_nothing_for_an_agent(tmp_path: Path, key: str) -> None:
    (tmp_path / "task.toml").write_text(f"[environment]\nallow_internet = {key}\n")
    (tmp_path / "instruction.md").write_text("Do it.\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("#!/bin/sh\n")
    task = load_task(tmp_path)
    assert agent_policy(task, task.steps[0], "declared").network == "proxy"


@pytest.mark.parametrize(
    ("able", "task", "reason"),
    [
        pytest.param({}, {}, None, id="able"),
        pytest.param(
            {"networks": frozenset({"proxy", "public"})},
            {"verifier": CLOSED},
            "needs a sandbox that holds its verifier to the network 'none': the limited sandbox enforces proxy, public",
            id="a-closed-verifier",
        ),
        pytest.param(
            {"networks": frozenset({"public"})}, {}, "holds its agent to the network 'proxy'", id="a-closed-agent"
        ),
        pytest.param(
            {"networks": EVERY - {"allowlist"}}, {"agent": LISTED}, "holds its agent to the network 'all", id="a-list"
        ),
        pytest.param({"networks": EVERY - {"allowlist"}}, {"agent": PUBLIC}, None, id="no-list-wanted"),
        pytest.param({"root": False}, {}, None, id="no-user-wanted"),
        pytest.param({"stdin": False}, {}, "commands take input, for the agent baseline", id="no-input"),
    ],
)
def test_what_a_sandbox_cannot_do_is_the_reason_to_skip(
    tmp_path: Path, able: dict[str, Any], task: dict[str, Any], reason: str | None
) -> None:
    backend = Limited(replace(ABLE, **able))
    found = why_unable(backend, baseline("baseline"), task_with(tmp_path, **task), "declared")
    assert found is None if reason is None else reason in str(found)


def test_an_agent_without_a_model_needs_no_input(tmp_path: Path) -> None:
    assert why_unable(Limited(replace(ABLE, stdin=False)), nop("nop"), task_with(tmp_path), "declared") is None


@pytest.mark.parametrize("user", ["root", 0, "0:0"])
def test_a_root_user_needs_a_sandbox_with_one(tmp_path: Path, user: str | int) -> None:
    task = make_task(tmp_path, user=user)
    assert why_unable(Limited(ABLE), nop("nop"), task, "declared") is None
    assert "a root user for its agent" in str(
        why_unable(Limited(replace(ABLE, root=False)), nop("nop"), task, "declared")
    )


def test_limits_that_a_task_would_feel_the_want_of_are_told(tmp_path: Path) -> None:
    task = make_task(tmp_path, memory_mb=64, cpus=1, storage_mb=100)
    assert not_held(Limited(ABLE), task) == []
    able = replace(ABLE, limits=frozenset({"cpus"}))
    assert not_held(Limited(able), task) == [
        "the task asks for memory_mb, which the limited sandbox does not hold here"
    ]


@pytest.mark.skipif(LocalBackend().available() is not None, reason=str(LocalBackend().available()))
def test_it_is_asked_before_anything_starts(tmp_path: Path) -> None:
    task = task_with(tmp_path, agent=LISTED, network=PUBLIC)
    config = RolloutConfig(task, agent=nop("nop"), sandbox=Limited(replace(ABLE, networks=frozenset({"public"}))))
    with pytest.raises(UnsupportedError, match="holds its agent to the network 'allowlist'"):
        resolve(config)
    assert resolve(replace(config, sandbox=Limited(ABLE))).warnings == ()
    assert "withholds it" in resolve(replace(config, sandbox=Limited(ABLE), agent_network="proxy")).warnings[0]
    opened = replace(config, task=task_with(tmp_path / "other", network=PUBLIC), sandbox=Limited(ABLE))
    assert "[environment] and not in [agent]" in resolve(opened).warnings[0]
    assert resolve(replace(opened, agent_network="environment")).warnings == ()
    with pytest.raises(UsageError, match="agent_network is 'open'; it takes declared, proxy, environment"):
        replace(config, agent_network="open")


def test_the_policy_of_each_phase_is_recorded(tmp_path: Path) -> None:
    record = network_record(task_with(tmp_path, agent=LISTED, verifier=CLOSED), "declared")
    assert record == {
        "agent": "allowlist",
        "verifier": "none",
        "agent_from": "declared",
        "steps": {
            "task": {
                "agent": {"network": "allowlist", "allowed_hosts": ["pypi.org", "*.pythonhosted.org"]},
                "verifier": {"network": "none", "allowed_hosts": []},
            }
        },
    }
