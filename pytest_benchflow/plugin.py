"""The pytest hooks of this package, each a few lines that hand on at once (entry point: benchflow).

Most pytest sessions have nothing to do with tasks. Whatever only those others need is imported when it is needed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import pytest_benchflow
from pytest_benchflow import fixtures, hookspecs
from pytest_benchflow.errors import BenchflowError, RejectedKeyError, UnstartedError, UnsupportedError
from pytest_benchflow.fixtures import MARKER, RUNS, SUMMARY, Runs, asks_for_rollout, parametrize_matrix
from pytest_benchflow.settings import INI_ONLY, INI_TYPES, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from pathlib import Path

    from pytest_benchflow.collect.selection import Selection
    from pytest_benchflow.report.limits import Judgement
    from pytest_benchflow.report.terminal import RolloutReport

# Shipped checks are plain asserts; rewriting must be set up before they are imported (an editable install loses it).
pytest.register_assert_rewrite("pytest_benchflow.checks")

MARKERS = (
    f'{MARKER}(path): the task directory of this test, such as "tasks/csv-report", relative to the root directory.',
    "benchflow: items made from a task directory (added by pytest-benchflow).",
    "rollout: items that are rollouts (added by pytest-benchflow).",
    "check: items that check what a rollout left (added by pytest-benchflow).",
)
# What third parties may register.
KINDS = ("agents", "sandboxes", "checks")
# What makes a directory one that pytest must not enter by itself.
OURS = ("task.toml", "task.md", "job.json", "trajectory")

_SELECTION: pytest.StashKey[Selection] = pytest.StashKey()
_REPORT: pytest.StashKey[RolloutReport] = pytest.StashKey()
_LIMITS: pytest.StashKey[list[Judgement]] = pytest.StashKey()


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let third parties register agents, sandboxes and checks, and offer the fixtures."""
    pluginmanager.add_hookspecs(hookspecs)
    pluginmanager.register(fixtures, "benchflow-fixtures")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer each option as `--benchflow-NAME` and as the ini value `benchflow_NAME`."""
    group = parser.getgroup("benchflow", "agent benchmarks (pytest-benchflow)")
    for option in OPTIONS:
        how: dict[str, Any] = {"action": "store_true"}
        if option.kind != "bool":
            action = "append" if option.kind == "list" else "store"
            how = {"action": action, "metavar": "|".join(option.choices) or option.metavar}
            how |= {"nargs": "?", "const": option.alone} if option.alone else {}
        # The default stays None: only so can an ini value be told from an option that was not given.
        group.addoption(option.flag, dest=option.ini, default=None, help=option.help, **how)
        parser.addini(option.ini, help=f"{option.help}; as {option.flag}", type=INI_TYPES[option.kind], default=None)
    for name, kind, _, text in INI_ONLY:
        parser.addini(name, help=text, type=kind, default=None)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Complete the command line while it can still be changed, in sessions that may be about tasks."""
    known = early_config.known_args_namespace
    if any(option.alone and option.flag in args for option in OPTIONS):
        from pytest_benchflow.collect.options import give_back_words

        give_back_words(known, args)
    named = (
        known.benchflow_agent
        or known.benchflow_model
        or known.benchflow_matrix
        or getattr(known, "numprocesses", None)
        or getattr(known, "tx", None)
    )
    named = named or known.benchflow_conformance or known.benchflow_review or _lists(early_config, "benchflow_review")
    here = early_config.invocation_params.dir
    if named or _inside(here / str(argument).partition("::")[0] for argument in known.file_or_dir or ("",)):
        from pytest_benchflow.collect.options import add_arguments

        add_arguments(early_config, args)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what cannot be before anything is collected; without any value of ours there is nothing to refuse."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[RUNS] = Runs(lambda: _selection(config).settings, *_identity(config))
    config.pluginmanager.register(_Listener(config), "benchflow-listener")
    _register(config)
    if _has_values(config):
        from pytest_benchflow.collect.options import check_values

        check_values(_selection(config), config)
        if _selection(config).settings.concurrency > 1:
            from pytest_benchflow.collect.apart import Apart

            apart = Apart()
            config.pluginmanager.register(apart, "benchflow-apart")
            config.stash[RUNS].landed = apart.deliver
    _show_progress(config)
    if _may_review(config):
        from pytest_benchflow.collect.options import make_reviews

        reviews = make_reviews(config, _selection(config).settings)
        if reviews is not None:
            config.pluginmanager.register(reviews, "benchflow-reviews")
    if _lists(config, "benchflow_conformance"):
        from pytest_benchflow.collect.conformance import make_conformance

        checks = make_conformance(config, _selection(config).settings, config.stash[RUNS].session)
        config.pluginmanager.register(checks, "benchflow-conformance")
    if config.option.benchflow_manifests is not None or _lists(config, "benchflow_manifests"):
        from pytest_benchflow.collect.manifests import make_parity

        parity = make_parity(config, _selection(config).settings, config.stash[RUNS].session)
        config.pluginmanager.register(parity, "benchflow-parity")
    if getattr(config.option, "tx", None) and _worker(config) is None and _selection(config).in_use:
        from pytest_benchflow.collect.options import make_far_workers

        far = make_far_workers(config, _selection(config).settings, config.stash[RUNS].open)
        if far is not None:
            config.pluginmanager.register(far, "benchflow-far-workers")
    if getattr(config.option, "numprocesses", None) and _worker(config) is None and _selection(config).in_use:
        from pytest_benchflow.collect.interrupt import LocalWorkers

        config.pluginmanager.register(LocalWorkers(), "benchflow-local-workers")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what rollouts started, and forget what hooks registered and manifests declared."""
    if RUNS in config.stash:
        config.stash[RUNS].close()
    offers = (getattr(config.hook, f"pytest_benchflow_{kind}").get_hookimpls() for kind in KINDS)
    registry = getattr(pytest_benchflow, "registry", None)  # of most sessions nobody has imported it
    if registry is not None and (any(offers) or registry.declared()):
        registry.forget_registered()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what will run, in sessions that are about tasks."""
    if not _has_values(config) and config.args_source is not pytest.Config.ArgsSource.ARGS:
        return None
    return _header(config) if _selection(config).in_use else None


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> str | None:
    """Say what will run where hand-written tests ask for it, which is known only now; else how runs are reviewed."""
    if not items and config.args_source is pytest.Config.ArgsSource.ARGS:
        from pytest_benchflow.collect.hints import review_hint

        return review_hint(config)
    if not any(item.get_closest_marker(MARKER) for item in items) or config.get_verbosity() < 0:
        return None
    return None if _selection(config).in_use else _header(config)


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(
    path: Path, parent: pytest.Collector
) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
    """Keep pytest out of tasks and jobs, and collect the tasks that were asked for."""
    collector = yield
    if not any(os.path.exists(f"{path}/{name}") for name in OURS):  # noqa: PTH110 - for every directory of a session
        return collector
    from pytest_benchflow.collect.tasks import collect_directory

    return collect_directory(path, parent, collector, _selection(parent.config))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run hand-written tests for each cell of the matrix."""
    parametrize_matrix(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put canaries first, and know them also where they are deselected later."""
    if _has_values(config) and _selection(config).settings.canary:
        from pytest_benchflow.collect.canary import put_first

        put_first(items, config.stash[RUNS])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Take the job's directory before the first rollout; True: all items have been run."""
    config, runs = session.config, session.config.stash[RUNS]
    if config.option.collectonly:
        return None
    leads_workers = _distributes(config)
    if not leads_workers:
        runs.items = session.items
        if _has_values(config):
            from pytest_benchflow.collect.overrides import check_overrides

            try:
                check_overrides(session.items, runs)
            except pytest.UsageError as error:
                if _worker(config) is None:
                    raise
                # A worker has no other way to end the session, and runs an item before that is heard.
                session.shouldfail = runs.refused = str(error)
    if any(
        hasattr(item, "cell") or hasattr(item, "capability") or asks_for_rollout(item) for item in session.items
    ) or (leads_workers and (_selection(config).in_use or _lists(config, "benchflow_conformance"))):
        try:
            runs.open()
        except BenchflowError as error:
            raise pytest.UsageError(str(error)) from None
    if leads_workers or not _has_values(config) or runs.settings.concurrency == 1:
        return None
    from pytest_benchflow.collect.ahead import look_ahead

    return look_ahead(session, runs, worker=_worker(config) is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a cell that cannot run here into a skip, and let the report carry what its rollout came to."""
    reason, unstarted = None, False
    if call.excinfo is not None and isinstance(call.excinfo.value, UnsupportedError):
        reason, unstarted = str(call.excinfo.value), isinstance(call.excinfo.value, UnstartedError)
        call.excinfo = pytest.CallInfo.from_call(lambda: pytest.skip(reason), call.when).excinfo
    if call.excinfo is not None and isinstance(call.excinfo.value, RejectedKeyError):
        item.session.shouldfail = rejected = str(call.excinfo.value)
        call.excinfo = pytest.CallInfo.from_call(lambda: pytest.fail(rejected, pytrace=False), call.when).excinfo
    report = yield
    if SUMMARY in item.stash or hasattr(item, "role") or unstarted:
        from pytest_benchflow.report.attach import attach

        role, summary = getattr(item, "role", None), item.stash.get(SUMMARY, None)
        attach(report, item, role, summary, left_out=reason, unstarted=unstarted)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> Any:
    """Show solved, unsolved and timeout as categories of their own."""
    told = config.stash.get(_REPORT, None)
    return told.status_of(report) if told and isinstance(report, pytest.TestReport) else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what rollouts started; fail a run that ran nothing, or not all, lacks files or leaves sandboxes."""
    runs, report = session.config.stash[RUNS], session.config.stash.get(_REPORT, None)
    if report is not None:
        # Where tests written by hand run on workers, this process hears of the job only now.
        with suppress(BenchflowError):
            runs.open()
    runs.close()
    if runs.left and session.exitstatus != pytest.ExitCode.INTERRUPTED:
        from pytest_benchflow.collect.leftovers import report_left

        report_left(session, runs.left)
    failed = runs.incomplete is not None or runs.left or (report is not None and report.falls_short)
    if _has_limits(session.config, opened=runs.opened):
        from pytest_benchflow.collect.limits import decide

        session.config.stash[_LIMITS] = decide(session, runs, report)
    if failed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Write the table of rollouts, and name those that an interrupt ended."""
    report, runs = config.stash.get(_REPORT, None), config.stash[RUNS]
    interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
    for line in (*runs.reaped, *(f"not removed: {each}" for each in runs.left if interrupted)):
        terminalreporter.write_line(f"benchflow: {line}", yellow=True)
    if report is not None:
        job_dir = runs.settings.jobs_dir / runs.settings.job_name
        report.write(
            terminalreporter,
            incomplete=runs.incomplete,
            cut=report.unheard_of(job_dir, runs.session_id) if interrupted or runs.cut_short else (),
            job=report.of_the_job(job_dir),
        )
        if report.unstarted and runs.settings.canary:
            from pytest_benchflow.collect.canary import how_to_go_on

            for line in how_to_go_on(job_dir, runs.settings, config):
                terminalreporter.write_line(line, red=True)
    for each in config.stash.get(_LIMITS, ()):
        terminalreporter.write_line(each.text, green=each.holds, red=not each.holds)
    if report is not None and report.summaries:
        from pytest_benchflow.collect.github import tell_of_rollouts

        notes = [*report.of_the_job(job_dir), *(each.text for each in config.stash.get(_LIMITS, ()))]
        tell_of_rollouts(terminalreporter, config, report, notes)
    if config.option.collectonly and config.get_verbosity() >= 0:
        from pytest_benchflow.collect.matrix_view import write_matrix

        write_matrix(terminalreporter, runs)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each xdist worker the job's name and the session's id, which are decided once."""
    runs = node.config.stash[RUNS]
    sent = {"job_name": runs.settings.job_name, "session_id": runs.session_id, "warns": node.gateway.id == "gw0"}
    far = node.config.pluginmanager.get_plugin("benchflow-far-workers")
    progress = node.config.pluginmanager.get_plugin("benchflow-progress")
    if progress is not None:
        sent["progress"] = progress.channel_to(node)
    node.workerinput["benchflow"] = {**sent, **(far.sent_to(node) if far else {})}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep a rollout and its checks on one worker where tests are distributed by group."""
    if config.getoption("dist") != "loadgroup":
        return None
    from pytest_benchflow.collect.scheduling import CellScheduling

    runs = config.stash[RUNS]

    def lost(nodeid: str) -> None:
        from pytest_benchflow.collect.lost import record_lost

        runs.cut_short = True
        record_lost(runs.settings.jobs_dir / runs.settings.job_name, runs.session_id, config.rootpath, nodeid)

    flights = _selection(config).settings.concurrency if _has_values(config) else 1
    return CellScheduling(config, log, flights=flights, lost=lost)


class _Listener:
    """Hears reports, of this process or of xdist workers, and hands on those that are about rollouts."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        config.stash[RUNS].watch = self._phase
        config.stash[RUNS].finished = lambda path: config.hook.pytest_benchflow_rollout_finished(path=path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hand on reports from the first that this package has added to, before pytest writes its letter."""
        if _REPORT in self._config.stash or hasattr(report, "benchflow_role") or hasattr(report, "benchflow_rollout"):
            self.report().hear(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Let the end of an interrupted session be interrupted by nothing."""
        self._config.stash[RUNS].end()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None]:
        """Give a rollout's item a line of its own."""
        if "::rollout[" in nodeid:
            yield from self.report().starting()
        else:
            yield

    def _phase(self, head: str, phase: str, step: str | None) -> None:
        if _worker(self._config) is None:
            self.report().phase(head, phase, step)

    def report(self) -> RolloutReport:
        """Return what this session tells about its rollouts, made on first use."""
        from pytest_benchflow.report.terminal import RolloutReport

        if _REPORT not in self._config.stash:
            made = self._config.stash[_REPORT] = RolloutReport(self._config, self._config.stash[RUNS].settings)
            if _distributes(self._config) and not _selection(self._config).in_use:
                made.announce()
        return self._config.stash[_REPORT]


def _selection(config: pytest.Config) -> Selection:
    """Return what this session was asked for, read on first use."""
    if _SELECTION not in config.stash:
        from pytest_benchflow.collect.options import read_selection

        config.stash[_SELECTION] = read_selection(config, _worker(config))
    return config.stash[_SELECTION]


def _header(config: pytest.Config) -> str:
    from pytest_benchflow.report.terminal import header

    return header(_selection(config).settings, _selection(config).notes)


def _has_values(config: pytest.Config) -> bool:
    """Tell whether any value of ours is set on the command line or in the ini file."""
    if any(getattr(config.option, option.ini) is not None for option in OPTIONS):
        return True
    try:
        return any(config.getini(name) is not None for name in (*(option.ini for option in OPTIONS), INI_ONLY[0][0]))
    except (TypeError, ValueError, pytest.UsageError):
        return True  # a value of another type is a value; who reads it says what is wrong


def _may_review(config: pytest.Config) -> bool:
    """Tell whether rollouts on disk may have been named: by the option, by the ini value or by an argument."""
    here, given = config.invocation_params.dir, config.args_source is pytest.Config.ArgsSource.ARGS
    return _lists(config, "benchflow_review") or (
        given and _inside(here / str(argument).partition("::")[0] for argument in config.args)
    )


def _lists(config: pytest.Config, option: str) -> bool:
    """Tell whether an option names anything, on the command line or in the ini file."""
    try:
        return bool(getattr(config.known_args_namespace, option) or config.getini(option))
    except (TypeError, ValueError):
        return True  # who reads it says what is wrong


def _identity(config: pytest.Config) -> tuple[str, bool]:
    """Return the session's id, which xdist workers share, and whether this process leads."""
    worker = _worker(config)
    return (worker["session_id"], False) if worker else (os.urandom(8).hex(), True)


def _worker(config: pytest.Config) -> dict[str, Any] | None:
    """Return what the xdist controller sent to this worker; None in every other process."""
    sent: dict[str, Any] = getattr(config, "workerinput", {})
    received: dict[str, Any] | None = sent.get("benchflow")
    return received


def _has_limits(config: pytest.Config, *, opened: bool) -> bool:
    """Tell whether this session ends as limits say: one with a job, or on whose command line they are."""
    if _worker(config) is not None or config.option.collectonly or not _has_values(config):
        return False
    given = config.option.benchflow_min_pass_rate or config.option.benchflow_max_unhealthy
    settings = _selection(config).settings
    return bool(given or (opened and (settings.min_pass_rate or settings.max_unhealthy)))


def _distributes(config: pytest.Config) -> bool:
    return config.getoption("dist", "no") != "no" and _worker(config) is None


def _show_progress(config: pytest.Config) -> None:
    """Let this process hear how rollouts under way stand, or tell the one that leads."""
    worker = _worker(config)
    if worker is not None:
        config.stash[RUNS].progress = worker["progress"].send if "progress" in worker else None
    elif _has_values(config) or (_distributes(config) and _selection(config).in_use):
        from pytest_benchflow.collect.progress import make_progress

        listener: Any = config.pluginmanager.get_plugin("benchflow-listener")
        progress = make_progress(config, _selection(config).settings, listener.report)
        if progress is not None:
            config.pluginmanager.register(progress, "benchflow-progress")
            config.stash[RUNS].progress = progress.board.take
            if progress.plain:  # a line that is written bit by bit would be cut by others
                config.stash[RUNS].watch = None


def _inside(paths: Iterable[Path]) -> bool:
    """Tell whether one of the paths is, or lies in, a task or a job."""
    return any((place / name).exists() for path in paths for place in (path, *path.parents) for name in OURS)


def _register(config: pytest.Config) -> None:
    """Take what third parties offer."""
    for kind in KINDS:
        offers = getattr(config.hook, f"pytest_benchflow_{kind}")
        if offers.get_hookimpls():
            from pytest_benchflow.collect.options import register

            register(kind, offers())
