"""Let pytest-xdist's workers on other machines run rollouts, and bring what they write to this one.

xdist starts them and copies the project there (`--tx 4*ssh=user@box`). Each writes into a directory of its own machine;
a rollout is copied here when its first report comes, and again, as far as it has changed, at the end.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.collect.far_job import FarJob
from pytest_benchflow.errors import BenchflowError
from pytest_benchflow.report.attach import relocate, summary_of
from pytest_benchflow.report.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_benchflow.settings import Settings

# Where a worker elsewhere keeps its jobs, relative to where it starts: not in the copy of the project, which a later
# session replaces.
JOBS = "benchflow-jobs"
# Options that name files, which go with the copy of the project.
_FILES = ("matrix", "prices")
_IGNORED = ("node_modules",)
# What the processes of a session tell each other by files of the job, which two machines do not share.
_SHARED = {
    "max_cost": "--benchflow-max-cost",
    "model_concurrency": "--benchflow-model-concurrency",
    "canary": "--benchflow-canary",
    "resume": "--benchflow-resume",
}


def far_specs(tx: Sequence[str]) -> list[str]:
    """Return those of xdist's worker specifications that name another machine, or a directory of its own on this."""
    parts = ((spec, spec.split("//")) for spec in tx)
    return [
        spec
        for spec, keys in parts
        if not keys[0].rpartition("*")[2].startswith("popen") or any(key.startswith("chdir=") for key in keys)
    ]


def absolute_arguments(config: pytest.Config, added: Sequence[str]) -> None:
    """Make the paths of a command line absolute: xdist finds only such again in the copy of the project.

    `added` are paths that this package has put in front. Raises: pytest.UsageError for one that is not copied.
    """
    here, root = config.invocation_params.dir, config.rootpath
    files, words = _named_files(config)
    told = []
    for argument in (*added, *words):
        path, joint, rest = argument.partition("::")
        place = Path(os.path.normpath(here / path))
        if argument.startswith("-") or not place.exists():
            told.append(argument)
            continue
        if not place.is_relative_to(root):
            raise pytest.UsageError(
                f"{argument} lies outside the root directory {root}, which is what other machines get; name paths in it"
            )
        told.append(f"{place}{joint}{rest}")
    if not any(Path(argument.partition("::")[0]).is_absolute() for argument in told):
        told.append(str(root))
    given = config.invocation_params
    config.invocation_params = type(given)(args=[*files, *told], plugins=given.plugins, dir=given.dir)


def _named_files(config: pytest.Config) -> tuple[list[str], list[str]]:
    """Return options that name files, each path a word of its own, and the rest of the command line.

    Only such words xdist finds again in the copy; what addopts name is as if it was on the command line.
    """
    files, words = [], [str(word) for word in config.invocation_params.args]
    for name in _FILES:
        flag, value = f"--benchflow-{name}", getattr(config.known_args_namespace, f"benchflow_{name}", None)
        if not value:
            continue
        while flag in words:
            place = words.index(flag)
            del words[place : place + 2]
        words = [word for word in words if not word.startswith(f"{flag}=")]
        files += [flag, os.path.normpath(config.invocation_params.dir / value)]
    return files, words


def check_settings(settings: Settings, root: Path) -> None:
    """Refuse what cannot hold for all machines together, and files that they do not get. Raises: pytest.UsageError."""
    for option in _FILES:
        named = getattr(settings, option)
        why = named and _why_not_copied(Path(os.path.normpath(named)), root, settings.jobs_dir)
        if why:
            raise pytest.UsageError(
                f"--benchflow-{option} names {named}, which {why}; other machines get the root directory {root} but "
                "for hidden files and jobs, so put it there"
            )
    for name, option in _SHARED.items():
        if getattr(settings, name) not in (None, ()):
            raise pytest.UsageError(
                f"{option} goes by what all workers have done, and those of --tx on other machines do not see that; "
                "leave it out, or use workers of this machine (-n)"
            )


def _why_not_copied(file: Path, root: Path, jobs: Path) -> str | None:
    """Return why a file is not in what other machines get, None where it is."""
    if not file.is_relative_to(root):
        return "lies outside it"
    parts = file.relative_to(root).parts
    hidden = any(part.startswith(".") or part in _IGNORED for part in parts) or file.name.endswith("~")
    return "is not copied" if hidden or file.is_relative_to(jobs) else None


class FarWorkers:
    """Hooks of the controlling process in a session with workers elsewhere."""

    def __init__(self, config: pytest.Config, settings: Settings, open_job: Callable[[], None]) -> None:
        check_settings(settings, config.rootpath)
        self._config = config
        self._job_dir = settings.jobs_dir / settings.job_name
        self._open_job = open_job
        self._jobs: dict[str, FarJob] = {}  # by where the workers of a machine start
        self._place_of: dict[str, str] = {}  # worker -> the same
        self._brought: dict[str, Future[None]] = {}  # by rollout
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="benchflow-far")
        self.missing: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Have xdist copy the project. Said on the command line, it would be warned of: xdist 4 has no such option."""
        option = self._config.option
        option.rsyncdir = [*option.rsyncdir, str(self._config.rootpath)]
        option.rsyncignore = [*option.rsyncignore, str(self._job_dir.parent), *_IGNORED]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """Remember which machine a worker is on."""
        spec = gateway.spec
        if spec.popen and not spec.chdir:
            return
        words = [word for word in str(spec).split("//") if not word.startswith(("execmodel=", "id=", "chdir="))]
        place = "//".join([*words, f"chdir={spec.chdir}"])
        self._place_of[gateway.id] = place
        if place not in self._jobs:
            self._jobs[place] = FarJob(place, f"{JOBS}/{self._job_dir.name}", self._job_dir, self._config.rootpath)

    def sent_to(self, node: Any) -> dict[str, str]:
        """Return what a worker must know beside what all are told."""
        return {"jobs_dir": JOBS} if node.gateway.id in self._place_of else {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Have a rollout brought here that a report from elsewhere tells of, and name the place it will have."""
        node = getattr(report, "node", None)
        place = self._place_of.get(node.gateway.id) if node is not None else None
        summary = summary_of(report)
        if place is None or summary is None:
            return
        name, root = summary.name, self._config.invocation_params.dir
        local = self._job_dir / name
        relocate(report, str(local.relative_to(root) if local.is_relative_to(root) else local))
        if name not in self._brought:
            self._brought[name] = self._threads.submit(self._bring, self._jobs[place], name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Bring everything that is not here yet, before the job's own files are made of it."""
        self._open_job()
        for job in self._jobs.values():
            try:
                self._threads.submit(job.finish).result()
            except (BenchflowError, OSError) as error:
                self.missing.append(f"{job.name}: {one_line(str(error))}; what it has is there in {job.far_dir}")
            self.missing += job.left
        self._threads.shutdown()
        if self.missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what did not come."""
        for line in self.missing:
            terminalreporter.write_line(f"benchflow: not brought from {line}", red=True)

    def _bring(self, job: FarJob, name: str) -> None:
        """Copy a rollout. What goes wrong now is tried again, and told, at the end."""
        try:
            job.bring(name)
        except (BenchflowError, OSError):
            return
