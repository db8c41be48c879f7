"""The ladder of fixtures: task -> sandbox -> llm_proxy -> agent -> rollout.

Task items climb it, and so can hand-written tests; a conftest overrides any rung:

    @pytest.mark.benchflow_task("tasks/csv-report")
    def test_agent_solves_it(rollout):
        assert rollout.reward == 1
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_benchflow.errors import BenchflowError, RejectedKeyError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_benchflow.contracts import Agent, Backend
    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.report.summary import Summary
    from pytest_benchflow.rollout.by_hand import LlmProxy, SandboxHandle
    from pytest_benchflow.rollout.canary import Canary
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.rollout.flights import Flight
    from pytest_benchflow.rollout.session import RolloutSession
    from pytest_benchflow.settings import Settings
    from pytest_benchflow.tasks.task import Task

MARKER = "benchflow_task"
# The rungs: where one is overridden, the rollout may be another than was planned.
LADDER = ("task", "benchflow_cell", "sandbox", "llm_proxy", "agent", "rollout")


class Runs:
    """The rollouts of this process: settled at the start, started when the first one is asked for."""

    def __init__(self, settings: Callable[[], Settings], session_id: str, leads: bool) -> None:
        self._settings = settings
        self.session_id = session_id
        self.leads = leads
        # Told of each phase of a rollout as it begins: (what to call the rollout, phase, step where one begins).
        self.watch: Callable[[str, str, str | None], None] | None = None
        # Told of the directory of each rollout that this process has run.
        self.finished: Callable[[Path], None] | None = None
        # Lets rollouts begin that items are sure to ask for; None: each begins with its item.
        self.ahead: Callable[[], None] | None = None
        # Called now and then, while a rollout is waited for.
        self.meanwhile: Callable[[], None] | None = None
        # Told of the rollout that an item is about to be given.
        self.landed: Callable[[Flight], None] | None = None
        # Hears how rollouts under way stand, as `rollout.progress.Progress` tells it; None: nobody wants to know.
        self.progress: Callable[[dict[str, Any]], None] | None = None
        # The items of this session; None where this process does not know them, as the one that leads xdist's workers.
        self.items: Sequence[pytest.Item] | None = None
        # Returns the rollouts that others wait for, as items were collected.
        self.canaries: Callable[[], Iterable[Canary]] = tuple
        self.refused: str | None = None  # why no rollout runs, known only where the items are
        self.incomplete: str | None = None  # after `close`: why the job's own files could not be written
        self.opened = False  # after `close`: there is a job of this session
        self.cut_short = False  # rollouts may have begun that no item tells of
        self.unclaimed: list[Path] = []  # after `close`: rollouts that have ended and that no item has told of
        self.reaped: list[str] = []  # after `close`: what became of sandboxes that earlier sessions left
        self.left: list[str] = []  # after `close`: the sandboxes that are not surely gone
        self._shared_names: frozenset[str] | None = None
        self._told: dict[BenchflowError, str] = {}  # errors that left no rollout, and the items that tell of them
        self._session: RolloutSession | None = None

    @property
    def settings(self) -> Settings:
        """Return what this session was asked for. Raises: pytest.UsageError."""
        return self._settings()

    def session(self) -> RolloutSession:
        """Return the session that runs rollouts, made on first use."""
        if self._session is None:
            # Imported here, not at the start: it brings asyncio and much else.
            from pytest_benchflow.rollout.progress import Progress
            from pytest_benchflow.rollout.session import RolloutSession

            self._session = RolloutSession(
                self.settings,
                session_id=self.session_id,
                leads=self.leads,
                planned=self._planned,
                canaries=self.canaries,
                progress=Progress(self.progress) if self.progress else None,
            )
        return self._session

    def _planned(self) -> list[RolloutConfig] | None:
        """Return the cells of the items of this session; an override of a rung may still make another of one."""
        if self.items is None:
            return None
        return [cell for item in self.items if (cell := self.planned_cell(item)) is not None]

    def planned_cell(self, item: pytest.Item) -> RolloutConfig | None:
        """Return the cell whose rollout an item asks for; None: it asks for none, or says so when it runs."""
        from pytest_benchflow.rollout.cell import task_of

        cell = self.cell_of(item)
        return None if cell is None else replace(cell, distinguish=self.shares_its_name(task_of(cell)))

    def cell_of(self, item: pytest.Item) -> RolloutConfig | None:
        """Return the cell that an item asks for, without what tells it from others of its name; None: as above."""
        cell: RolloutConfig | None = getattr(item, "cell", None)
        if cell is None and asks_for_rollout(item):
            callspec = getattr(item, "callspec", None)
            cell = callspec.params.get("benchflow_cell") if callspec else None
            if cell is None:
                from pytest_benchflow.rollout.plan import plan

                with suppress(BenchflowError):
                    return next(iter(plan(self.settings, _load(marked_path(item)))), None)
        return cell if hasattr(cell, "cell_id") else None  # pytest has a value of its own for: no cell is left

    def get(self, config: RolloutConfig, task: Task, item: pytest.Item) -> Rollout:
        """Return the rollout of a cell that an item asks for, run at most once in the whole session."""
        from pytest_benchflow.rollout.cell import task_of

        if self.refused is not None:
            raise UsageError(self.refused)
        planned = self.planned_cell(item)
        name = planned.rollout_name(task_of(planned)) if planned else None
        session = self.session()
        flight = session.flight(config)
        if self.ahead and flight.outcome is None:
            self.ahead()
        try:
            rollout = session.get(config, self._watcher(config, task), planned=name, meanwhile=self.meanwhile)
        finally:
            if self.landed:
                self.landed(flight)
        # No phase: another worker ran it, and told of it.
        if flight.phases and not flight.told:
            flight.told = True
            self.tell(rollout.path)
        return rollout

    def tell(self, path: Path) -> None:
        """Let others know of a rollout that this process has run."""
        if self.finished:
            self.finished(path)

    def no_rollout(self, error: BenchflowError, item: pytest.Item) -> NoReturn:
        """Raise the error that left no rollout, for the first item that asks; the others point to that one."""
        teller = self._told.setdefault(error, item.nodeid)
        if teller == item.nodeid:
            raise error
        if getattr(item, "role", None) == "check":
            pytest.skip(f"there is no rollout to check: the error of {teller} says why")
        pytest.fail(f"the error of {teller} says why", pytrace=False)

    def _watcher(self, config: RolloutConfig, task: Task) -> Callable[[str], None]:
        """Return what hears of a rollout's phases and tells of those worth a word."""
        from pytest_benchflow.report.terminal import head

        name = head(
            self.settings,
            task=task.name,
            agent=config.agent_name,
            model=config.model,
            skills=config.skills,
            trial=config.trial,
        )

        phases: list[str] = []

        def watch(phase: str) -> None:
            step = task.steps[phases.count(phase) % len(task.steps)].name if phase == "agent_execution" else None
            phases.append(phase)
            if self.watch:
                self.watch(name, phase, step)

        return watch

    @staticmethod
    def is_plain(item: pytest.Item) -> bool:
        """Tell whether an item's rollout is the one that was planned: nobody overrides a rung of the ladder."""
        known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        return all(definition.func.__module__ == __name__ for rung in LADDER for definition in known.get(rung, ()))

    def shares_its_name(self, task: Task) -> bool:
        """Tell whether another task of the session has a directory that its rollouts would be named alike by."""
        from pytest_benchflow.rollout.config import slug

        if self._shared_names is None:
            self._shared_names = _shared_names(self.items or ())
        return slug(task.slug) in self._shared_names

    def stop_early(self) -> None:
        """Begin no other rollout, and interrupt those in flight: the session is about to end."""
        if self._session is not None:
            self.cut_short = True
            self._session.stop_early()

    def open(self) -> None:
        """Take the job's directory, in the process that leads.

        Raises: UsageError when another session has it, or when it would lie inside a task and change it.
        """
        from pytest_benchflow.tasks.load import is_task

        jobs = self.settings.jobs_dir
        task = next((place for place in (jobs, *jobs.parents) if is_task(place)), None)
        if task is not None:
            raise UsageError(
                f"the jobs directory {jobs} lies inside the task {task}; pass another --benchflow-jobs-dir"
            )
        if self.leads:
            self.session().open()

    def end(self) -> None:
        """Let no further signal cut short the end of the session."""
        if self._session is not None:
            self._session.end()

    def close(self) -> None:
        """End everything that rollouts started; safe to call twice."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()
            for path in session.unclaimed:
                self.tell(path)
            self.unclaimed = session.unclaimed
            self.incomplete, self.reaped, self.left = session.incomplete, session.reaped, session.left
            self.opened = session.begun


RUNS = pytest.StashKey[Runs]()
SUMMARY: pytest.StashKey[Summary] = pytest.StashKey()


@pytest.fixture
def task(request: pytest.FixtureRequest) -> Task:
    """Return the task: that of the item, or the directory in `@pytest.mark.benchflow_task("tasks/csv-report")`.

    The path is relative to pytest's root directory. An override returns a `Task`, as from
    `pytest_benchflow.tasks.load.load_task(path)`.
    """
    cell = getattr(request.node, "cell", None)
    if cell is not None:
        found: Task = cell.task
        return found
    with _plainly():
        return _load(marked_path(request.node))


@pytest.fixture
def benchflow_cell(request: pytest.FixtureRequest, task: Task) -> RolloutConfig:
    """Return the cell of the matrix (agent, model, skill mode, trial) that this test is run for."""
    cell = getattr(request.node, "cell", None) or getattr(request, "param", None)
    if cell is not None:
        found: RolloutConfig = cell
        return found
    from pytest_benchflow.rollout.plan import plan

    with _plainly():
        return plan(request.config.stash[RUNS].settings, task)[0]


@pytest.fixture
def sandbox(
    request: pytest.FixtureRequest, task: Task, benchflow_cell: RolloutConfig
) -> Iterator[SandboxHandle | str | Backend]:
    """Return the sandbox backend that the rollout uses; by itself it is a machine for this test.

    `sandbox.exec(["ls"]).stdout` starts one with the task's environment, apart from the rollout's own, and it is
    removed when the test ends. An override returns the name of a backend or a `contracts.Backend`.
    """
    from pytest_benchflow.rollout.by_hand import SandboxHandle

    handle = SandboxHandle(benchflow_cell.sandbox, task, request.config.stash[RUNS].session)
    yield handle
    handle.close()


@pytest.fixture
def llm_proxy(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    task: Task,
    sandbox: object,  # noqa: ARG001 - the order of the ladder
    benchflow_cell: RolloutConfig,
) -> Iterator[LlmProxy | str]:
    """Return the gateway to the model: `.model` is its name, `.exchanges` what the rollout recorded.

    A test may also call it by hand at `.url` with `.token`. An override returns the name of a model.
    """
    from pytest_benchflow.rollout.by_hand import LlmProxy

    handle = LlmProxy(
        benchflow_cell,
        task,
        lambda: tmp_path_factory.mktemp("llm_proxy"),
        request.config.stash[RUNS].session,
    )
    yield handle
    handle.close()


@pytest.fixture
def agent(
    benchflow_cell: RolloutConfig,
    llm_proxy: object,  # noqa: ARG001 - the order of the ladder
) -> str | Agent:
    """Return the agent that works on the task. An override returns a name, such as "oracle", or a `contracts.Agent`."""
    return benchflow_cell.agent


@pytest.fixture
def rollout(
    request: pytest.FixtureRequest,
    *,
    benchflow_cell: RolloutConfig,
    task: Task,
    sandbox: SandboxHandle | str | Backend,
    llm_proxy: LlmProxy | str,
    agent: str | Agent,
) -> Rollout:
    """Return the finished rollout: `.reward`, `.verdict`, `.healthy`, `.result`, `.exchanges`, `.events`, `.path`.

    It runs at most once in a session, whichever test asks first; a cell that cannot run here skips the test.
    """
    from pytest_benchflow.rollout.by_hand import LlmProxy, SandboxHandle
    from pytest_benchflow.rollout.cell import resolve_agent

    runs = request.config.stash[RUNS]
    with _plainly():
        model = llm_proxy.model if isinstance(llm_proxy, LlmProxy) else llm_proxy
        _expect("agent", agent, isinstance(agent, str) or hasattr(agent, "uses_model"), "a name or a contracts.Agent")
        _expect("llm_proxy", model, isinstance(model, str), "the name of a model")
        config = replace(
            benchflow_cell,
            task=task,
            agent=agent,
            sandbox=sandbox.backend if isinstance(sandbox, SandboxHandle) else sandbox,
            model=model if resolve_agent(agent).uses_model else "none",
            distinguish=runs.shares_its_name(task),
        )
        try:
            finished = runs.get(config, task, request.node)
        except UnsupportedError:
            raise
        except BenchflowError as error:
            runs.no_rollout(error, request.node)
        _remember(request, finished)
    if isinstance(llm_proxy, LlmProxy):
        llm_proxy.follow(finished)
    return finished


def parametrize_matrix(metafunc: pytest.Metafunc) -> None:
    """Run a hand-written test once for each cell of the matrix, when there is more than one."""
    if "benchflow_cell" not in metafunc.fixturenames or metafunc.definition.get_closest_marker(MARKER) is None:
        return
    from pytest_benchflow.rollout.plan import plan

    try:
        cells = plan(metafunc.config.stash[RUNS].settings, _load(marked_path(metafunc.definition)))
    except BenchflowError:
        # The `task` fixture says what is wrong, in the one test that it concerns.
        return
    if len(cells) != 1:
        metafunc.parametrize("benchflow_cell", cells, indirect=True, ids=[cell.cell_id for cell in cells])


def asks_for_rollout(item: pytest.Item) -> bool:
    """Tell whether a hand-written test asks for a rollout."""
    return "rollout" in getattr(item, "fixturenames", ()) and item.get_closest_marker(MARKER) is not None


def marked_path(node: pytest.Item) -> Path:
    """Return the task directory that a test's marker names. Raises: UsageError saying what is accepted."""
    marker = node.get_closest_marker(MARKER)
    accepted = f'@pytest.mark.{MARKER}("tasks/csv-report"), with one path relative to the root directory'
    if marker is None:
        raise UsageError(f"the fixture `task` needs a marker that names the task: {accepted}")
    if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], str | os.PathLike):
        came = ", ".join([*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())])
        raise UsageError(f"the marker is {accepted}; it was given ({came})")
    return Path(os.path.normpath(node.config.rootpath / marker.args[0]))


