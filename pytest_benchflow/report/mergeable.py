"""Say from junit files whether a change may be merged: the command `gate`. Whatever is not known to be fine blocks."""

from __future__ import annotations

import argparse
import re
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import RecordError
from pytest_benchflow.report.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HELP = "say from junit files whether a change may be merged"
TEXT = """\
Read junit files, as `pytest --junit-xml=FILE` writes them, and print `mergeable`, or `blocked` with each blocker.
A failed test blocks, and so does a file that cannot be read whole or holds no test. NAME is that of a file without its
.xml, or of a test, as `test_x` or `package.module::test_x`; a * stands for any text.
Exit codes: 0 mergeable; 1 blocked; 2 wrong use."""

_MAX_BYTES = 128 * 1024 * 1024
_MAX_DEPTH = 64
_CHUNK = 1 << 16
_SAID = 200
# What a child of a test case makes of it, the worst last, and how it is called.
_OUTCOMES = {"passed": "passed", "skipped": "skipped", "failure": "failed", "error": "error"}
_RANK = list(_OUTCOMES)
_BAD = ("failure", "error")
_OUTSIDE = {"failure": "a failure", "error": "an error"}


@dataclass(slots=True)
class Case:
    """A test of a junit file; `outcome` is passed, skipped, failure or error."""

    file: str
    group: str
    name: str
    outcome: str = "passed"
    message: str = ""

    def __str__(self) -> str:
        """Return where the test is, and its name."""
        return f"{self.file}: {self.group}::{self.name}" if self.group else f"{self.file}: {self.name}"


@dataclass(frozen=True, slots=True)
class Junit:
    """A junit file, known by its name without .xml; `fault` says why it cannot be trusted, None when it can."""

    name: str
    cases: Sequence[Case] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Blocker:
    """What keeps a change from being merged; `external` when its cause lies outside of this repository."""

    text: str
    external: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """What junit files come to: counts of tests by outcome, and what blocks."""

    counts: Mapping[str, int]
    blockers: Sequence[Blocker] = field(default_factory=tuple)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("junit", nargs="+", type=Path, metavar="JUNIT", help="a junit file")
    names: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME", "type": _name}
    parser.add_argument("--require", help="a check that must have run and passed; repeat for more", **names)
    parser.add_argument(
        "--external", help="a check whose blockers are listed as caused outside of this repository", **names
    )


def run(options: argparse.Namespace) -> int:
    """Print the verdict and return the exit code."""
    gate = judge([read_junit(path) for path in options.junit], options.require, options.external)
    sys.stdout.write("\n".join(gate_lines(gate)) + "\n")
    return 1 if gate.blockers else 0


def judge(files: Sequence[Junit], required: Iterable[str] = (), external: Sequence[str] = ()) -> Gate:
    """Return what blocks: faults of files, failed tests, and required checks that did not run."""
    blockers = []
    for file in files:
        outside = any(_matches(name, file.name) for name in external)
        if file.fault is not None:
            blockers.append(Blocker(f"{file.name}: {file.fault}", outside))
        for case in file.cases:
            if case.outcome in _BAD:
                said = f": {one_line(case.message, limit=_SAID)}" if case.message else ""
                outside_too = outside or any(_is_named(case, name) for name in external)
                blockers.append(Blocker(f"{one_line(case)}: {_OUTCOMES[case.outcome]}{said}", outside_too))
    for name in dict.fromkeys(required):
        reason = _why_unmet(name, files)
        if reason is not None:
            outside = any(_matches(pattern, name) for pattern in external)
            blockers.append(Blocker(f"required check {one_line(name)}: {reason}", outside))
    cases = [case for file in files for case in file.cases]
    counts = {outcome: sum(case.outcome == outcome for case in cases) for outcome in _OUTCOMES}
    return Gate(counts, blockers)


def gate_lines(gate: Gate) -> list[str]:
    """Return the verdict and the blockers, local ones before external ones."""
    counts = ", ".join(f"{number} {_OUTCOMES[outcome]}" for outcome, number in gate.counts.items() if number)
    if not gate.blockers:
        return [f"mergeable: {counts}"]
    number = len(gate.blockers)
    lines = [f"blocked: {number} blocker{'s' if number != 1 else ''}; tests: {counts or 'none'}"]
    for title, outside in (("local", False), ("external", True)):
        found = [f"  {blocker.text}" for blocker in gate.blockers if blocker.external is outside]
        lines += [title, *found] if found else []
    return lines


