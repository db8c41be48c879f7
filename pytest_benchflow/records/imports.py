"""Find in a verifier's output the modules that could not be imported, and in whose file the import stands."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from pytest_benchflow.records.missing import Missing, Place, Places, is_own_place, lines

if TYPE_CHECKING:
    from collections.abc import Iterator

_IMPORT = lines(
    r"(?:E +)?(?:\w+\.)*(?:ModuleNotFoundError|ImportError): (?:No module named '?(?P<name>[\w.]+)'?"
    r"|(?P<library>\S+\.so\S*): cannot open shared object file).*"
)
_FRAME = re.compile(r"^(?:(?:E +| +)File \"(?P<file>[^\"]+)\", line \d+|(?P<short>[^\s:]+):\d+: in )", re.MULTILINE)
_TRACE_BEGINS = re.compile(r"^(?:E +)?(?:Traceback|_{3,} |ImportError while )", re.MULTILINE)
_LONGEST_TRACE = 64 * 1024
_MOST = 200  # import errors that are looked into: each costs a look back over its trace
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/(?:python|pypy)|^<frozen |/importlib/|\.zip/")
_PROGRAM = re.compile(r"(?:^|/)bin/[^/]+$")

_OTHERS = (
    r"\S*python[\d.]*: (?:Error while .*)?No module named '?(?P<name>[\w.]+).*",
    r"ERROR (?P<at>\S+) - (?:ModuleNotFound|Import)Error: No module named '(?P<name>[\w.]+)'",
    r"Error: Cannot find module '(?P<name>[^'/.][^']*)'\nRequire stack:\n- (?P<at>\S+)",
    r".*Cannot find package '(?P<name>[^'/.][^']*)' imported from (?P<at>\S+)",
    r"(?P<at>[^\s:]+):\d+:in .*cannot load such file -- (?P<name>\S+) \(LoadError\)",
    r"Can't locate (?P<name>\S+)\.pm in @INC.* at (?P<at>\S+) line \d+\.",
    r".*there is no package called ['\u2018](?P<name>[^'\u2019]+)['\u2019]",
)
_OTHER = tuple(lines(shape) for shape in _OTHERS)

# A test file that this interpreter cannot even parse was never run.
_UNPARSED = re.compile(
    r"^(?:E +)?File \"(?P<at>[^\"]+)\", line \d+\n(?:.*\n){1,3}?(?P<line>(?:E +)?(?:Syntax|Indentation)Error: .*)$",
    re.MULTILINE,
)
_FAILED_AT = re.compile(r"(?:\nE.*)*\n\n?(?P<at>[^\s:]+):\d+: ModuleNotFoundError\b")


def missing_modules(text: str, places: Places) -> Iterator[Missing]:
    """Yield the modules that were missing before a test could run, with the file that imports them."""
    seen = set()
    for found in islice(_IMPORT.finditer(text), _MOST):
        name = found["name"] or found["library"]
        seen.add(name)
        yield Missing(found.group(0).removeprefix("E ").strip(), "module", name, _importer(text, found.start(), places))
    for pattern in _OTHER:
        for found in pattern.finditer(text):
            name = found["name"]
            if name not in seen:
                line = found.group(0).partition("\n")[0].strip()
                yield Missing(line, "module", name, places.of(found.groupdict().get("at")))
    for found in _UNPARSED.finditer(text):
        if places.of(found["at"]) == "verifier":
            yield Missing(found["line"].removeprefix("E ").strip(), "runner", "", "verifier")


def modules_missed_by_tests(text: str, places: Places) -> list[Missing]:
    """Return the modules for want of which tests have failed, as pytest shows them: one for each such test.

    An import error that stands further down in an error's text is a quotation.
    """
    missed = []
    for found in islice(_IMPORT.finditer(text), _MOST):
        line, before = found.group(0), text.rfind("\n", 0, max(0, found.start() - 1)) + 1
        if line.startswith("E ") and found["name"] and not text.startswith("E ", before):
            at = _FAILED_AT.match(text, found.end())
            place = places.of(at["at"]) if at else _importer(text, found.start(), places)
            missed.append(Missing(line[1:].strip(), "module", found["name"], place))
    return missed


def _importer(text: str, end: int, places: Places) -> Place:
    """Return whose file the innermost frame is in that belongs to no library; a runner's own is the verifier's."""
    start = max(0, end - _LONGEST_TRACE)
    begins = [found.start() for found in _TRACE_BEGINS.finditer(text, start, end)]
    frames = [found["file"] or found["short"] for found in _FRAME.finditer(text, begins[-1] if begins else start, end)]
    for path in reversed(frames):
        if _PROGRAM.search(path):
            return "verifier"
        if not _LIBRARY.search(path) or is_own_place(path):
            return places.of(path)
    return "unsaid"
