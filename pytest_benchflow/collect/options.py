"""Read what was asked for on the command line and in the ini file, and refuse what cannot be."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import registry
from pytest_benchflow.catalog.directory import declare_agents
from pytest_benchflow.collect.matrix_file import NAME, MatrixFile, matrix_of
from pytest_benchflow.collect.runs import Reviews
from pytest_benchflow.collect.selection import (
    Selection,
    absolute_paths,
    conftest_above,
    conftest_anchors,
    enclosing_run,
)
from pytest_benchflow.errors import BenchflowError, UnpricedError, UsageError
from pytest_benchflow.pricing import read_prices
from pytest_benchflow.records.rundir import new_job_name
from pytest_benchflow.report.text import printable
from pytest_benchflow.settings import INI_ONLY, OPTIONS, Option, Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_benchflow.collect.far import FarWorkers

_ACCEPTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "list": "a list of words"}
_TASKS_INI, _, _DEFAULT_TASKS, _ = INI_ONLY[0]


def add_arguments(config: pytest.Config, args: list[str]) -> None:
    """Complete a command line: the listed task directories where an agent but no path is named, and grouped items.

    Runs before conftest files are looked for, so that those of the task directories count.
    """
    known, here = config.known_args_namespace, config.invocation_params.dir
    reviewed = reviewed_paths(config, known.file_or_dir, known.benchflow_review)
    added: list[str] = []
    if reviewed:
        _stay_outside(config)
        named = absolute_paths(known.file_or_dir, here)
        added = [str(path) for path in reviewed if not any(each.is_relative_to(path) for each in named)]
    elif not known.file_or_dir and _everywhere(known):
        added = [str(directory) for directory in _task_directories(config) if directory.is_dir()]
    args[:0] = added
    known.file_or_dir = [*added, *known.file_or_dir]
    tx = getattr(known, "tx", None)
    if (getattr(known, "numprocesses", None) or tx) and known.dist == "no" and not known.distload:
        # A rollout and its checks go to one worker; anything else spreads as it does without this.
        checked = known.benchflow_conformance or config.getini("benchflow_conformance")
        args += ["--dist=loadgroup"] if reviewed or checked or in_use(config, known) else []
    if tx and not reviewed and in_use(config, known):
        from pytest_benchflow.collect.far import absolute_arguments, far_specs

        if far_specs(tx):
            absolute_arguments(config, added)
    anchors = None if known.pyargs else conftest_anchors(known.file_or_dir, here, reviewed)
    if anchors is not None:
        # The option names runs, not where the session's own conftest files are.
        known.file_or_dir = [*anchors, *([str(conftest_above(here / "conftest.py"))] if reviewed else [])]


def give_back_words(known: Any, args: list[str]) -> None:
    """Let an option that may stand alone take no word that follows it: that is a path, and stays one."""
    end = args.index("--") if "--" in args else len(args)
    for option in (each for each in OPTIONS if each.alone and each.flag in args[:end]):
        taken = getattr(known, option.ini)
        for place in (number for number, word in enumerate(args[:end]) if word == option.flag):
            args[place] = f"{option.flag}={option.alone}"
            if taken in args[place + 1 : place + 2]:
                known.file_or_dir = [taken, *known.file_or_dir]
                setattr(known, option.ini, option.alone)


def make_far_workers(config: pytest.Config, settings: Settings, open_job: Callable[[], None]) -> FarWorkers | None:
    """Return what minds xdist's workers on other machines, None where there are none. Raises: pytest.UsageError."""
    from pytest_benchflow.collect.far import FarWorkers, far_specs

    if config.getoption("dist", "no") == "no" or not far_specs(config.option.tx):
        return None
    return FarWorkers(config, settings, open_job)


def in_use(config: pytest.Config, known: Any) -> bool:
    """Tell, before the session is configured, whether it is about tasks."""
    named = absolute_paths(known.file_or_dir, config.invocation_params.dir)
    listed = _listed(config)
    return Selection(Settings(), config.rootpath, named, _everywhere(known), listed).in_use


