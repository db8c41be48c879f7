"""The command `pytest-benchflow`: thin fronts over the code that pytest runs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
from contextlib import nullcontext, suppress
from importlib import metadata
from io import UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow import __version__, registry
from pytest_benchflow.catalog import command as agents
from pytest_benchflow.catalog.directory import declare_agents
from pytest_benchflow.errors import BenchflowError, RecordError, TaskError, UsageError
from pytest_benchflow.exporters import _command as export
from pytest_benchflow.publish import command as publish
from pytest_benchflow.records.audit import VERDICTS as AUDITS
from pytest_benchflow.report import compare, coverage, mergeable
from pytest_benchflow.report.html import command as report
from pytest_benchflow.report.text import counted, one_line, printable
from pytest_benchflow.rollout import reap_command, regrade_command
from pytest_benchflow.settings import cache_dir, host_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_benchflow.contracts import Agent, Backend
    from pytest_benchflow.tasks.task import Task

EPILOG = """\
exit codes: 0 fine; 1 something is not in order (an invalid task, an unhealthy rollout, no sandbox); 2 wrong use.
Rollouts themselves are run by pytest: `pytest tasks`, with `pytest --help` for its --benchflow options.
"""

# Optional dependencies by the name of their extra: the module that shows whether it is there.
EXTRAS = {
    "litellm": "litellm",
    "bedrock": "boto3",
    "vertex": "google.auth",
    "daytona": "daytona",
    "ssh": "paramiko",
    "docker": "docker",
    "export": "pyarrow",
    "hub": "huggingface_hub",
}
# How packages that build on this one spell its name in their metadata.
_OURSELVES = re.compile(r"pytest[-_.]benchflow(?![-\w.])", re.IGNORECASE)
_UNWRAPPED = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors written for people go to stderr without a traceback."""
    options = parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        code = run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _write_no_more()
        # The reader has seen enough; a verdict that it may not have heard is none to go on with.
        return int(
            options.run in (_review, _tasks_check, mergeable.run, coverage.run, _publish, _regrade)
            or getattr(options, "action", None) == "check"
        )
    except OSError as error:
        _write_no_more()
        name = "" if error.filename is None else f"{error.filename}: "
        print(f"pytest-benchflow: error: {printable(name)}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BenchflowError as error:
        print(f"pytest-benchflow: error: {printable(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    finally:
        registry.forget_registered()
    return code


def _write_no_more() -> None:
    """Let the interpreter not complain when it flushes at its end."""
    with suppress(UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = _described(argparse.ArgumentParser(prog="pytest-benchflow", epilog=EPILOG), "Tools around benchmark tasks.")
    top.add_argument("--version", action="version", version=f"pytest-benchflow {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    tasks = _described(commands.add_parser("tasks", help="list or check task directories"), "Look at task directories.")
    actions = tasks.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run, text in (
        ("list", _tasks_list, "List the tasks at or below a path, with what they need and where they can run."),
        ("check", _tasks_check, "Load each task at or below a path as pytest does; print errors and warnings."),
    ):
        action = _described(actions.add_parser(name, help=text), text)
        action.add_argument("path", nargs="?", type=Path, default=Path("tasks"), help="a directory (default: tasks)")
        action.set_defaults(run=run)
        if name == "check":
            action.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")

    text = "Write a new task that runs as it is: the agent oracle solves it, and nop does not."
    new = _described(commands.add_parser("new-task", help="write a new task to start from"), text)
    new.add_argument("directory", type=Path, help="directory to make; its name is the task's")
    new.set_defaults(run=_new_task)

    text = "Print a rollout from what it left on disk: verdict, evidence, steps, findings and files."
    show = _described(commands.add_parser("show", help="print a rollout"), text)
    show.add_argument("rollout", type=Path, help="its directory, such as jobs/<job>/<rollout>")
    show.set_defaults(run=_show)

    _add_review_commands(commands)

    parser = _described(commands.add_parser("agents", help=agents.HELP), agents.TEXT)
    agents.add_arguments(parser)
    parser.set_defaults(run=_agents)

    parser = _described(commands.add_parser("export", help=export.HELP), export.TEXT)
    export.add_arguments(parser)
    parser.set_defaults(run=_export)

    parser = _described(commands.add_parser("publish", help=publish.HELP), publish.TEXT)
    publish.add_arguments(parser)
    parser.set_defaults(run=_publish)

    _add_job_commands(commands)

    parser = _described(commands.add_parser("gate", help=mergeable.HELP), mergeable.TEXT)
    mergeable.add_arguments(parser)
    parser.set_defaults(run=mergeable.run)

    parser = _described(commands.add_parser("reap", help=reap_command.HELP), reap_command.TEXT)
    reap_command.add_arguments(parser)
    parser.set_defaults(run=_reap)

    text = "Say what this machine can run: sandboxes, agents, extras, and keys that are set (never their values)."
    doctor = _described(commands.add_parser("doctor", help="say what this machine can run"), text)
    doctor.add_argument("--probe", metavar="SANDBOX", help="try this kind of sandbox as it is here, and leave nothing")
    doctor.add_argument("--ssh-host", action="append", metavar="[USER@]HOST[:PORT]", help="a host of the ssh sandbox")
    doctor.set_defaults(run=_doctor)
    return top


def _add_job_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _described(commands.add_parser("compare", help=compare.HELP), compare.TEXT)
    compare.add_arguments(parser)
    parser.set_defaults(run=compare.run)

    parser = _described(commands.add_parser("coverage", help=coverage.HELP), coverage.TEXT)
    coverage.add_arguments(parser)
    parser.set_defaults(run=coverage.run)

    parser = _described(commands.add_parser("regrade", help=regrade_command.HELP), regrade_command.TEXT)
    regrade_command.add_arguments(parser)
    parser.set_defaults(run=_regrade)

    parser = _described(commands.add_parser("report", help=report.HELP), report.TEXT)
    report.add_arguments(parser)
    parser.set_defaults(run=_report)


def _add_review_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = (
        "Check rollouts by what they left on disk. Nothing is run, written or followed out of them.\n"
        "Checks of installed pytest plugins count (hook pytest_benchflow_checks); those of a conftest.py do under\n"
        "`pytest --benchflow-review=PATH` alone.\n"
        "Exit codes: 0 all are healthy; 1 one is not; 2 wrong use, or nothing to review."
    )
    review = _described(commands.add_parser("review", help="check rollouts by what they left on disk"), text)
    _paths(review)
    review.add_argument(
        "--rebuild", action="store_true", help="judge the row that the raw records give, not the one on disk"
    )
    review.add_argument("--json", action="store_true", help="print one JSON object")
    review.add_argument("--expect-commit", metavar="SHA", help="commit that every rollout must have been made from")
    review.set_defaults(run=_review)

    text = "Write results.jsonl of each rollout anew from its raw trajectory; no other file is touched."
    rebuild = _described(commands.add_parser("rebuild", help="write results.jsonl anew from raw records"), text)
    _paths(rebuild)
    rebuild.set_defaults(run=_rebuild)

    text = (
        "Write audit.json: what you think of a rollout, bound to its raw trace. A review shows it beside its own\n"
        "findings, and calls it void once the trace is another. It changes no verdict and no exit code."
    )
    audit = _described(commands.add_parser("audit", help="keep a person's verdict on a rollout"), text)
    audit.add_argument("path", type=Path, metavar="PATH", help="directory of the rollout")
    audit.add_argument("--verdict", required=True, choices=AUDITS, help="what you think of it")
    audit.add_argument("--by", required=True, metavar="NAME", help="who gives the verdict")
    audit.add_argument("--note", default="", metavar="TEXT", help="why")
    audit.set_defaults(run=_audit)


def _described(made: argparse.ArgumentParser, text: str) -> argparse.ArgumentParser:
    made.description = text
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    return made


def _paths(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a rollout, a job or a directory of jobs")


def _tasks_list(options: argparse.Namespace) -> int:
    code = 0
    for path, task, error in _loaded(options.path):
        if task is None:
            print(f"{printable(path)}: {printable(error)}")
            code = 1
            continue
        steps = counted(len(task.steps), "step")
        recorded = ", ".join(sorted(file.stem for file in (path / "recorded").glob("*.jsonl"))) or "nothing"
        skills = ", ".join(task.skills) or "none"
        print(f"{printable(path)}: {one_line(task.name)} · {task.file.name} · {steps} · skills: {one_line(skills)}")
        print(f"  recorded: {one_line(recorded)} · runs in: {one_line(_runs_in(task))}")
    return code


def _tasks_check(options: argparse.Namespace) -> int:
    checked = wrong = odd = 0
    oracle: Agent = registry.load("agents", "oracle", "agent")("oracle")
    for path, task, error in _loaded(options.path):
        checked += 1
        if task is None:
            wrong += 1
            print(f"{printable(path)}: error: {printable(error)}")
            continue
        odd += bool(task.warnings)
        for warning in task.warnings:
            print(f"{printable(path)}: warning: {printable(warning)}")
        # No fault of the task: many benchmarks keep their solutions to themselves.
        if reason := oracle.unsupported(task):
            print(f"{printable(path)}: note: {printable(reason)}")
    warned = f", {odd} with warnings" if odd else ""
    print(f"{checked} task{'s' if checked != 1 else ''}, {wrong} with errors{warned}")
    return 1 if wrong or (odd and options.strict) else 0


def _loaded(path: Path) -> Iterator[tuple[Path, Task | None, str]]:
    from pytest_benchflow.tasks.load import find_tasks, load_task

    if not path.is_dir():
        raise UsageError(f"{path} is no directory; name a task, or a directory that holds tasks")
    found = find_tasks(path)
    if not found:
        raise UsageError(f"{path} holds no task; a task is a directory with task.toml or task.md")
    for directory in found:
        try:
            yield directory, load_task(directory), ""
        except TaskError as error:
            yield directory, None, str(error)


def _runs_in(task: Task) -> str:
    """Say for each sandbox backend whether it takes a task, with the reason where it does not."""
    parts = []
    for name in registry.names("sandboxes"):
        backend: Backend = registry.load("sandboxes", name, "backend")
        reason = backend.unsupported(task)
        parts.append(f"not {name} ({reason})" if reason else name)
    return ", ".join(parts)


def _new_task(options: argparse.Namespace) -> int:
    from pytest_benchflow.tasks.scaffold import new_task

    for path in new_task(options.directory):
        print(printable(path))
    print(f"try it: pytest {printable(options.directory)} --benchflow-agent=oracle --benchflow-agent=nop")
    return 0


def _show(options: argparse.Namespace) -> int:
    from pytest_benchflow.report.show import show_rollout, unreadable

    for line in show_rollout(options.rollout):
        print(line)
    faults = unreadable(options.rollout)
    for fault in faults:
        print(f"pytest-benchflow: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _review(options: argparse.Namespace) -> int:
    from pytest_benchflow.report.review import checks_for, document, review_rollout, rollouts_at
    from pytest_benchflow.report.review_text import review_lines, total_lines

    _register_installed("checks")
    roots, checks = rollouts_at(options.paths, planned=True), checks_for(options.expect_commit)
    reviews, width = [], shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNWRAPPED
    for root in roots:
        review = review_rollout(root, checks, rebuild=options.rebuild)
        reviews.append(review)
        for line in () if options.json else review_lines(review, width):
            print(line)
    if options.json:
        print(json.dumps(document(reviews), indent=2))
    elif len(reviews) > 1:
        print("", *total_lines([review.summary for review in reviews], width), sep="\n")
    return 0 if all(review.healthy for review in reviews) else 1


def _rebuild(options: argparse.Namespace) -> int:
    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.report.review import rollouts_at
    from pytest_benchflow.rollout.place import held
    from pytest_benchflow.training.rebuild import rebuild_row

    code = 0
    for root in rollouts_at(options.paths):
        rundir = RunDir(root)
        try:
            # Not beside a rollout that still writes: its row would be lost to an older one. Others' have no lock.
            with held(rundir, wait=False) if rundir.lock.exists() else nullcontext():
                row = rebuild_row(rundir)
        except (RecordError, UsageError) as error:
            print(f"{printable(root)}: not rebuilt: {printable(error)}")
            code = 1
            continue
        said = "ready to train" if row.training_ready else f"not ready to train: {one_line(row.reason)}"
        print(f"{printable(root)}: {counted(len(row.row['trajectory']), 'step')}, {said}")
    return code


def _audit(options: argparse.Namespace) -> int:
    from pytest_benchflow.records.audit import write_audit
    from pytest_benchflow.records.files import strange_files
    from pytest_benchflow.records.find import is_rollout
    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.report.review_text import audit_text

    rundir = RunDir(options.path)
    if not options.path.is_dir() or not is_rollout(options.path):
        raise UsageError(
            f"{options.path} is no rollout; an audit is of one, such as jobs/JOB/TASK__AGENT__MODEL__SKILLS__1"
        )
    if not options.by.strip():
        raise UsageError("--by is empty; it takes the name of who gives the verdict")
    for strange in strange_files(rundir):
        raise RecordError(f"{options.path}: not read, as {strange}")
    audit = write_audit(rundir, verdict=options.verdict, by=options.by, note=options.note)
    print(f"{printable(rundir.audit)}: {audit_text(audit)}")
    return 0


def _agents(options: argparse.Namespace) -> int:
    _register_installed("agents")
    lines, code = agents.run(options, _agent_state)
    for line in lines:
        print(printable(line))
    return code


def _export(options: argparse.Namespace) -> int:
    _register_installed("exporters")
    return export.run(options)


def _publish(options: argparse.Namespace) -> int:
    _register_installed("checks")
    return publish.run(options)


def _report(options: argparse.Namespace) -> int:
    _register_installed("checks")
    return report.run(options)


def _reap(options: argparse.Namespace) -> int:
    _register_installed("sandboxes")
    return reap_command.run(options, lambda line: print(printable(line), flush=True))


def _regrade(options: argparse.Namespace) -> int:
    for kind in ("sandboxes", "checks"):
        _register_installed(kind)
    return regrade_command.run(options, lambda line: print(printable(line), flush=True))


def _register_installed(kind: str) -> None:
    """Take the plug-ins of installed packages that build on this one; a conftest file is nobody's to read here."""
    for entry in metadata.entry_points(group="pytest11"):
        needs = (entry.dist.requires if entry.dist else None) or ()
        if entry.module == "pytest_benchflow.plugin" or not any(_OURSELVES.match(each) for each in needs):
            continue
        try:
            offered: dict[str, Any] = getattr(entry.load(), f"pytest_benchflow_{kind}", dict)()
        except Exception as error:
            raise UsageError(f"the installed pytest plugin {entry.name} cannot be used: {error!r}") from None
        for name, plugin in offered.items():
            registry.register(kind, name, plugin)


def _doctor(options: argparse.Namespace) -> int:
    from pytest_benchflow.rollout import doctor

    for kind in ("sandboxes", "agents"):
        _register_installed(kind)
    doctor.use_hosts(options.ssh_host)
    if options.probe is not None:
        return 0 if doctor.probe(options.probe, lambda line: print(printable(line), flush=True)) else 1
    print(f"pytest-benchflow {__version__} · Python {platform.python_version()} · {platform.platform()}")
    available = 0
    print("\nsandboxes")
    for name in registry.names("sandboxes"):
        usable, lines = doctor.describe(name)
        available += usable
        print(*(f"  {printable(line)}" for line in lines), sep="\n")
    declare_agents()
    print("\nagents")
    for name in registry.names("agents"):
        print(f"  {name}: {one_line(_agent_state(name))}")
    print(
        "\nextras (`docker`, `ssh` and `daytona` are for these sandboxes, `litellm` for models, `export` reads exports,"
        " `hub` publishes)"
    )
    from pytest_benchflow.proxy._providers import is_there, key_variables

    for extra, module in EXTRAS.items():
        there = is_there(module)
        print(f"  {extra}: installed" if there else f"  {extra}: missing; pip install 'pytest-benchflow[{extra}]'")
    print("\nkeys")
    for key in key_variables():
        print(f"  {key}: {'set' if host_variable(key) else 'not set'}")
    return 0 if available else 1


def _agent_state(name: str) -> str:
    """Say whether an agent is installed; the cache holds one directory per version and sandbox image."""
    from pytest_benchflow.catalog.load import find

    if name in registry.registered("agents"):
        return "registered by an installed package"
    manifest = find(name)
    if manifest is None:
        return "ready (part of this package)"
    if not manifest.installs:
        return f"ready (runs on the sandbox's {manifest.install_cmd.split()[-1]})"
    version = manifest.host.version or "latest"
    found = [path for path in (cache_dir() / "agents").glob(f"{name}@{version}-*") if path.is_dir()]
    return f"{version}, {'installed' if found else 'not installed yet: its first rollout installs it'}"


if __name__ == "__main__":
    sys.exit(main())
