"""Judge from what a verifier left whether its 0 is a score. A dead verifier is never a 0."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

import orjson

from pytest_benchflow.records.imports import missing_modules, modules_missed_by_tests
from pytest_benchflow.records.missing import OWN_NAMES, Places, is_own_place, missing_things
from pytest_benchflow.records.owner import TaskText, is_the_verifiers
from pytest_benchflow.records.tested import count_failed, has_reason, ran_none, ran_tests, root_of

if TYPE_CHECKING:
    from pathlib import Path


# Of a longer log the middle is left out: what could not start is said first, what ran last.
_LONGEST_PART = 256 * 1024
_MOST_LOGS = 8
# Runners' output that a test.sh sends to a file of its own beside the reward.
_LOG = re.compile(
    r"(?:.*[-_.])?(?:py)?(?:tests?|grader|grade|verifier|runner|output|stdout|stderr)[-_.].*", re.IGNORECASE
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def dead_bootstrap(directory: Path, task: TaskText | None = None) -> str | None:
    """Return the line that shows why a verifier's 0 is no score: no test was executed; None where the 0 counts.

    It counts when a test was executed, and when nothing says that the verifier lacked something of its own: many a
    test.sh compares files by itself and says nothing. `directory` holds test-stdout.txt, test-stderr.txt, ctrf.json and
    other logs, none of which need exist.
    """
    task = task or TaskText()
    reports = [_tests_of(path) for path in sorted(directory.glob("ctrf*.json"))[:_MOST_LOGS]]
    text = "\n".join(_text(path) for path in _logs(directory))
    places = Places(OWN_NAMES | task.own_names, at_own_place=is_own_place(root_of(text) or ""))
    if any(reports) or ran_tests(text):
        return _failed_for_want(text, places, task)
    things = [*missing_things(text, places), *missing_modules(text, places)]
    for thing in things:
        if is_the_verifiers(thing, task):
            return thing.line[:300]
    of_agent = task.speaks_of_tests() and not places.at_own_place and root_of(text) is not None
    if of_agent or has_reason(text) or any(thing.kind == "module" for thing in things):
        return None
    return (ran_none(text) or ("ctrf.json counts 0 tests" if 0 in reports else ""))[:300] or None


def _failed_for_want(text: str, places: Places, task: TaskText) -> str | None:
    """Return a line when every test that failed did so because the verifier's own test lacks a module."""
    missed, failed = modules_missed_by_tests(text, places), count_failed(text)
    if not failed or len(missed) < failed:
        return None
    return missed[0].line[:300] if all(is_the_verifiers(thing, task) for thing in missed) else None


def _logs(directory: Path) -> list[Path]:
    """Return the output and such of the verifier's own files as hold a runner's."""
    output = [directory / "test-stdout.txt", directory / "test-stderr.txt"]
    others = (path for path in sorted(directory.glob("*.[lt][ox][gt]")) if _LOG.fullmatch(path.name))
    return [*output, *(path for path in others if path not in output)][:_MOST_LOGS]


def _tests_of(report: Path) -> int | None:
    """Return how many tests a CTRF report counts, None when it is none."""
    try:
        tests = orjson.loads(_text(report))["results"]["summary"]["tests"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return tests if isinstance(tests, int) else None


def _text(path: Path) -> str:
    """Return a regular file's text without colours, its middle left out where it is long; "" for what is none."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return ""
        with path.open("rb") as stream:
            data = stream.read(_LONGEST_PART)
            if status.st_size > 2 * _LONGEST_PART:
                stream.seek(-_LONGEST_PART, 2)
                data += b"\n"
            data += stream.read(_LONGEST_PART)
    except OSError:
        return ""
    return _COLOUR.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))
