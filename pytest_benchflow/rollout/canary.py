"""Start the rest of an agent, a model and a skill mode only when its canaries are known to be fine."""

from __future__ import annotations

import fcntl
import hashlib
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_benchflow.errors import BenchflowError, HeldBackError, RecordError
from pytest_benchflow.records.audit import read_audit
from pytest_benchflow.records.journal import read_json, write_json
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.rollout.cell import task_of
from pytest_benchflow.rollout.place import open_lock_file
from pytest_benchflow.tasks.load import task_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.settings import Settings

# So long a canary may be neither done nor under way anywhere, as between two items of a worker, before it is given up.
_PATIENCE_SEC = 120.0
# So often files are looked at, however many rollouts wait.
_LOOK_SEC = 0.2
# So long its file may be unlocked without a word of what became of it, as a moment after it was made.
_ALIVE_SEC = 5.0
_LONGEST = 300


@dataclass(frozen=True)
class Canary:
    """A planned rollout that others wait for."""

    config: RolloutConfig
    runs: bool  # an item of this session asks for it
    plain: bool  # its configuration is the one that was planned, so that whoever waits may run it

    @cached_property
    def name(self) -> str:
        """Return the name of its rollout as planned."""
        return self.config.rollout_name(task_of(self.config))


class Canaries:
    """What a session's processes know of its canaries, in files of the job that are gone when the session is.

    `planned` returns them all, also those that no item of this session asks for.
    """

    def __init__(
        self, job_dir: Path, session_id: str, settings: Settings, planned: Callable[[], Iterable[Canary]]
    ) -> None:
        self._job_dir = job_dir
        self._mark = f".canary-{hashlib.sha256(session_id.encode()).hexdigest()[:16]}-"
        self._audited = settings.require_audit
        self._asked = bool(settings.canary)
        self._planned = planned
        self._all: list[Canary] | None = None
        self._faults: dict[str, str | None] = {}
        self._still_since: float | None = None  # when nothing was found to be under way
        self._dead_since: dict[str, float] = {}  # by canary: when it was found begun and left
        self._waited: dict[tuple[str, str, str], tuple[float, list[Canary]]] = {}  # by arm: when found, and which

    def before(self, config: RolloutConfig) -> list[Canary] | None:
        """Return the canaries that a rollout waits for and that are not done; None when it need not wait.

        Raises: HeldBackError when it is not to start, and for one that has no canary.
        """
        if not self._asked or config.canary:
            return None
        arm = _arm(config)
        since, waited = self._waited.get(arm, (float("-inf"), []))
        if time.monotonic() - since < _LOOK_SEC:
            return waited
        canaries = self._of(arm)
        faults = {canary.name: self._fault(canary) for canary in canaries if self._is_done(canary)}
        for name, fault in faults.items():
            if fault is not None:
                raise HeldBackError(f"not started: the canary {name} {fault}")
        if not canaries:
            agent, model, _skills = arm
            raise HeldBackError(
                f"not started: no canary is planned for {agent} with the model {model}, so nothing tells that they are "
                "fine; --benchflow-canary takes tasks that they run too"
            )
        waited = [canary for canary in canaries if canary.name not in faults]
        if waited:
            self._waited[arm] = (time.monotonic(), waited)
        return waited or None

    def note(self, name: str, outcome: Rollout | BenchflowError) -> None:
        """Keep what became of a canary, for every process of the session."""
        if name not in {canary.name for canary in self._canaries()}:
            return
        fault = self._faults[name] = fault_of(outcome, audited=self._audited)
        self._waited.clear()
        # Who waits for it and reads nothing gives up in time.
        with suppress(OSError):
            write_json(self._job_dir / f"{self._mark}{name}.json", {"fault": fault})

    def may_run(self, canary: Canary) -> bool:
        """Tell whether one that waits for a canary may run it: one that took its process along is not run again."""
        return canary.plain and canary.name not in self._dead_since

    @contextmanager
    def under_way(self, name: str) -> Iterator[None]:
        """Let other processes see that a canary is run or asked for; the kernel tells when this process is dead."""
        if not self._asked or not self._job_dir.is_dir() or name not in {canary.name for canary in self._canaries()}:
            yield
            return
        with open_lock_file(self._lock_of(name)) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def forget(self) -> None:
        """Remove the session's files, when it is over."""
        for path in self._job_dir.glob(f"{self._mark}*"):
            path.unlink(missing_ok=True)

    def _canaries(self) -> list[Canary]:
        if self._all is None:
            self._all = list(self._planned()) if self._asked else []
        return self._all

    def _of(self, arm: tuple[str, str, str]) -> list[Canary]:
        """Return the canaries of an arm; those of another skill mode where the tasks have none in this one."""
        same = [canary for canary in self._canaries() if _arm(canary.config)[:2] == arm[:2]]
        return [canary for canary in same if _arm(canary.config) == arm] or same

    def _is_done(self, canary: Canary) -> bool:
        """Tell whether it is known what became of a canary, or that nothing will."""
        if canary.name in self._faults or not canary.runs:
            return True
        with suppress(RecordError):
            told = read_json(self._job_dir / f"{self._mark}{canary.name}.json")
            fault = told.get("fault", "left a word that tells nothing")
            self._faults[canary.name] = None if fault is None else str(fault)
            return True
        return self._is_dead(canary) or (not canary.plain and self._is_given_up(canary))

    def _lock_of(self, name: str) -> Path:
        return self._job_dir / f"{self._mark}{name}.lock"

    def _is_dead(self, canary: Canary) -> bool:
        """Tell whether the process that ran a canary is gone without a word of what became of it."""
        path = self._lock_of(canary.name)
        if not path.exists() or _is_locked(path):
            self._dead_since.pop(canary.name, None)
            return False
        if time.monotonic() - self._dead_since.setdefault(canary.name, time.monotonic()) < _ALIVE_SEC:
            return False
        self._faults[canary.name] = "took the process that ran it along, or was left by it"
        return True

    def _fault(self, canary: Canary) -> str | None:
        if canary.name not in self._faults:
            rollout = Rollout(self._job_dir / canary.name)
            if not rollout.dir.config.is_file():
                self._faults[canary.name] = "has no rollout in this job, and this session does not run it"
            else:
                self._faults[canary.name] = _of_another(rollout, canary) or fault_of(rollout, audited=self._audited)
        return self._faults[canary.name]

    def _is_given_up(self, canary: Canary) -> bool:
        """Tell whether no process has run any canary for so long that nobody is going to run this one."""
        if any(_is_locked(path) for path in self._job_dir.glob(f"{self._mark}*.lock")):
            self._still_since = None
        elif self._still_since is None:
            self._still_since = time.monotonic()
        elif time.monotonic() - self._still_since > _PATIENCE_SEC:
            self._faults[canary.name] = "was not run by any process of this session"
            return True
        return False