def reviewed_paths(config: pytest.Config, arguments: Sequence[str], option: Sequence[str] | None) -> tuple[Path, ...]:
    """Return what to review: the paths of the option, or of the ini value, and each run that an argument leads into."""
    here = config.invocation_params.dir
    asked = absolute_paths(option or (), here) or absolute_paths(
        config.getini("benchflow_review") or (), config.rootpath
    )
    runs = (enclosing_run(path) for path in absolute_paths(arguments, here))
    return tuple(dict.fromkeys([*asked, *(run for run in runs if run is not None)]))


def make_reviews(config: pytest.Config, settings: Settings) -> Reviews | None:
    """Return the reviews of this session, None when it has none. Raises: pytest.UsageError."""
    given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    paths = reviewed_paths(config, given if not config.option.pyargs else [], config.option.benchflow_review)
    if not paths:
        return None
    try:
        return Reviews(config, paths, rebuild=settings.review_rebuild, expect_commit=settings.expect_commit)
    except UsageError as error:
        raise pytest.UsageError(printable(f"--benchflow-review: {error}")) from None


def _stay_outside(config: pytest.Config) -> None:
    """Refuse to take configuration from a run, or to write pytest's own files into one. Raises: pytest.UsageError."""
    ini, here = config.inipath, config.invocation_params.dir
    if ini is not None and enclosing_run(ini.parent):
        raise pytest.UsageError(f"{ini} lies in a run, and nothing in a run configures pytest; pass --rootdir and -c")
    if enclosing_run(here) or enclosing_run(config.rootpath):
        raise pytest.UsageError(f"{here} is in a run, where pytest would write its own files; start it from outside")


def read_selection(config: pytest.Config, worker: Mapping[str, Any] | None) -> Selection:
    """Return what this session was asked for; `worker` is what the xdist controller sent, None elsewhere.

    Raises: pytest.UsageError naming what is accepted.
    """
    given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    try:
        settings = read_settings(
            lambda option: _value(config, option),
            lambda option: _spelling(config, option),
            [str(directory) for directory in _task_directories(config)],
            config.rootpath,
        )
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    named = settings.job_name or new_job_name(settings.jobs_dir)
    selection = Selection(
        settings=replace(
            settings,
            job_name=worker["job_name"] if worker else named,
            jobs_dir=Path(worker["jobs_dir"]).absolute() if worker and "jobs_dir" in worker else settings.jobs_dir,
            prices=_price_file(config, settings.prices),
        ),
        root=config.rootpath,
        named=absolute_paths(given, config.invocation_params.dir) if not config.option.pyargs else (),
        everywhere=_everywhere(config.option),
        listed=_listed(config),
        warns=worker is None or worker["warns"],
    )
    _name_hosts(settings, config)
    if selection.in_use or settings.agents != Settings().agents:
        _declare_agents()
    agents = tuple(dict.fromkeys(registry.canonical("agents", name) for name in settings.agents))
    return _with_matrix(replace(selection, settings=replace(selection.settings, agents=agents)), config)


def _with_matrix(selection: Selection, config: pytest.Config) -> Selection:
    """Add what a matrix leaves out and includes, and what is to be said of it. Raises: pytest.UsageError."""
    matrix, settings = matrix_of(config), selection.settings
    if matrix is None:
        unused = selection.in_use and (config.rootpath / NAME).is_file()
        note = f"{NAME} is in the root directory and not used; pass --benchflow-matrix={NAME}"
        return replace(selection, notes=(note,)) if unused else selection
    given = {option.name: value for option in OPTIONS if (value := config.getoption(option.ini)) is not None}
    include, notes = matrix.under(given, lambda name: registry.canonical("agents", name))
    if matrix.tasks and _has_other_paths(matrix, config):
        notes.append(f"the paths on the command line over the tasks of {matrix.shown}")
    # What a file includes is all of its matrix where it names no agent beside.
    alone = matrix.include and "agent" not in {*given, *matrix.values} and not config.getini("benchflow_agent")
    settings = replace(
        settings,
        matrix=str(matrix.path),
        exclude=matrix.exclude,
        include=include,
        agents=() if alone else settings.agents,
    )
    try:
        matrix.check_patterns((*settings.all_agents, *matrix.all_agents), (*settings.all_models, *matrix.all_models))
    except UsageError as error:
        raise pytest.UsageError(printable(error)) from None
    return replace(selection, settings=settings, notes=(f"matrix of {matrix.shown}", *notes))


