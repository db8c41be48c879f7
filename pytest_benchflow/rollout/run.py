"""Run one rollout: sandbox, gateway, agent, verifier, records. The whole flow is `_drive`."""

from __future__ import annotations

import asyncio
import functools
import time
import traceback
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import AgentContext, AgentOutcome, Mount, SandboxSpec
from pytest_benchflow.errors import BenchflowError, ReplayMismatchError, SandboxError
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.rollout.aside import aside
from pytest_benchflow.rollout.cell import resolve
from pytest_benchflow.rollout.host import Host
from pytest_benchflow.rollout.job import begin_job
from pytest_benchflow.rollout.keep import collect, keep_artifacts
from pytest_benchflow.rollout.ledger import facts_of, make
from pytest_benchflow.rollout.limits import lifetime, time_limits
from pytest_benchflow.rollout.needs import agent_policy, verifier_policy
from pytest_benchflow.rollout.outcome import finish
from pytest_benchflow.rollout.place import held, own_job, rundir_of
from pytest_benchflow.rollout.skills import bring_skills
from pytest_benchflow.rollout.state import RolloutState, begin, model_is_done
from pytest_benchflow.rollout.verify import verify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any

    from pytest_benchflow.contracts import Endpoint, Sandbox
    from pytest_benchflow.rollout.cell import Cell
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.tasks.task import Healthcheck, Step

_HOPELESS_GRACE_SEC = 5.0
# An installation that is there already is found within that.
_LOOKED_UP_SEC = 2.0


async def run_rollout(
    config: RolloutConfig, *, host: Host | None = None, watch: Callable[[str], None] | None = None
) -> Rollout:
    """Run a rollout and return what it left on disk; a failed rollout is returned, not raised.

    `watch` hears the name of each phase as it begins. Raises: UnsupportedError when this cell cannot run here,
    UsageError, TaskError and ProviderError for what was wrong before anything started, CancelledError after the
    records are complete.
    """
    cell = resolve(config)
    cell = replace(cell, config=own_job(cell.config))
    with held(rundir_of(cell.config, cell.task), wait=False):
        begin_job(cell.config.jobs_dir / cell.config.job_name)
        return await run_cell(cell, host=host, watch=watch)


async def run_cell(cell: Cell, *, host: Host | None = None, watch: Callable[[str], None] | None = None) -> Rollout:
    """Run a resolved cell whose directory the caller holds; see `run_rollout`."""
    async with AsyncExitStack() as stack:
        if host is None:
            host = await stack.enter_async_context(Host())
        host.use(cell.backend)
        state, interrupted = await host.write_whole(begin, cell, host, watch, begun=False)
        try:
            if interrupted:
                raise asyncio.CancelledError  # noqa: TRY301 - it is recorded as one that comes later
            await _drive(state)
        except asyncio.CancelledError:
            state.fail("the rollout was interrupted", "interrupted")
            raise
        except BenchflowError as error:
            state.fail(str(error), error.category, error.details)
        except Exception as error:
            state.fail(f"{type(error).__name__}: {error}", "internal", traceback.format_exc())
        finally:
            await _finish(state)
    rollout = Rollout(state.dir.path)
    if cell.config.record and rollout.healthy:
        _record(state)
    return rollout


async def _finish(state: RolloutState) -> None:
    """Complete the records, also of a rollout that is interrupted meanwhile."""
    state.seconds["total"] = time.monotonic() - state.started
    if state.watch:
        state.watch("records")
    _, interrupted = await state.host.write_whole(finish, state, begun=True)
    if interrupted:
        raise asyncio.CancelledError


def _record(state: RolloutState) -> None:
    """Make a healthy rollout's answers the recording that replay serves for this agent and task."""
    cell = state.cell
    if cell.route is None or cell.route.source == "replay":
        return
    from pytest_benchflow.proxy.replay import write_recording

    facts = {
        name: state.config[name] for name in ("task_digest", "agent", "agent_version", "skill_mode", "plugin_version")
    }
    write_recording(state.dir, cell.task, cell.agent.name, {**facts, "model": cell.route.upstream_model})


