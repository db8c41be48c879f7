"""Hold what is known about a rollout while it runs."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.dialects._match import recorded_dialect
from pytest_benchflow.records.attempts import attempt_record
from pytest_benchflow.records.journal import Journal, write_json
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.values import now
from pytest_benchflow.rollout.asked import config_record
from pytest_benchflow.rollout.place import rundir_of, set_aside
from pytest_benchflow.training.row import terminal_tools

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.contracts import AgentOutcome, EndpointReport, Sandbox
    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.rollout.cell import Cell
    from pytest_benchflow.rollout.host import Host
    from pytest_benchflow.rollout.limits import TimeLimits
    from pytest_benchflow.rollout.verify import Score
    from pytest_benchflow.tasks.task import Step


def provider_failure(rundir: RunDir) -> str | None:
    """Say how the model's side failed, when it was the last thing an agent met; None when its last call was answered.

    An agent that gives up because its model cannot be reached is not what is at fault.
    """
    last = next(iter(Rollout(rundir.path).exchanges[-1:]), None)
    if last is None:
        return None
    error, status = last["error"], (last["response"] or {}).get("status_code")
    if error and error["type"] == "provider":
        return f"the model could not be reached or broke off: {error['message']}"
    if error is None and status is not None and status >= 400:
        body = orjson.dumps(last["response"]["body"]).decode()
        return f"the model's provider answered HTTP {status}: {body[:400]}"
    return None


def model_is_done(rundir: RunDir, config: Mapping[str, Any]) -> bool:
    """Tell whether the model's last answer is whole and leaves its agent nothing to do but to end its turn."""
    last = next(iter(Rollout(rundir.path).exchanges[-1:]), None)
    response = (last or {}).get("response") or {}
    dialect = recorded_dialect(str(last["request"]["path"])) if last else None
    if last is None or dialect is None:
        return False
    if dialect.outcome(response.get("status_code"), response.get("body"), last["error"]).kind != "completed":
        return False
    answer = dialect.response_turn(response["body"])
    return answer is not None and {call.name for call in answer.tool_calls} <= terminal_tools({}, config)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout is not what it should be; the first one is the one that counts."""

    message: str
    category: str
    details: str | None = None


@dataclass(slots=True)
class RolloutState:
    """A rollout under way."""

    cell: Cell
    host: Host
    dir: RunDir
    redactor: Redactor
    config: dict[str, Any]
    watch: Callable[[str], None] | None
    sandbox_id: str
    started: float = field(default_factory=time.monotonic)
    started_at: str = field(default_factory=now)
    seconds: dict[str, float] = field(default_factory=dict)
    spans: list[tuple[str, str, str]] = field(default_factory=list)  # phase, its start, its end
    prompts: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[AgentOutcome] = field(default_factory=list)
    scores: list[tuple[Step, Score]] = field(default_factory=list)
    failure: Failure | None = None
    warnings: list[str] = field(default_factory=list)
    report: EndpointReport | None = None
    kept: str | None = None  # where the sandbox's files are, when they were to stay
    current: str = "harness"
    events: Journal = field(init=False)

    def __post_init__(self) -> None:
        """Open the journal of agent-protocol events; each gets the phase, the time, and no secret."""
        self.events = Journal(
            self.dir.acp, lambda event: self.redactor.value({"phase": self.current, "timestamp": now(), **event})
        )

    @property
    def job_dir(self) -> Path:
        """Return the directory of the job."""
        return self.dir.path.parent

    def fail(self, message: str, category: str, details: str | None = None) -> None:
        """Record the first thing that went wrong."""
        if self.failure is None:
            self.failure = Failure(self.redactor.text(message), category, details and self.redactor.text(details))

    @contextmanager
    def phase(self, name: str, *, told: bool = True) -> Iterator[None]:
        """Time a phase; the seconds of one that comes several times add up. Who watches hears of it when `told`."""
        if self.watch and told:
            self.watch(name)
        started_at = now()
        self.current = {"agent_execution": "agent", "verifier": "verifier"}.get(name, "harness")
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start
            self.spans.append((name, started_at, now()))
            self.current = "harness"

    def prompt(self, step: Step) -> None:
        """Record a prompt before the agent sees it."""
        self.prompts.append({"step": step.name, "prompt": step.instruction})
        write_json(self.dir.prompts, self.redactor.value(self.prompts))

    def agent_ended(self, outcome: AgentOutcome, limits: TimeLimits) -> None:
        """Take note of how the agent's run ended."""
        self.outcomes.append(outcome)
        if outcome.stop == "timeout":
            self.fail(f"Agent timed out after {limits.agent:g}s", "timeout")
        elif outcome.stop == "idle":
            self.fail(f"Agent was silent for {limits.idle:g}s", "idle_timeout")
        elif outcome.stop != "finished":
            said = outcome.error or f"the agent ended its turn with {outcome.stop_reason or outcome.stop}"
            refused = provider_failure(self.dir)
            if refused:
                self.fail(refused, "provider", said)
            else:
                self.fail(said, outcome.error_category or f"agent_{outcome.stop}")

    def scored(self, step: Step, score: Score) -> None:
        """Take note of a step's score."""
        self.scores.append((step, score))
        if score.rewards:
            record = {"step": step.name, "rewards": dict(score.rewards), "timestamp": now()}
            journal = Journal(self.dir.rewards)
            journal.append(record)
            journal.close()

    def goes_on(self, step: Step) -> bool:
        """Tell whether the steps after this one run: nothing failed, and the step reached its min_reward."""
        score = self.scores[-1][1]
        if self.failure or score.error:
            return False
        least = step.min_reward
        if least is None or not score.rewards:
            return True
        wanted = least if isinstance(least, Mapping) else {"reward": least}
        return all(score.rewards.get(name, float("-inf")) >= value for name, value in wanted.items())

    def sandbox_made(self, sandbox: Sandbox) -> None:
        """Add what only the sandbox knows to config.json."""
        self.config["acp_transport"] = sandbox.transport if self.cell.route else None
        self.config["limits"]["sandbox"] = dict(sandbox.limits)
        self.config["workdir"] = sandbox.workdir
        self.warnings += [
            str(limit["warning"])
            for limit in sandbox.limits.values()
            if isinstance(limit, Mapping) and "warning" in limit
        ]
        write_json(self.dir.config, self.redactor.value(self.config))

    def endpoint_closed(self, report: EndpointReport) -> None:
        """Take note of what passed through the gateway."""
        self.report = report
        if report.efforts:
            self.config["efforts"] = [dict(each) for each in report.efforts]
            write_json(self.dir.config, self.redactor.value(self.config))


def begin(cell: Cell, host: Host, watch: Callable[[str], None] | None) -> RolloutState:
    """Make the rollout's directory, which the caller holds, and write config.json.

    An earlier attempt there is kept under attempts/.
    """
    rundir = rundir_of(cell.config, cell.task)
    set_aside(rundir)
    rundir.create()
    redactor = Redactor(cell.secrets)
    state = RolloutState(
        cell=cell,
        host=host,
        dir=rundir,
        redactor=redactor,
        config=config_record(cell, host.session_id),
        watch=watch,
        sandbox_id=f"bf-{os.getpid()}-{secrets.token_hex(4)}",
        warnings=list(cell.warnings),
    )
    state.config |= {"started_at": state.started_at, **attempt_record(rundir)}
    write_json(rundir.config, redactor.value(state.config))
    state.events.open()
    return state
