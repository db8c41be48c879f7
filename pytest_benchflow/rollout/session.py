"""Run each rollout of a session at most once, whichever item or worker asks first."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from pytest_benchflow.errors import (
    BenchflowError,
    HeldBackError,
    RecordError,
    UnstartedError,
    UnsupportedError,
    UsageError,
)
from pytest_benchflow.records.attempts import attempts_of
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.rollout.aside import aside
from pytest_benchflow.rollout.budget import Budget
from pytest_benchflow.rollout.canary import Canaries
from pytest_benchflow.rollout.cell import resolve, settled, task_of
from pytest_benchflow.rollout.flights import Flight, Flights, Rooms
from pytest_benchflow.rollout.host import Host
from pytest_benchflow.rollout.job import begin_job, complete_lost, finish_job, note_cell, recover_jobs
from pytest_benchflow.rollout.keys import Keys
from pytest_benchflow.rollout.leftovers import left_at_end, reap_at_start
from pytest_benchflow.rollout.matrix import matrix_record
from pytest_benchflow.rollout.place import holding, rundir_of, take_job
from pytest_benchflow.rollout.plan import pairs
from pytest_benchflow.rollout.pool import Pool
from pytest_benchflow.rollout.resume import Resumption
from pytest_benchflow.rollout.retries import run_retried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import FrameType

    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.rollout.canary import Canary
    from pytest_benchflow.rollout.cell import Cell
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.rollout.progress import Progress
    from pytest_benchflow.settings import Settings

_TOGETHER_SEC = 2.0
# With many rollouts in flight threads that compute give way to the loop that soon; Python's own is ten times that.
_SWITCH_SEC = 0.0005


class RolloutSession:
    """The rollouts of one pytest session in one process.

    Under xdist each worker has one, all with the same `session_id` and job name; only the one with `leads` writes
    the job's summary, recovers what earlier runs left and refuses a job that another session works on. `planned`
    returns the cells of this session, None where the process that leads does not know them, `canaries` those that
    others wait for; `progress`, which is closed with it, tells of rollouts under way.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        session_id: str,
        leads: bool = True,
        planned: Callable[[], Iterable[RolloutConfig] | None] = lambda: None,
        canaries: Callable[[], Iterable[Canary]] = tuple,
        progress: Progress | None = None,
    ) -> None:
        self.settings = settings
        self.session_id = session_id
        self.incomplete: str | None = None  # after `close`: why the job's own files could not be written
        self.unclaimed: list[Path] = []  # after `close`: rollouts that have ended well and that nobody has asked for
        self.reaped: list[str] = []  # what became of sandboxes that earlier sessions left, in lines for people
        self.left: list[str] = []  # after `close`, where it leads: a line for each sandbox that is not surely gone
        self._planned = planned
        self._progress = progress
        self._begun = False
        self.pool = Pool()
        self._leads = leads
        self._budget = Budget(self.job_dir, session_id, settings.max_cost)
        self._keys = Keys(self.job_dir, session_id, probe=not settings.skip_key_check)
        self._host: Host | None = None
        self._job_lock: IO[str] | None = None
        self._known: dict[Path, Flight] = {}  # by directory: all that were asked for or planned
        self._canary_flights: dict[str, Flight] = {}
        self._canaries = Canaries(self.job_dir, session_id, settings, canaries)
        self.flights = Flights(settings.concurrency, self._fly_in_turn, self._before)
        self._rooms = Rooms()
        self._resumption = Resumption(self.job_dir, settings, session_id) if settings.resume else None
        self._checking = asyncio.Lock()  # of what has been spent
        self._renamed: set[str] = set()  # planned cells whose rollout has another name
        self._handlers: dict[int, Any] = {}
        self._signalled = float("-inf")
        self._ending: bool | None = None  # whether a signal has come since the session began to end; None: it goes on
        self._switch_sec: float | None = None  # Python's own, while it is another
        # What a rollout is made of is found by computing, as records are: see the host's writer.
        self._resolver = ThreadPoolExecutor(1, thread_name_prefix="benchflow-resolve")

    @property
    def begun(self) -> bool:
        """Tell whether the job's directory was taken."""
        return self._begun

    @property
    def job_dir(self) -> Path:
        """Return the directory of this run."""
        return self.settings.jobs_dir / self.settings.job_name

    def open(self) -> None:
        """Take the job directory and write what will run.

        Raises: UsageError when another session has it, or nobody can.
        """
        self._take_signals()
        if self._begun:
            return
        if self.settings.concurrency > 1 and self._switch_sec is None:
            self._switch_sec = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SEC)
        try:
            if self._leads and self._job_lock is None:
                if self._resumption:
                    self._resumption.must_exist()
                recover_jobs(self.settings.jobs_dir, also=self.job_dir)
                self.job_dir.mkdir(parents=True, exist_ok=True)
                self._job_lock = take_job(self.job_dir, sys.argv, or_else="pass another --benchflow-job-name")
            self.job_dir.mkdir(parents=True, exist_ok=True)
            planned = self._planned()
            if self._progress and planned is not None:
                self._progress.planned(planned)
            if self._leads and self._resumption:
                self._resumption.check(planned)
            begin_job(
                self.job_dir,
                session_id=self.session_id,
                settings=self.settings,
                planned=None if planned is None else partial(matrix_record, planned),
            )
            self._begun = True
            if self._leads:
                self.reaped += self.pool.run(reap_at_start(self.settings.sandbox))
                self._check_keys(planned)
        except OSError as error:
            raise UsageError(
                f"the jobs directory {self.settings.jobs_dir} cannot be used: {error.strerror or error}; "
                "--benchflow-jobs-dir takes a directory that can be written, or made"
            ) from None

    def _check_keys(self, planned: Iterable[RolloutConfig] | None) -> None:
        """Try the keys before the first rollout. Raises: RejectedKeyError."""
        if planned is not None:
            models = [cell.model for cell in planned]
        else:
            models = [model for _agent, model in pairs(self.settings)]
        for model in dict.fromkeys(models):
            if model not in ("replay", "none"):
                from pytest_benchflow.proxy.routes import provider_route

                self.pool.run(self._keys.check(provider_route(model)))

    def look_ahead(self, configs: Iterable[RolloutConfig]) -> None:
        """Run these while others are waited for, in this order: items will ask for each of them."""
        flights = []
        # What cannot be run is told by the item that asks for it.
        with suppress(BenchflowError):
            self.open()
            for config in configs:
                with suppress(BenchflowError):
                    flights.append(self.flight(config))
        if flights:
            self.pool.run(_soon(lambda: self.flights.plan(flights)))

    def stop_early(self) -> None:
        """Begin no other rollout, and interrupt those in flight: the session is about to end."""
        if self._known:
            self.pool.run(_soon(self.flights.cancel))

    def planned_flight(self, config: RolloutConfig) -> Flight | None:
        """Return the rollout of a configuration that was looked ahead for; None: it begins when it is asked for."""
        with suppress(BenchflowError):
            config = settled(config)
            return self._known.get(rundir_of(config, task_of(config)).path)
        return None

    def first_landed(self, flights: Iterable[Flight]) -> Flight:
        """Wait until one of these has ended, and return it."""
        return self.pool.run(self.flights.first_landed(flights), interrupted=self.flights.cancel)

    def flight(self, config: RolloutConfig) -> Flight:
        """Return the one rollout of this session that goes to this configuration's directory. Raises: BenchflowError.

        Its configuration is that of who came first.
        """
        config = settled(config)
        task = task_of(config)
        rundir = rundir_of(config, task)
        if rundir.path not in self._known:
            self._known[rundir.path] = Flight(config, replace(config, task=task.path), rundir)
        return self._known[rundir.path]

    def get(
        self,
        config: RolloutConfig,
        watch: Callable[[str], None] | None = None,
        *,
        planned: str | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Rollout:
        """Return the rollout of this configuration, running it if this session has not yet.

        `planned` is the name of the cell of the matrix that asks for it; `watch` hears the phases, and `meanwhile` is
        called now and then, while it is waited for. Raises: UnsupportedError (skip), UsageError,
        TaskError, ProviderError; KeyboardInterrupt after cleaning up.
        """
        flight = self.flight(config)
        if flight.outcome is None:
            with self._canaries.under_way(planned or flight.name):
                flight.outcome = self._land(flight, watch, meanwhile)
            if isinstance(flight.outcome, BenchflowError):
                elsewhere = isinstance(flight.outcome, UnsupportedError)
                kind = "skipped" if elsewhere and not isinstance(flight.outcome, UnstartedError) else "error"
                self._note(flight.name, **{kind: str(flight.outcome)})
        if planned and planned != flight.name and planned not in self._renamed:
            self._canaries.note(planned, flight.outcome)
            self._renamed.add(planned)
            self._note(planned, rollout=flight.name)
        config = settled(config)
        if flight.asked != replace(config, task=task_of(config).path):
            raise UsageError(
                f"{flight.name} has been run with other settings in this session; rollouts are told apart by "
                "task, agent, model, skill mode and trial, so give the agent or the trial another name"
            )
        if isinstance(flight.outcome, BenchflowError):
            raise flight.outcome
        return flight.outcome

    def _land(
        self, flight: Flight, watch: Callable[[str], None] | None, meanwhile: Callable[[], None] | None
    ) -> Rollout | BenchflowError:
        """Wait for a rollout; what keeps it from running is returned, for every item that asks for it."""
        try:
            self.open()
        except BenchflowError as error:
            return error
        return self.pool.run(self.flights.land(flight, watch), meanwhile=meanwhile, interrupted=self.flights.cancel)

    def _before(self, flight: Flight) -> list[Flight] | None:
        """Return the canaries of a rollout that this process can run and that are not done; None: it may begin."""
        try:
            canaries = self._canaries.before(flight.config)
            if canaries is None:
                return None
            ours = [each for each in canaries if self._canaries.may_run(each)]
            for each in ours:
                if each.name not in self._canary_flights:
                    self._canary_flights[each.name] = self.flight(each.config)
            return [self._canary_flights[each.name] for each in ours]
        except BenchflowError:
            return None  # it is refused as soon as it begins

    async def _fly_in_turn(self, flight: Flight) -> Rollout | BenchflowError:
        """Run a rollout whose canaries are fine; one that is a canary lets those that wait for it know."""
        try:
            self._canaries.before(flight.config)
        except HeldBackError as error:
            self._without(flight)
            return error
        if not flight.config.canary:
            return await self._fly(flight)
        outcome: Rollout | BenchflowError = BenchflowError("an error of this program's own, which its item tells")
        with self._canaries.under_way(flight.name):
            try:
                outcome = await self._fly(flight)
            finally:
                await asyncio.to_thread(self._canaries.note, flight.name, outcome)
        return outcome

    async def _fly(self, flight: Flight) -> Rollout | BenchflowError:
        """Run a rollout once, on the loop, where nothing may block; what keeps it from running is returned."""
        try:
            if await asyncio.to_thread(self._stands, flight):
                self._without(flight)
                return Rollout(flight.rundir.path)
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            cell = await loop.run_in_executor(self._resolver, context.run, resolve, flight.config)
            await self._keys.check(cell.route)
            if cell.route is not None:
                cell.route.when_rejected(self._keys.reject)
            async with self._rooms.of(cell.backend):
                await self._run(flight, cell)
        except BenchflowError as error:
            self._without(flight)
            return error
        except OSError as error:
            self._without(flight)
            return RecordError(_not_completed(flight.rundir, error))
        return Rollout(flight.rundir.path)

    def _without(self, flight: Flight) -> None:
        if self._progress:
            self._progress.without(flight.name)

    def _stands(self, flight: Flight) -> bool:
        """Tell whether an earlier rollout is kept. Raises: UsageError when it is one of another experiment."""
        return self._resumption is not None and self._resumption.keeps(flight.config, flight.rundir)

    async def _run(self, flight: Flight, cell: Cell) -> None:
        """Run a cell whose turn has come, unless another worker has."""
        path = flight.rundir.path
        # Not under the lock, whose file would be a rollout's; one that another worker has begun is waited for.
        begun = await asyncio.to_thread(self._begun_here, path)
        if not begun:
            await self._may_spend(cell)
        async with holding(flight.rundir):
            if await asyncio.to_thread(self._done_here, path) or await aside(self._is_lost, flight.rundir):
                self._without(flight)
                return
            if begun:
                await self._may_spend(cell)
            await self._attempt(flight, cell)

    def _is_lost(self, rundir: RunDir) -> bool:
        """Tell whether the process that ran this died, and that is how it ended; its record is completed then.

        It is run again, once, only where others were in flight beside it: one of those may have been to blame.
        """
        if not self._begun_here(rundir.path):
            return False
        if self.settings.concurrency > 1 and not any(self._begun_here(each.path) for each in attempts_of(rundir)):
            return False
        complete_lost(rundir)
        return True

    async def _attempt(self, flight: Flight, cell: Cell) -> None:
        """Run a cell whose directory is held."""
        with self._progress.following(flight, cell) if self._progress else nullcontext(flight.phase) as watch:
            await run_retried(
                cell,
                host=await self._shared(),
                watch=watch,
                retries=self.settings.retries,
                may_spend=partial(self._may_spend, cell),
            )

    async def _may_spend(self, cell: Cell) -> None:
        """Look whether a rollout, or a further attempt, may cost anything. Raises: OverBudgetError, UsageError."""
        async with self._checking:
            await asyncio.to_thread(self._budget.check, cell)

    def _note(self, cell: str, **what: str) -> None:
        """Let the summary tell of a cell that leaves no rollout of its name."""
        # What cannot be written for want of room is told by the item all the same.
        with suppress(OSError):
            if self._begun:
                note_cell(self.job_dir, cell, self.settings, **what)

    def host(self) -> Host:
        """Return what this process's rollouts share, started on first use."""
        # Parity uses this without a job to open.
        self._take_signals()
        return self.pool.run(self._shared())

    async def _shared(self) -> Host:
        if self._host is None:
            # Nothing comes in between: entering it waits for nothing.
            self._host = Host(self.session_id, model_concurrency=self.settings.model_concurrency)
            self._host.progress = self._progress
            await self._host.__aenter__()
        return self._host

    def end(self) -> None:
        """Let no signal cut short what ends the session from now on, unless it is sent again."""
        self._ending = bool(self._ending)

    def close(self) -> None:
        """Free everything; safe to call twice."""
        self.end()
        with ExitStack() as stack:  # each step is taken, whatever the others raise
            stack.callback(self._let_go)
            if self._progress:
                stack.callback(self._progress.close)
            stack.callback(self.pool.close)
            if self._leads and self._begun:
                stack.callback(self._look_for_left)
            stack.callback(self._leave_host)
            if self._known:
                stack.callback(self._land_all)

    def _land_all(self) -> None:
        """Interrupt what is in flight, and note what had ended before."""
        self.pool.run(self.flights.stop())
        self.unclaimed += [path for path, flight in self._known.items() if flight.has_ended and not flight.told]

    def _leave_host(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            self.pool.run(host.__aexit__(None, None, None))

    def _look_for_left(self) -> None:
        with suppress(OSError):
            self.left = self.pool.run(left_at_end(self.job_dir, self.session_id))

    def _let_go(self) -> None:
        self._resolver.shutdown()
        if self._switch_sec is not None:
            sys.setswitchinterval(self._switch_sec)
            self._switch_sec = None
        for number, usual in self._handlers.items():
            signal.signal(number, usual)
        self._handlers.clear()
        self._keys.close()
        if self._job_lock is not None:
            with self._job_lock:
                self._job_lock = None
                self._keys.forget()
                self._canaries.forget()
                if not self._begun:
                    return
                try:
                    finish_job(self.job_dir, self.session_id)
                except (OSError, BenchflowError) as error:
                    # The session is over, and its own end must not hide what it found.
                    said = error.strerror or error if isinstance(error, OSError) else error
                    self.incomplete = f"{self.job_dir} is not complete: {said}; the next start completes it"
                    if not (self.job_dir / "job.json").exists():
                        self.incomplete = (
                            f"{self.job_dir}: its job.json was removed while this session ran, and what was planned is "
                            "gone; run it again under another --benchflow-job-name"
                        )

    def _take_signals(self) -> None:
        """Treat SIGTERM and SIGHUP as Ctrl-C while the session is open: by default they end Python without clean-up."""
        if self._handlers or threading.current_thread() is not threading.main_thread():
            return
        for number, usual in (
            (signal.SIGINT, signal.default_int_handler),
            (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGHUP, signal.SIG_DFL),
        ):
            if signal.getsignal(number) is usual:
                self._handlers[number] = signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Interrupt, once: signals that come together, as one sent to a whole group and passed on, are one."""
        signalled, self._signalled = self._signalled, time.monotonic()
        if self._signalled - signalled <= _TOGETHER_SEC:
            return
        if self._ending is None:
            signal.default_int_handler(number, frame)
        elif self._ending and self._leads:
            # Whoever insists wants no traceback; the next start removes what is left.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._ending = True

    def _begun_here(self, path: Path) -> bool:
        """Tell whether the rollout is one of this session, finished or not."""
        try:
            return bool(Rollout(path).config.get("session_id") == self.session_id)
        except RecordError:
            return False

    def _done_here(self, path: Path) -> bool:
        """Tell whether another item or worker of this session has finished the rollout."""
        try:
            return self._begun_here(path) and Rollout(path).result.get("verdict") is not None
        except RecordError:
            return False


def _not_completed(rundir: RunDir, error: OSError) -> str:
    """Say what is left of a rollout whose records could not be written to their end."""
    if error.errno == errno.ENOENT and not rundir.config.exists():
        return f"{rundir.path}: it was removed while the rollout ran, and what had been captured is gone; run it again"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (
        f"{rundir.path}: its records could not be completed: {error.strerror or error}; what was captured before is "
        "there, and is completed at the next start"
        + ("; make room, or pass another --benchflow-jobs-dir" if full else "")
    )


async def _soon(change: Callable[[], None]) -> None:
    """Make a change on the loop."""
    change()