async def _drive(state: RolloutState) -> None:
    """Take a task through its steps in one sandbox."""
    cell = state.cell
    async with AsyncExitStack() as stack:
        mounts = await _installed(state)
        with state.phase("environment_setup"):
            sandbox = await stack.enter_async_context(_sandbox(state, mounts))
            skills_dir = await bring_skills(cell.task, sandbox, cell.skill_mode)
            endpoint = await stack.enter_async_context(_endpoint(state))
        for step in cell.task.steps:
            with state.phase("environment_setup"):
                await _prepare(state, step, sandbox)
            with state.phase("agent_execution"):
                await _work(state, step, sandbox, endpoint, skills_dir)
            state.warnings += await collect(step, sandbox, state.dir.artifacts, state.redactor)
            with state.phase("verifier"):
                await _score(state, step, sandbox)
            if not state.goes_on(step):
                break
        with state.phase("artifacts"):
            state.warnings += await keep_artifacts(cell.task, sandbox, state.dir.artifacts, state.redactor)


async def _installed(state: RolloutState) -> tuple[Mount, ...]:
    """Install the agent; who watches hears of it when there is something to wait for."""
    cell = state.cell
    with state.phase("agent_setup", told=False):
        work = asyncio.ensure_future(cell.agent.install(cell.backend, cell.task, state.dir.agent_logs))
        work.add_done_callback(_hear)
        try:
            await asyncio.wait([work], timeout=_LOOKED_UP_SEC)
            if state.watch and not work.done():
                state.watch("agent_setup")
            return await work
        finally:
            work.cancel()
            await asyncio.wait([work])


async def _prepare(state: RolloutState, step: Step, sandbox: Sandbox) -> None:
    """Lay out a step's files, run its setup script and wait for the healthcheck."""
    if step.workdir:
        await sandbox.upload(step.workdir, sandbox.workdir)
    if step.setup:
        await sandbox.enter("setup", "none")
        limit = time_limits(state.cell.config, state.cell.task, step).setup
        result = await sandbox.exec(["sh", f"{sandbox.workdir}/{step.setup.name}"], cwd=sandbox.workdir, timeout=limit)
        if result.exit_code != 0:
            raise SandboxError(f"{step.setup.name} of step {step.name} failed: {result.stderr.strip()[-400:]}")
    policy = agent_policy(state.cell.task, step, state.cell.config.agent_network)
    await sandbox.enter("agent", policy.network, policy.hosts)
    check = step.healthcheck or state.cell.task.environment.healthcheck
    if check:
        await _until_healthy(check, sandbox)


async def _until_healthy(check: Healthcheck, sandbox: Sandbox) -> None:
    """Probe until the healthcheck succeeds. Raises: SandboxError after as many failures as it allows.

    Failures within the start period do not count.
    """
    begun = time.monotonic()
    failures = 0
    while True:
        starting = time.monotonic() - begun < check.start_period_sec
        probe = await sandbox.exec(["sh", "-c", check.command], cwd=sandbox.workdir, timeout=check.timeout_sec)
        if probe.exit_code == 0:
            return
        failures += not starting
        if failures > check.retries:
            said = (probe.stderr.strip() or probe.stdout.strip())[-300:]
            raise SandboxError(f"the healthcheck {check.command!r} failed {failures} times; it said last: {said!r}")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def _work(
    state: RolloutState, step: Step, sandbox: Sandbox, endpoint: Endpoint | None, skills_dir: str | None
) -> None:
    """Let the agent work on one step. Raises: ReplayMismatchError when the recording is of another conversation."""
    config, task = state.cell.config, state.cell.task
    limits = time_limits(config, task, step)
    route = state.cell.route
    await aside(state.prompt, step)
    context = AgentContext(
        task=task,
        instruction=step.instruction,
        sandbox=sandbox,
        events=state.events,
        log_dir=state.dir.agent_logs,
        timeout_sec=limits.agent,
        idle_timeout_sec=limits.idle,
        llm_timeout_sec=limits.llm_client,
        model=route.agent_model if route else "none",
        base_url=await sandbox.reach(endpoint) if endpoint else None,
        token=endpoint.token if endpoint else None,
        env=config.agent_env,
        user=step.agent.user,
        reasoning_effort=config.reasoning_effort,
        skills_dir=skills_dir,
        step=step.name,
        redact=state.redactor.value,
        busy=_asking(endpoint),
        settled=functools.partial(model_is_done, state.dir, state.config),
    )
    outcome = await _unless_hopeless(state.cell.agent.run(context), endpoint)
    if endpoint and endpoint.mismatch:
        state.outcomes.append(outcome)
        raise ReplayMismatchError(f"a request differs from the recording: {endpoint.mismatch}")
    state.agent_ended(outcome, limits)