def _has_other_paths(matrix: MatrixFile, config: pytest.Config) -> bool:
    """Tell whether the command line names other paths than a matrix does."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return named and set(config.args) != set(map(str, matrix.tasks or ()))


def _price_file(config: pytest.Config, named: str | None) -> str | None:
    """Return the file of prices: an ini value is relative to the root directory, an option to where pytest starts."""
    given = config.getoption("benchflow_prices") is not None
    return named and str((config.invocation_params.dir if given else config.rootpath) / named)


def _name_hosts(settings: Settings, config: pytest.Config) -> None:
    """Tell the ssh sandbox its hosts. Raises: pytest.UsageError where none is named, or only hosts are."""
    given = {option.name: _spelling(config, option) for option in OPTIONS}
    if settings.sandbox != "ssh":
        if config.getoption("benchflow_ssh_host"):
            raise pytest.UsageError("--benchflow-ssh-host is for --benchflow-sandbox=ssh; pass that too")
        return
    try:
        registry.load("sandboxes", "ssh", "backend").use(settings.ssh_hosts)
    except UsageError as error:
        raise pytest.UsageError(f"{given['ssh-host']}: {error}") from None
    if not settings.ssh_hosts:
        raise pytest.UsageError(
            f"{given['sandbox']} is 'ssh', which needs hosts; pass --benchflow-ssh-host=[user@]host[:port][*slots], "
            "once for each"
        )


def _declare_agents() -> None:
    """Make the agents of BENCHFLOW_AGENTS_DIR known. Raises: pytest.UsageError naming each fault."""
    try:
        declare_agents()
    except UsageError as error:
        raise pytest.UsageError(printable(error)) from None


def check_values(selection: Selection, config: pytest.Config) -> None:
    """Refuse what this session cannot use: names that do not exist, models without a key, unset variables.

    In a session that is not about tasks, values in the ini file are nobody's concern. Raises: pytest.UsageError.
    """
    _check_review(config)
    if config.option.benchflow_parity and selection.settings.manifests is None:
        raise pytest.UsageError("--benchflow-parity needs manifests to compare; pass --benchflow-manifests=DIR")
    if selection.in_use or config.option.benchflow_record:
        _check_record(selection.settings)
    if selection.in_use:
        _check_resume(selection.settings, config)
        _check_names(selection, config)
        _check_distinct(selection.settings, config)
        _check_sandbox(selection.settings)
        _check_models(selection.settings)
        _check_prices(selection.settings)
        _check_agent_env(selection.settings)
    if selection.settings.canary and (selection.in_use or config.option.benchflow_canary):
        from pytest_benchflow.collect.canary import check_canaries

        check_canaries(selection, config)
    matrix = matrix_of(config)
    if matrix is not None and selection.in_use and not config.option.pyargs:
        from pytest_benchflow.collect.matrix_cells import check_cells

        check_cells(selection, matrix, whole=not _has_other_paths(matrix, config))


def register(kind: str, offers: Iterable[Mapping[str, Any]]) -> None:
    """Register what hooks returned for a kind. Raises: pytest.UsageError on a taken name."""
    try:
        for offered in offers:
            for name, plugin in offered.items():
                registry.register(kind, name, plugin)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def _check_review(config: pytest.Config) -> None:
    """Refuse empty values, as of a variable that is not set, and options of a review without one.

    Each of them would leave a gate open that was meant to be closed. Raises: pytest.UsageError.
    """
    paths, commit = config.option.benchflow_review or (), config.option.benchflow_expect_commit
    if "" in paths:
        raise pytest.UsageError("--benchflow-review is ''; it takes a rollout, a job or a directory of jobs")
    if commit == "":
        raise pytest.UsageError("--benchflow-expect-commit is ''; it takes at least 7 hexadecimal digits")
    option = "expect-commit" if commit else "review-rebuild" if config.option.benchflow_review_rebuild else None
    if option and not reviewed_paths(config, [] if config.option.pyargs else config.args, paths):
        raise pytest.UsageError(f"--benchflow-{option} needs a review, and there is none; pass --benchflow-review=PATH")


def _check_record(settings: Settings) -> None:
    """Refuse to record answers that are recordings themselves. Raises: pytest.UsageError."""
    if settings.record and set(settings.all_models) == {"replay"}:
        raise pytest.UsageError(
            "--benchflow-record keeps the answers of a live model, and no model but replay is asked for; "
            "pass --benchflow-model=provider/name too"
        )


def _check_resume(settings: Settings, config: pytest.Config) -> None:
    """Refuse to resume a job that is not named, and to accept what is none or nowhere. Raises: pytest.UsageError."""
    from pytest_benchflow.rollout.resume import ACCEPTABLE

    given = {option.name: _spelling(config, option) for option in OPTIONS}
    if settings.resume and not _value(config, next(option for option in OPTIONS if option.name == "job-name")):
        raise pytest.UsageError(f"{given['resume']} needs the job to go on with; pass --benchflow-job-name=NAME")
    if unknown := sorted(set(settings.accept_change).difference(ACCEPTABLE)):
        raise pytest.UsageError(
            f"{given['accept-change']} has {', '.join(map(repr, unknown))}; it takes {', '.join(ACCEPTABLE)}, for what "
            "else decides results makes another experiment"
        )
    if config.option.benchflow_accept_change and not settings.resume:
        raise pytest.UsageError("--benchflow-accept-change is for a job that goes on; pass --benchflow-resume too")


def _check_models(settings: Settings) -> None:
    """Refuse models of no known form, or without a key, where an agent would call them. Raises: pytest.UsageError."""
    from pytest_benchflow.rollout.plan import pairs

    live = [pair for pair in pairs(settings) if pair[1] not in ("replay", "none")]
    if not live:
        return
    # Imported here: only a session with a live model loads a client this early.
    from pytest_benchflow.proxy.routes import check_model

    try:
        for agent, model in live:
            check_model(model, registry.load("agents", agent, "agent")(agent))
    except BenchflowError as error:
        raise pytest.UsageError(f"--benchflow-model: {error}") from None


def _check_prices(settings: Settings) -> None:
    """Refuse prices that are none, and a limit that an unknown price cannot hold. Raises: pytest.UsageError."""
    from pytest_benchflow.rollout.plan import pairs

    try:
        prices = read_prices(settings.price, settings.prices)
        if settings.max_cost is None:
            return
        for model in dict.fromkeys(model for _agent, model in pairs(settings)):
            if model not in ("none", "replay"):
                prices.of(model)
    except UnpricedError as error:
        raise pytest.UsageError(f"--benchflow-max-cost cannot hold: {error}") from None
    except BenchflowError as error:
        raise pytest.UsageError(str(error)) from None


def _check_distinct(settings: Settings, config: pytest.Config) -> None:
    """Refuse agents and models whose rollouts would share a name. Raises: pytest.UsageError naming both."""
    if len(settings.all_agents) == len(settings.all_models) == 1:
        return
    from pytest_benchflow.rollout.config import slug
    from pytest_benchflow.rollout.plan import pairs

    given = {option.name: _spelling(config, option) for option in OPTIONS}
    known: dict[str, tuple[str, str]] = {}
    for pair in pairs(settings):
        # As test ids and as directories join them.
        for name in (joint.join(map(slug, pair)) for joint in ("-", "__")):
            other = known.setdefault(name, pair)
            if other != pair:
                clashes = [
                    f"{given[option]} has {first!r} and {second!r}"
                    for option, first, second in zip(("agent", "model"), other, pair, strict=True)
                    if first != second
                ]
                raise pytest.UsageError(
                    f"{'; '.join(clashes)}: their rollouts would share the name {name!r}; give them a job each"
                )


def _check_agent_env(settings: Settings) -> None:
    """Refuse a bare KEY that the host does not set, and reasoning efforts that differ, or that an agent does not know.

    Raises: pytest.UsageError.
    """
    from pytest_benchflow.rollout.cell import check_effort
    from pytest_benchflow.rollout.config import asked_effort
    from pytest_benchflow.rollout.plan import agent_environment, parts

    try:
        for part in parts(settings):
            effort = asked_effort(part.reasoning_effort or settings.reasoning_effort, agent_environment(settings))
            for agent in part.agent or settings.agents:
                check_effort(agent, effort)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def _check_sandbox(settings: Settings) -> None:
    """Refuse what the sandbox does not know or cannot do. Raises: pytest.UsageError."""
    from pytest_benchflow.rollout.cell import check_backend, resolve_backend

    try:
        check_backend(resolve_backend(settings.sandbox), keep=settings.keep_sandbox)
    except UsageError as error:
        raise pytest.UsageError(printable(error)) from None


def _check_names(selection: Selection, config: pytest.Config) -> None:
    """Refuse agents, sandboxes and task directories that do not exist. Raises: pytest.UsageError."""
    given = {option.name: _spelling(config, option) for option in OPTIONS}
    for kind, option, asked in (
        ("agents", "agent", selection.settings.all_agents),
        ("sandboxes", "sandbox", (selection.settings.sandbox,)),
    ):
        known = registry.names(kind)
        for name in asked:
            base = name.partition("@")[0] if kind == "agents" and name not in known else name
            if base not in known:
                raise pytest.UsageError(f"{given[option]} is {name!r}; it takes one of: {', '.join(known)}")
            if base != name:
                _check_version(name, given[option])
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    absent = [str(directory) for directory in selection.listed if not directory.is_dir()]
    if absent:
        raise pytest.UsageError(
            f"the ini value {_TASKS_INI} names {', '.join(absent)}, which is no directory; name directories of tasks, "
            "relative to the root directory"
        )
    if selection.everywhere:
        missing = ", ".join(str(directory) for directory in _task_directories(config))
        raise pytest.UsageError(
            f"no path was given, and the ini value {_TASKS_INI} names no directory that exists ({missing}); "
            f"pass a path to tasks, or set {_TASKS_INI}"
        )


def _check_version(name: str, given: str) -> None:
    """Refuse a version that an agent does not come in. Raises: pytest.UsageError naming those it does."""
    try:
        registry.load("agents", name, "agent")(name)
    except UsageError as error:
        raise pytest.UsageError(f"{given} is {name!r}; {error}") from None


def _value(config: pytest.Config, option: Option) -> Any:
    """Return an option's raw value, the command line over the ini file."""
    given, matrix = config.getoption(option.ini), matrix_of(config)
    if given is not None:
        return given
    if matrix is not None and option.name in matrix.values:
        return matrix.values[option.name]
    try:
        return config.getini(option.ini)
    except (ValueError, TypeError, pytest.UsageError) as error:
        # Whatever kind of error it is, the value that came stands in quotes in it.
        came = re.search(r"'.*'|\".*\"", str(error))
        accepted = _ACCEPTED.get(option.kind, "text")
        raise UsageError(f"the ini value {option.ini} is {came[0] if came else 'wrong'}; it takes {accepted}") from None


