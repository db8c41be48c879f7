"""Run an agent once against a model that follows a script, as a rollout, and keep what there was to see."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import ClientPolicy
from pytest_benchflow.errors import SandboxError, UsageError
from pytest_benchflow.proxy.probe import ProbeModel
from pytest_benchflow.proxy.routes import Route
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.rollout.cell import resolve
from pytest_benchflow.rollout.config import RolloutConfig, slug
from pytest_benchflow.rollout.place import held, rundir_of
from pytest_benchflow.rollout.plan import agent_environment
from pytest_benchflow.rollout.run import run_cell
from pytest_benchflow.tasks.task import NetworkPolicy, bare_task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.contracts import Agent, AgentContext, AgentOutcome, Backend, Mount, Sandbox
    from pytest_benchflow.proxy.probe import Asked
    from pytest_benchflow.proxy.script import ScriptTurn
    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.rollout.session import RolloutSession
    from pytest_benchflow.settings import Settings
    from pytest_benchflow.tasks.task import Task

MODEL = "scripted"
TIMEOUT_SEC = 300.0
# Above the pauses that clients of models make before they ask again, which grow to about a minute.
IDLE_SEC = 100.0
_TICK_SEC = 0.2
# From the sign that something is under way to what is done to it: it should be in its midst.
_MIDST_SEC = 1.0
_LISTING = """\
for place in /proc/[0-9]*; do
  number=${place#/proc/}
  [ "$number" = $$ ] || printf '%s %s\\n' "$number" "$(tr '\\0' ' ' < "$place/cmdline")"
done 2>/dev/null
"""


@dataclass(frozen=True, slots=True)
class Signs:
    """What tells one run's texts and files from any other's; `workdir` is the agent's, inside the sandbox."""

    token: str
    workdir: str

    @property
    def text(self) -> str:
        """Return what the model says last."""
        return f"That is all, {self.token}."

    @property
    def log(self) -> str:
        """Return the file that each command adds its number to."""
        return f"{self.workdir}/{self.token}.ran"

    def command(self, number: int) -> str:
        """Return a command that notes its number and prints `result(number)`, which its own text does not hold."""
        # No $(…) and the like: some agents refuse commands with substitutions.
        return f"echo {number} >> '{self.log}'; printf '%d-{self.token}\\n' {hex(41 + number)}"

    def result(self, number: int) -> str:
        """Return what the command of that number prints."""
        return f"{41 + number}-{self.token}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run: what the model answers to each request, and what the client side does meanwhile."""

    name: str
    answer: Callable[[Signs, Asked], ScriptTurn]
    prompt: Callable[[str], str] = "Conformance check {}: do what you are told, then say that it is done.".format
    allow: bool = True
    cancels: bool = False  # once a command runs or a model call hangs
    crashes: bool = False  # likewise: the agent's first process is killed


@dataclass(frozen=True, slots=True)
class Seen:
    """What could only be seen while the sandbox was there; times in seconds."""

    outcome: AgentOutcome
    seconds: float  # from the agent's launch to its end
    silent_sec: float  # from its last request to its end
    ran: tuple[str, ...]  # the numbers of the commands that ran, in their order
    survivors: tuple[str, ...]  # command lines of processes that outlived the agent


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run left to judge by. `seen` is None when the agent could not be launched, and `error` says why."""

    path: Path
    signs: Signs
    prompt: str
    heard: tuple[Asked, ...]
    timeout_sec: float
    idle_sec: float
    error: str | None
    seen: Seen | None
    events: tuple[dict[str, Any], ...]
    messages: tuple[dict[str, Any], ...]  # of agent/jsonrpc.jsonl; none where the protocol is not spoken
    redact: Callable[[Any], Any]  # for what is quoted of it

    @property
    def said(self) -> str:
        """Return what the agent said to its client."""
        return "".join(str(event.get("text", "")) for event in self.events if event["type"] == "agent_message")


class ProbedAgent:
    """An agent as it is, with somebody who watches it and meddles as the scenario says."""

    uses_model = True

    def __init__(self, inner: Agent, scenario: Scenario) -> None:
        self.name = inner.name
        self.version = inner.version
        self.api_dialect = inner.api_dialect
        self.signs = Signs("probe" + secrets.token_hex(4), "")
        self.model = ProbeModel(lambda asked: scenario.answer(self.signs, asked))
        self.seen: Seen | None = None
        self.redact: Callable[[Any], Any] = str
        self._inner = inner
        self._scenario = scenario
        self._of_sandbox: set[str] = set()

    def unsupported(self, task: Task) -> str | None:
        """Return what the agent itself says."""
        return self._inner.unsupported(task)

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:
        """Install the agent as it is."""
        return await self._inner.install(backend, task, log_dir)

    async def run(self, context: AgentContext) -> AgentOutcome:
        """Run the agent, then look at what it left in its sandbox."""
        sandbox, scenario = context.sandbox, self._scenario
        self.signs = replace(self.signs, workdir=sandbox.workdir)
        self.redact = context.redact
        self._of_sandbox = set((await _processes(sandbox)).values())

        async def midst() -> None:
            await self._under_way(sandbox)

        policy = ClientPolicy(allow=scenario.allow, cancel=midst if scenario.cancels else None)
        crash = asyncio.create_task(self._crash(sandbox)) if scenario.crashes else None
        begun = time.monotonic()
        try:
            outcome = await self._inner.run(replace(context, client=policy))
        finally:
            if crash is not None:
                crash.cancel()
                await asyncio.wait([crash])
            self.model.give_up()
        ended = time.monotonic()
        last = self.model.heard[-1].at if self.model.heard else begun
        self.seen = Seen(
            outcome=outcome,
            seconds=round(ended - begun, 3),
            silent_sec=round(ended - last, 3),
            ran=await self._ran(sandbox),
            survivors=tuple((await self._processes(sandbox)).values()),
        )
        return outcome

    async def _under_way(self, sandbox: Sandbox) -> None:
        """Return in the midst of a command, or of a model call that hangs."""
        hanging = self.model.hanging
        while not hanging.is_set() and not await self._ran(sandbox):
            with suppress(TimeoutError):
                await asyncio.wait_for(hanging.wait(), _TICK_SEC)
        await asyncio.sleep(_MIDST_SEC)

    async def _crash(self, sandbox: Sandbox) -> None:
        await self._under_way(sandbox)
        await sandbox.exec(["sh", "-c", f"kill -KILL {min(await self._processes(sandbox))}"])

    async def _processes(self, sandbox: Sandbox) -> dict[int, str]:
        """Return the agent's processes; those of the sandbox itself come and go, and look alike each time."""
        found = await _processes(sandbox)
        return {pid: command for pid, command in found.items() if command not in self._of_sandbox}

    async def _ran(self, sandbox: Sandbox) -> tuple[str, ...]:
        return tuple((await sandbox.exec(["cat", self.signs.log])).stdout.split())


def patience(settings: Settings) -> tuple[float, float]:
    """Return the seconds that an agent may take, and be silent. Raises: UsageError when the first would hide a hang."""
    timeout, idle = settings.agent_timeout or TIMEOUT_SEC, settings.idle_timeout or IDLE_SEC
    if timeout <= idle:
        raise UsageError(
            f"an agent may take {timeout:g} s (--benchflow-agent-timeout) and be silent for {idle:g} s "
            "(--benchflow-idle-timeout); the first must be longer, or one that hangs cannot be told from one that tries"
        )
    return timeout, idle


def probe(session: RolloutSession, agent: Agent, scenario: Scenario, *, model: str = MODEL) -> Evidence:
    """Run an agent through a scenario, in a rollout of the session's job.

    Raises: UnsupportedError when this machine cannot run it, UsageError for what was asked wrongly.
    """
    session.open()
    settings = session.settings
    watched = ProbedAgent(agent, scenario)
    prompt = scenario.prompt(watched.signs.token)
    task = _task(session.job_dir / "conformance" / slug(agent.name) / scenario.name, prompt)
    timeout, idle = patience(settings)
    config = RolloutConfig(
        task=task,
        agent=watched,
        model=MODEL,
        sandbox=settings.sandbox,
        jobs_dir=settings.jobs_dir,
        job_name=settings.job_name,
        agent_timeout=timeout,
        idle_timeout=idle,
        reasoning_effort=settings.reasoning_effort,
        keep_sandbox=settings.keep_sandbox,
        agent_env=agent_environment(settings),
    )
    cell = resolve(config, route=Route(watched.model, model, "provider", None))
    rundir = rundir_of(cell.config, task)
    with held(rundir, wait=True):
        rollout = session.pool.run(run_cell(cell, host=session.host()))
    return Evidence(
        path=rollout.path,
        signs=watched.signs,
        prompt=prompt,
        heard=tuple(watched.model.heard),
        timeout_sec=timeout,
        idle_sec=idle,
        error=rollout.result.get("error"),
        seen=watched.seen,
        events=tuple(rollout.events),
        messages=_messages(rundir),
        redact=watched.redact,
    )


def _task(directory: Path, prompt: str) -> Task:
    """Write a prompt and return the task that it is; as nothing scores it, its rollout never trains a model."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "instruction.md"
    file.write_text(prompt + "\n", encoding="utf-8")
    return bare_task(file, f"conformance/{directory.name}", prompt=prompt, network=NetworkPolicy("no-network"))


def _messages(rundir: RunDir) -> tuple[dict[str, Any], ...]:
    path = rundir.agent_logs / "jsonrpc.jsonl"
    return tuple(read_records(path)) if path.is_file() else ()


async def _processes(sandbox: Sandbox) -> dict[int, str]:
    """Return the processes inside that have a command line, by number; what ended and was not waited for has none."""
    listing = (await sandbox.exec(["sh", "-c", _LISTING])).stdout
    lines = (line.strip().partition(" ") for line in listing.splitlines())
    found = {int(pid): command for pid, _, command in lines if pid.isdigit() and command}
    if not found:
        # The one that lists them has a parent at least: an image without `tr` must not pass for one without processes.
        raise SandboxError("the processes inside cannot be listed: that takes a /proc, sh and tr in the sandbox")
    return found