def read_junit(path: Path) -> Junit:
    """Read a junit file as a stream; one that is not whole and plain comes back with a fault and no tests."""
    name = one_line(path.name.removesuffix(".xml") or path)
    reader = _Reader(name)
    try:
        reader.read(path)
        reader.check()
    except RecordError as error:
        return Junit(name, fault=one_line(error))
    return Junit(name, reader.cases)


class _Reader:
    """Collects the test cases of one file; keeps no text but the first of each message."""

    def __init__(self, file: str) -> None:
        self.cases: list[Case] = []
        self._file = file
        self._case: Case | None = None
        self._depth = 0
        self._claimed = {"tests": 0, "failures": 0, "errors": 0}

    def read(self, path: Path) -> None:
        """Parse the file. Raises: RecordError saying what is wrong with it."""
        from xml.parsers import expat

        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise RecordError("it is no regular file; name a junit file")
            if status.st_size > _MAX_BYTES:
                raise RecordError(f"it has {status.st_size:,} bytes; {_MAX_BYTES:,} are read at most")
            with path.open("rb") as stream:
                parser = expat.ParserCreate()
                parser.StartElementHandler = self._start
                parser.EndElementHandler = self._end
                # Entities come from a document type declaration only, and no junit file needs one.
                parser.StartDoctypeDeclHandler = _refuse_doctype
                while chunk := stream.read(_CHUNK):
                    parser.Parse(chunk)
                parser.Parse(b"", True)
        except OSError as error:
            raise RecordError(f"it cannot be read: {error.strerror}") from None
        except (expat.ExpatError, LookupError, ValueError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(f"it is not whole and well-formed XML: {error}") from None

    def check(self) -> None:
        """Compare what the file says of itself with what it holds. Raises: RecordError."""
        bad = sum(case.outcome in _BAD for case in self.cases)
        said = self._claimed["failures"] + self._claimed["errors"]
        if said and not bad:
            raise RecordError(f"it says that {said} tests failed, and holds none of them")
        if not self.cases:
            told = f", though it says {self._claimed['tests']}" if self._claimed["tests"] else ""
            raise RecordError(f"it holds no test{told}")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and tag not in ("testsuites", "testsuite"):
            raise RecordError(f"it is no junit file: it begins with <{one_line(tag, limit=40)}>")
        if self._depth > _MAX_DEPTH:
            raise RecordError(f"its elements lie more than {_MAX_DEPTH} deep")
        if tag in ("testsuites", "testsuite"):
            self._claim(attributes)
        elif tag == "testcase":
            self._case = Case(self._file, attributes.get("classname", ""), attributes.get("name", ""))
            self.cases.append(self._case)
        elif self._case is None and tag in _BAD:
            raise RecordError(
                f"it holds {_OUTSIDE[tag]} that is no test's: {one_line(attributes.get('message', ''), limit=_SAID)}"
            )
        elif self._case is not None and tag in _OUTCOMES and _RANK.index(tag) > _RANK.index(self._case.outcome):
            self._case.outcome, self._case.message = tag, attributes.get("message", "")[: 4 * _SAID]

    def _end(self, tag: str) -> None:
        self._depth -= 1
        if tag == "testcase":
            self._case = None

    def _claim(self, attributes: Mapping[str, str]) -> None:
        for key in self._claimed:
            said = attributes.get(key, "0")
            if not re.fullmatch(r"[0-9]{1,12}", said):
                raise RecordError(f"its {key} are {one_line(said, limit=40)!r}; a whole number is needed")
            # A suite may count those of the suites inside it too.
            self._claimed[key] = max(self._claimed[key], int(said))


def _refuse_doctype(*_: object) -> None:
    raise RecordError("it has a document type declaration, through which XML can grow or read files; it is not read")


def _why_unmet(name: str, files: Sequence[Junit]) -> str | None:
    """Say why a required check did not run, None when it did; a file's may skip some of its tests.

    What failed, and a file that cannot be relied on, blocks by itself; told twice, an external cause were local too.
    """
    named = [file for file in files if _matches(name, file.name)]
    single = [case for file in files for case in file.cases if _is_named(case, name)]
    if not named and not single:
        return "absent: no file and no test of that name"
    skipped = next((case for case in single if case.outcome == "skipped"), None)
    if skipped is not None:
        return f"skipped: {one_line(skipped)}"
    idle = next((file for file in named if file.cases and all(case.outcome == "skipped" for case in file.cases)), None)
    return f"skipped: every test of {idle.name}" if idle is not None else None


def _is_named(case: Case, name: str) -> bool:
    return _matches(name, case.name) or _matches(name, f"{case.group}::{case.name}")


def _matches(pattern: str, text: str) -> bool:
    # Not fnmatch: brackets are part of the names of parametrized tests.
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; a name of a file or of a test is needed")
    return text.removesuffix(".xml")
