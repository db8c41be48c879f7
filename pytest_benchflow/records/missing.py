"""Find in a verifier's output what it says was missing, and in whose file it was missed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["tool", "module", "file", "download", "runner"]
Place = Literal["verifier", "elsewhere", "unsaid"]

# Names that a verifier's files have by convention, wherever it copies them.
OWN_NAMES = frozenset(("test.sh", "run-tests.sh", "test_outputs.py", "test_state.py"))
_SHELL = re.compile(r"/(?:\S*/)?(?:ba|da|a|z)?sh")
_OWN_PLACE = re.compile(r"(?:/|(?:\.\./)+)(?:tests|verifier)(?:/|$)")

# A shell names the place of what it did not find, so that a text which only quotes such a line is not taken for one.
_TOOLS = (
    r"(?P<at>\S+): (?:line )?\d+: (?:exec: )?(?P<name>[^\s:]+): (?:(?:command )?not found|Permission denied)",
    r"(?:ba|da|a|z)?sh: (?P<name>[^\s:]+): (?:(?:command )?not found|Permission denied)",
    r"(?P<at>\S+): (?:line )?\d+: (?P<name>/[^\s:]+): No such file or directory",
    r"(?:\S*/)?(?P<at>env): ['\u2018](?P<name>[^'\u2019]+)['\u2019]: No such file or directory",
    r"(?:\S*/)?(?:timeout|nohup|nice|sudo|xargs|stdbuf): (?:failed to run command )?"
    r"['\u2018]?(?P<name>[^\s:'\u2019]+)['\u2019]?: (?:No such file or directory|command not found)",
)
_FILES = (
    r"(?:\S+: (?:line \d+: )?)?(?P<at>\S+): (?:line \d+: )?(?P<name>/[^\s:]+): bad interpreter: No such file .*",
    r"(?:\S+: (?:line \d+: )?)?(?P<name>/(?:tests|verifier)/[^\s:]+): cannot execute: required file not found",
    r"(?P<at>[^\s:]+): [^/\n]{0,60}(?P<name>/(?:tests|verifier)/[^\s'\"\u2019:]+)['\"\u2019]?"
    r": .*No such file or directory.*",
    r"(?:E +)?FileNotFoundError: .*No such file or directory: '(?P<name>/(?:tests|verifier)/[^']+)'",
    r"ERROR: file or directory not found: (?P<name>/(?:tests|verifier)/\S+)",
    r"Error: Cannot find module '(?P<name>/(?:tests|verifier)/[^']+)'.*",
)
_LOCAL = r"(?:localhost|127\.|0\.0\.0\.0|\[?::1)"
_DOWNLOADS = (
    rf".*Could not resolve host: (?!{_LOCAL}).*|wget: unable to resolve host.*",
    r".*Temporary failure in name resolution.*",
    r".*(?:CONNECT tunnel failed|Tunnel connection failed|Proxy tunneling failed).*",
    rf"curl: \(\d+\) Failed to connect to (?!{_LOCAL})\S+ port .*",
    r"E: (?:Unable to (?:fetch|locate)|Failed to fetch|Package ).*",
    r".*(?:Could not find a version that satisfies|No matching distribution found).*",
    r".*(?:pip\._vendor|pypi\.org|pythonhosted\.org).*Failed to establish a new connection.*",
    rf"(?!W: |.*{_LOCAL}).*\b[Ff]ailed to (?:fetch|download)\b.*(?:`|https?://).*",
    rf".*error sending request for url \(https?://(?!{_LOCAL}).*",
    r"npm (?:ERR!|error) (?:code E(?:NOTFOUND|AI_AGAIN|TIMEDOUT|CONN\w+|NETUNREACH|[45]\d\d)|network).*",
    rf".*dial tcp: lookup (?!{_LOCAL}).*",
    r".*Could not transfer artifact \S+ from(?:/to)? .*",
    r"error: No interpreter found for Python .*",
)
_RUNNER = (
    r"(?:\S*pytest|\S*__main__\.py): error: .*|ERROR: usage: .*",
    r"Error importing plugin .*|INTERNALERROR> .*Error.*",
)


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that was not there; `line` shows it, `place` says in whose file it was missed."""

    line: str
    kind: Kind
    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class Places:
    """Tell whose a file is: `own_names` are names of files that a verifier brings, wherever it copies them.

    `at_own_place` says that relative paths are relative to the verifier's place.
    """

    own_names: frozenset[str] = OWN_NAMES
    at_own_place: bool = False

    def of(self, path: str | None) -> Place:
        """Return whose the file is that a message names; a program's name, or <string>, says nothing of a file."""
        if not path or _SHELL.fullmatch(path) or not ("/" in path or "." in path):
            return "unsaid"
        relative = self.at_own_place and not path.startswith(("/", "."))
        own = relative or is_own_place(path) or PurePosixPath(path).name in self.own_names
        return "verifier" if own else "elsewhere"


def is_own_place(path: str) -> bool:
    """Tell whether a path lies where a verifier's files are brought in: /tests or /verifier."""
    return _OWN_PLACE.match(path) is not None


def missing_things(text: str, places: Places) -> Iterator[Missing]:
    """Yield the tools, files and downloads that an output says were missing, and a runner's own refusals."""
    for kind, pattern in _PATTERNS:
        for found in pattern.finditer(text):
            groups = found.groupdict()
            place = places.of(groups.get("at")) if kind in ("tool", "file") else "verifier"
            yield Missing(found.group(0).strip(), kind, groups.get("name") or "", place)


def lines(*shapes: str) -> re.Pattern[str]:
    """Compile shapes of whole lines."""
    return re.compile("^(?:" + "|".join(shapes) + ")$", re.MULTILINE)


_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    *(("tool", lines(shape)) for shape in _TOOLS),
    *(("file", lines(shape)) for shape in _FILES),
    ("runner", lines(*_RUNNER)),
    ("download", lines(*_DOWNLOADS)),
)