def _shared_names(items: Iterable[pytest.Item]) -> frozenset[str]:
    from pytest_benchflow.rollout.config import slug

    paths: dict[str, set[Path]] = {}
    for item in items:
        cell = getattr(item, "cell", None)
        if cell is not None:
            paths.setdefault(slug(cell.task.slug), set()).add(cell.task.path)
        elif item.get_closest_marker(MARKER) is not None:
            try:
                path = marked_path(item)
            except UsageError:
                continue
            paths.setdefault(slug(path.name), set()).add(path)
    return frozenset(name for name, places in paths.items() if len(places) > 1)


def _load(path: Path) -> Task:
    from pytest_benchflow.tasks.load import load_task

    return load_task(path)


def _remember(request: pytest.FixtureRequest, rollout: Rollout) -> None:
    """Keep what the reports of this test show about its rollout."""
    from pytest_benchflow.report.summary import summarize

    root = request.config.invocation_params.dir
    place = rollout.path.relative_to(root) if rollout.path.is_relative_to(root) else rollout.path
    earlier = rollout.config.get("session_id") != request.config.stash[RUNS].session_id
    summary = request.node.stash[SUMMARY] = replace(summarize(rollout, str(place)), earlier=earlier)
    if getattr(request.node, "role", None) != "check":
        request.node.user_properties.extend(summary.properties())


def _expect(fixture: str, value: object, fits: bool, accepted: str) -> None:
    if not fits:
        raise UsageError(f"the fixture {fixture} returned {value!r}; an override returns {accepted}")


@contextmanager
def _plainly() -> Iterator[None]:
    """Show errors written for people without a traceback.

    An unsupported cell becomes a skip, and a rejected key ends the session (see plugin).
    """
    try:
        yield
    except (UnsupportedError, RejectedKeyError):
        raise
    except BenchflowError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