def _spelling(config: pytest.Config, option: Option) -> str:
    """Name an option as the user gave it: on the command line, in the matrix or in the ini file."""
    if config.getoption(option.ini) is not None:
        return option.flag
    matrix = matrix_of(config)
    if matrix is not None and option.name in matrix.keys:
        return f"{matrix.shown}: {matrix.keys[option.name]}"
    return f"the ini value {option.ini}"


def _everywhere(options: Any) -> bool:
    """Tell whether an agent, a model or a matrix is named on the command line."""
    return any(getattr(options, f"benchflow_{name}", None) for name in ("agent", "model", "matrix"))


def _task_directories(config: pytest.Config) -> list[Path]:
    matrix = matrix_of(config)
    if matrix is not None and matrix.tasks is not None:
        return list(matrix.tasks)
    return [config.rootpath / name for name in config.getini(_TASKS_INI) or _DEFAULT_TASKS]


def _listed(config: pytest.Config) -> tuple[Path, ...]:
    """Return the task directories that the ini file names, or the matrix it names: plain `pytest` collects those."""
    matrix = matrix_of(config)
    named = config.getini(_TASKS_INI) or (matrix is not None and matrix.tasks and config.getini("benchflow_matrix"))
    return tuple(_task_directories(config)) if named else ()