def _asking(endpoint: Endpoint | None) -> Callable[[], bool]:
    """Return what tells whether the model is being asked, or was since the last look: a short call may be over."""
    known = 0

    def asking() -> bool:
        nonlocal known
        if endpoint is None:
            return False
        before, known = known, endpoint.received
        return known != before or bool(endpoint.open_requests)

    return asking


async def _unless_hopeless(work: Coroutine[Any, Any, AgentOutcome], endpoint: Endpoint | None) -> AgentOutcome:
    """Wait for the agent; one that does not stop by itself after a refused replay, or a rejected key, is stopped."""
    agent = asyncio.ensure_future(work)
    agent.add_done_callback(_hear)
    try:
        while not agent.done():
            await asyncio.wait([agent], timeout=_HOPELESS_GRACE_SEC)
            if endpoint and (endpoint.mismatch or endpoint.rejected) and not agent.done():
                agent.cancel()
                await asyncio.wait([agent])
                return AgentOutcome(stop="cancelled")
        return agent.result()
    finally:
        agent.cancel()
        await asyncio.wait([agent])


def _hear(done: asyncio.Future[Any]) -> None:
    """Take note of how work ended: what cleaning up after an interrupt fails at is no traceback for anybody."""
    if not done.cancelled():
        done.exception()


async def _score(state: RolloutState, step: Step, sandbox: Sandbox) -> None:
    """Verify one step; the files of a step that has a name go into a directory of that name."""
    cell = state.cell
    score = await verify(
        cell.task,
        step,
        sandbox,
        policy=verifier_policy(cell.task, step),
        timeout_sec=time_limits(cell.config, cell.task, step).verifier,
        keep=state.dir.verifier / step.name if step.name else state.dir.verifier,
        redactor=state.redactor,
    )
    await aside(state.scored, step, score)


@asynccontextmanager
async def _sandbox(state: RolloutState, mounts: tuple[Mount, ...]) -> AsyncIterator[Sandbox]:
    """Make a sandbox and see that it is gone afterwards, whatever happens; each event goes into the ledger."""
    cell, host = state.cell, state.host
    scratch = await aside(host.scratch.new, state.sandbox_id)
    spec = SandboxSpec(
        id=state.sandbox_id,
        task=cell.task,
        scratch=scratch,
        mounts=mounts,
        env=cell.environment,
        agent=cell.config.agent_name,
        lifetime_sec=lifetime(cell.config, cell.task),
    )
    facts = facts_of(cell.backend, spec, rollout=state.dir.path.name)
    sandbox: Sandbox | None = None
    try:
        sandbox = await make(host.ledger, state.job_dir, cell.backend, spec, facts)
        await aside(state.sandbox_made, sandbox)
        yield sandbox
    finally:
        with state.phase("environment_teardown"):
            if sandbox is not None:
                await asyncio.shield(sandbox.stop())
            if cell.config.keep_sandbox:
                facts["scratch"] = state.kept = str(host.scratch.keep(scratch))
            else:
                await asyncio.to_thread(host.scratch.discard, scratch)
        if sandbox is not None:
            host.ledger.add(state.job_dir, "kept" if cell.config.keep_sandbox else "deleted", **facts)


@asynccontextmanager
async def _endpoint(state: RolloutState) -> AsyncIterator[Endpoint | None]:
    """Open the door to the model for as long as the rollout lasts; None for an agent that calls no model."""
    route = state.cell.route
    if route is None:
        yield None
        return
    endpoint = await route.open_endpoint(
        state.host.gateway(),
        rundir=state.dir,
        redactor=state.redactor,
        translation=state.host.translation,
        effort=state.cell.config.reasoning_effort,
    )
    if state.host.progress:
        endpoint.heard = state.host.progress.hearing(state.dir.path.name, state.config["price"])
    try:
        yield endpoint
    finally:
        state.endpoint_closed(await asyncio.shield(endpoint.close()))
