"""The pytest hooks of this package, each a few lines that hand on at once (entry point: benchflow)."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import hookspecs, registry
from pytest_benchflow.collect import options
from pytest_benchflow.collect.tasks import SELECTION, CellItem, collect_directory
from pytest_benchflow.errors import BenchflowError, UnsupportedError
from pytest_benchflow.fixtures import MARKER, RUNS, SUMMARY, Runs, find_shared_names, parametrize_matrix
from pytest_benchflow.report.attach import attach
from pytest_benchflow.report.terminal import RolloutReport, header, status_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

pytest_plugins = ["pytest_benchflow.fixtures"]

REPORT = pytest.StashKey[RolloutReport]()

MARKERS = (
    f'{MARKER}(path): the task directory of this test, such as "tasks/csv-report", relative to the root directory.',
    "benchflow: items made from a task directory (added by pytest-benchflow).",
    "rollout: items that are rollouts (added by pytest-benchflow).",
    "check: items that check what a rollout left (added by pytest-benchflow).",
)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let third parties register agents, sandboxes and checks."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the options."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Complete the command line while it can still be changed."""
    options.add_arguments(early_config, args)


def pytest_configure(config: pytest.Config) -> None:
    """Read what was asked for and refuse what cannot be, before anything is collected."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    for kind in ("agents", "sandboxes", "checks"):
        _register(config, kind)
    selection = config.stash[SELECTION] = options.read_selection(config)
    if selection.in_use:
        options.check_names(selection, config)
        options.check_models(selection.settings)
        options.check_agent_env(selection.settings)
    report = config.stash[REPORT] = RolloutReport(config)
    config.pluginmanager.register(report, "benchflow-report")
    config.stash[RUNS] = _runs(config, report)


def pytest_unconfigure() -> None:
    """Forget what hooks registered."""
    registry.forget_registered()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what will run, in sessions that are about tasks."""
    selection = config.stash[SELECTION]
    return header(selection.settings) if selection.in_use else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(
    path: Path, parent: pytest.Collector
) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
    """Keep pytest out of tasks and jobs, and collect the tasks that were asked for."""
    collector = yield
    return collect_directory(path, parent, collector)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run hand-written tests for each cell of the matrix."""
    parametrize_matrix(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """See which tasks share a name, while all items are still there."""
    find_shared_names(items, config.stash[RUNS])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Take the job's directory before the first rollout."""
    config = session.config
    ours = any(isinstance(item, CellItem) for item in session.items)
    distributes = not session.items and config.stash[SELECTION].in_use
    if (ours or distributes) and not config.option.collectonly:
        with _usage_errors():
            config.stash[RUNS].open()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a cell that cannot run here into a skip, and let the report carry what its rollout came to."""
    unsupported = call.excinfo is not None and isinstance(call.excinfo.value, UnsupportedError)
    if unsupported:
        reason = str(call.excinfo and call.excinfo.value)
        call.excinfo = pytest.CallInfo.from_call(lambda: pytest.skip(reason), call.when).excinfo
    report = yield
    attach(report, item, getattr(item, "role", None), item.stash.get(SUMMARY, None))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> Any:
    """Show solved, unsolved and timeout as categories of their own."""
    return status_of(report)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what rollouts started; a run in which nothing could run fails."""
    config = session.config
    config.stash[RUNS].close()
    if session.exitstatus == pytest.ExitCode.OK and config.stash[REPORT].all_skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the table of rollouts."""
    config.stash[REPORT].write(terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each xdist worker the job's name and the session's id, which are decided once."""
    runs = node.config.stash[RUNS]
    node.workerinput["benchflow"] = {
        "job_name": runs.settings.job_name,
        "session_id": runs.session_id,
        "warns": node.gateway.id == "gw0",
    }


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep a rollout and its checks on one worker where tests are distributed by group."""
    if config.getoption("dist") != "loadgroup":
        return None
    from pytest_benchflow.collect.scheduling import CellScheduling

    return CellScheduling(config, log)


def _runs(config: pytest.Config, report: RolloutReport) -> Runs:
    worker = options.worker_input(config)
    session_id = worker["session_id"] if worker else os.urandom(8).hex()
    runs = Runs(config.stash[SELECTION].settings, session_id, leads=worker is None)
    if worker is None:
        runs.watch = report.phase
    runs.finished = lambda path: config.hook.pytest_benchflow_rollout_finished(path=path)
    return runs


def _register(config: pytest.Config, kind: str) -> None:
    with _usage_errors():
        for offered in getattr(config.hook, f"pytest_benchflow_{kind}")():
            for name, plugin in offered.items():
                registry.register(kind, name, plugin)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except BenchflowError as error:
        raise pytest.UsageError(str(error)) from None