def _of_another(rollout: Rollout, canary: Canary) -> str | None:
    """Say why a rollout of an earlier session tells nothing of what would start now; None where it does."""
    try:
        before = rollout.config
    except RecordError as error:
        return f"cannot be read: {_short(str(error))}"
    now = {"task_digest": task_digest(task_of(canary.config)), "reasoning_effort": canary.config.reasoning_effort}
    for name, value in now.items():
        if before.get(name) != value:
            return f"is of another {name.replace('_', ' ')}, and this session does not run it"
    return None


def _arm(config: RolloutConfig) -> tuple[str, str, str]:
    return config.arm or (config.agent_name, config.model, config.skills)


def fault_of(outcome: Rollout | BenchflowError, *, audited: bool) -> str | None:
    """Say what keeps a canary from being fine, to go on after its name; None when it is.

    `audited` asks for an audit that calls it publishable and fits its trace.
    """
    if isinstance(outcome, BenchflowError):
        return f"left no rollout: {_short(str(outcome))}"
    try:
        if not outcome.healthy:
            result = outcome.result
            why = result.get("error") or result.get("verifier_error") or result.get("export_error")
            category = result.get("verdict_category")
            return f"is {outcome.verdict} ({category})" + (f": {_short(str(why))}" if why else "")
    except RecordError as error:
        return f"cannot be read: {_short(str(error))}"
    if not audited:
        return None
    audit = read_audit(outcome.dir)
    if audit is None:
        return "is healthy and has no audit"
    if audit.void:
        return f"is healthy, but its audit does not hold: {audit.void}"
    return None if audit.verdict == "publishable" else f"is healthy, but its audit says {audit.verdict}"


def _is_locked(path: Path) -> bool:
    try:
        with open_lock_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
