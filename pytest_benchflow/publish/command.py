"""The command `publish`: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import UsageError
from pytest_benchflow.publish.naming import DEFAULT, FIELDS, Template
from pytest_benchflow.report.text import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.publish.hub import Hub, State
    from pytest_benchflow.publish.plan import Plan
    from pytest_benchflow.publish.upload import Uploaded

HELP = "send healthy rollouts to a dataset repository of the Hugging Face Hub"
TEXT = """\
Send the rollouts at or below a path that are healthy by what is on disk now, without secrets, to a dataset repository.
Only what is missing or changed there is uploaded, so that an interrupted publication is finished by running it again.
Rollouts of agents that call no model stay here, and so do those whose audit.json says anything but publishable.
The token is that of HF_TOKEN or of `hf auth login`; HF_ENDPOINT names another hub.
Exit codes: 0 all that may go is there; 1 nothing may go, or the hub refused it; 2 wrong use."""

# A shorter value of a variable that nobody knows to be a key's may be any word.
_SHORTEST = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", type=Path, metavar="PATH", help="a rollout, a job or a directory of jobs")
    parser.add_argument("--repo", required=True, metavar="ORGANISATION/NAME", help="the dataset repository")
    parser.add_argument(
        "--pr", type=_pull_request, metavar="N", help="an open pull request to add to, or `new` (default: branch main)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would go and what not, and write nothing")
    parser.add_argument("--require-audit", action="store_true", help="only rollouts that an audit calls publishable")
    parser.add_argument(
        "--redact", action="store_true", help="take out what looks like a secret, instead of keeping the rollout here"
    )
    parser.add_argument("--dataset", metavar="NAME", help="name of the dataset (default: the tasks' directory)")
    parser.add_argument(
        "--path-template",
        default=DEFAULT,
        metavar="TEMPLATE",
        help=f"path of a rollout (default: {DEFAULT}); fields: {', '.join(FIELDS)}",
    )


def run(options: argparse.Namespace) -> int:
    """Publish and print what was done; 1 when there is nothing to publish."""
    from pytest_benchflow.rollout.scratch import ScratchBase

    with ScratchBase(Path(tempfile.gettempdir()) / f"pytest-benchflow-publish-{os.getuid()}") as scratch:
        # Copies of a publication that was killed, of which nobody else would know.
        scratch.sweep()
        return _publish(options, scratch.open())


def _publish(options: argparse.Namespace, scratch: Path) -> int:
    from pytest_benchflow.publish.choose import Rules
    from pytest_benchflow.publish.hub import Hub
    from pytest_benchflow.publish.plan import make_plan
    from pytest_benchflow.publish.upload import Upload, below
    from pytest_benchflow.records.redact import Redactor
    from pytest_benchflow.report.review import checks_for

    if options.dataset is not None and not re.search("[A-Za-z0-9]", options.dataset):
        raise UsageError(f"--dataset is {options.dataset!r}; it takes a name with a letter (a to z) or a digit in it")
    rules = Rules(
        template=Template.of(options.path_template),
        checks=checks_for(),
        dataset=options.dataset,
        require_audit=options.require_audit,
        redact=options.redact,
        scratch=scratch,
    )
    redactor = Redactor(known_secrets())
    # Before anything is read, so that what is missing is told at once.
    hub = Hub(options.repo, redactor)
    if hub.token is None and not options.dry_run:
        raise UsageError("there is no token to write with; set HF_TOKEN, or run `hf auth login`")
    if isinstance(options.pr, int):
        hub.use_pull_request(options.pr)
    plan = make_plan(options.path, rules, redactor, _note)
    _print(left_out_lines(plan))
    if not plan.units:
        _print([f"nothing to publish: none of {_count(plan.counts['seen'], 'rollout')} may go"])
        return 1
    state = hub.state(below(plan))
    _print(file_lines(plan, state) if options.dry_run else ())
    _print(redaction_lines(plan))
    if options.dry_run:
        _print([*total_lines(plan, state), "nothing was written: this was a dry run"])
        return 0
    if options.pr == "new" and not all(state.holds(path, file) for path, file in plan.files.items()):
        state = _opened(hub, options.path, plan, below(plan))
    name = one_line(options.path.resolve().name)
    done = Upload(plan, hub, rules, redactor, _note).run(state, redactor.text(name))
    _print(done_lines(plan, done, hub))
    return 0


def known_secrets() -> Iterator[str]:
    """Yield the values of this environment that must not be published: keys of providers, and what is named like one.

    The Hugging Face token is known by who uses it.
    """
    from pytest_benchflow.proxy._providers import key_variables
    from pytest_benchflow.rollout.cell import SECRET_NAME

    keys = {*key_variables(), "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
    for name, value in os.environ.items():
        # A path is none, and a word may be in any text.
        like_one = len(value) >= _SHORTEST and "/" not in value and re.search(r"\d", value)
        if name in keys or (SECRET_NAME.search(name) and like_one):
            yield value


def left_out_lines(plan: Plan) -> Iterator[str]:
    """Yield what stays here: each rollout with its reason, then how many have each."""
    for each in plan.left_out:
        yield f"left out ({each.reason}): {_path(each.root)}: {one_line(each.detail)}"
    reasons = plan.counts["left_out"]
    if reasons:
        counted = ", ".join(f"{one_line(reason)} {number}" for reason, number in reasons.items())
        yield f"left out: {sum(reasons.values())} of {_count(plan.counts['seen'], 'rollout')}: {counted}"


def file_lines(plan: Plan, state: State) -> Iterator[str]:
    """Yield each file that is published: if it is there already, its size, its SHA-256, its path."""
    for path, file in plan.files.items():
        how = "there" if state.holds(path, file) else "changed" if path in state.files else "new"
        yield f"{how:<7} {file.size:>12,}  {file.sha256}  {_path(path)}"


def redaction_lines(plan: Plan) -> Iterator[str]:
    """Yield the files that go without their secrets, and those that stay of rollouts that go."""
    for unit in plan.units:
        for name, number in sorted(unit.chosen.redacted.items()):
            yield f"redacted: {_count(number, 'secret')} in {_path(unit.chosen.root / name)}"
        for name, reason in sorted(unit.chosen.left.items()):
            yield f"file left out: {_path(unit.chosen.root / name)}: {one_line(reason)}"


def total_lines(plan: Plan, state: State) -> Iterator[str]:
    """Yield how much is published, and how much of it is not there yet."""
    going = [file for path, file in plan.files.items() if not state.holds(path, file)]
    yield _rollouts(plan)
    yield f"to upload: {_count(len(going), 'file')}, {sum(file.size for file in going):,} bytes"


def done_lines(plan: Plan, done: Uploaded, hub: Hub) -> Iterator[str]:
    """Yield what was done, and where it is."""
    yield _rollouts(plan)
    size = f"{_count(done.files, 'file')}, {done.bytes:,} bytes, in {_count(done.commits, 'commit')}"
    yield f"uploaded: {size}" if done.files else "uploaded: nothing, as all of it is there"
    yield f"manifest: {_path(plan.place)} at {hub.revision} of {hub.endpoint}/datasets/{hub.repo}"


def _rollouts(plan: Plan) -> str:
    counts = plan.counts
    canaries = f" and {_count(counts['canaries'], 'canary', 'canaries')}" if counts["canaries"] else ""
    redacted = f", {_count(counts['redactions'], 'secret')} redacted" if counts["redactions"] else ""
    return (
        f"{_count(counts['rollouts'], 'rollout')}{canaries} of {counts['seen']} seen: "
        f"{_count(len(plan.files), 'file')}, {sum(file.size for file in plan.files.values()):,} bytes{redacted}"
    )


def _opened(hub: Hub, path: Path, plan: Plan, place: str) -> State:
    """Open a pull request and return what it holds; its number is told at once, to go on with after an interruption."""
    title = f"Add rollouts of {one_line(path.resolve().name)}"[:100]
    number = hub.open_pull_request(title, f"Manifest: {plan.place}")
    _print([f"opened pull request {number}; an interrupted publication goes on with --pr {number}"])
    return hub.state(place)


def _pull_request(text: str) -> int | str:
    if text == "new":
        return text
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no pull request; it takes a number, or new")
    return int(text)


def _path(path: Path | str) -> str:
    # Files are called what agents called them: no name takes more than its line.
    return printable(path).replace("\n", "\\x0a")


def _print(lines: Iterator[str] | list[str] | tuple[str, ...]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _note(text: str) -> None:
    sys.stderr.write(f"{one_line(text)}\n")


def _count(number: int, noun: str, several: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
