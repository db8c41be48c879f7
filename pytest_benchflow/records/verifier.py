"""Judge from what a verifier left whether it ran a test at all. A dead verifier is never a 0."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from pathlib import Path

# Enough for every log that says something; of a longer one the middle is left out.
_LONGEST_PART = 2 * 1024 * 1024

# What a test runner prints when it really ran something.
_RAN = re.compile(
    r"\b[1-9]\d* (?:passed|failed|error)|^(?:ok|not ok) \d+|\btests? [1-9]\d*\b|\b[1-9]\d* tests?\b",
    re.MULTILINE,
)
# Only what a verifier needs for itself: a missing program of the agent's, or a refused port of its server, is a score.
# A shell names the place of what it did not find, so that a text which only quotes such a line is not taken for one.
_TOOLS = r"(?:uvx?|pip3?|pytest|apt-get|curl|wget|npm|npx|node|python3?|conda)"
_DEAD = (
    rf"\S+: (?:line )?\d+: {_TOOLS}: (?:command )?not found",
    rf"(?:env|\S+: (?:line )?\d+): ['\u2018]?(?:/\S*/)?{_TOOLS}['\u2019]?: No such file or directory",
    r".*No module named '?(?:pytest|pip|uv)\b.*",
    r".*(?:Could not resolve host|Temporary failure in name resolution|wget: unable to resolve).*",
    r".*(?:CONNECT tunnel failed|Tunnel connection failed|Proxy tunneling failed).*",
    r"curl: \((?:5|6|28|35|56|60)\).*",
    r"E: (?:Unable to (?:fetch|locate)|Failed to fetch|Package ).*",
    r".*(?:Could not find a version that satisfies|No matching distribution found).*",
    r".*(?:Failed to establish a new connection|[Ff]ailed to (?:fetch|download)\b|error sending request for url).*",
    r"npm (?:ERR!|error) (?:code E|network).*",
)
_BOOTSTRAP = re.compile("^(?:" + "|".join(_DEAD) + ")$", re.MULTILINE)


def dead_bootstrap(directory: Path) -> str | None:
    """Return why a verifier's 0 says nothing: the line that shows that no test ran; None where it counts.

    `directory` holds test-stdout.txt, test-stderr.txt and ctrf.json, none of which need exist.
    """
    stdout, stderr = _text(directory / "test-stdout.txt"), _text(directory / "test-stderr.txt")
    try:
        tests = orjson.loads(_text(directory / "ctrf.json"))["results"]["summary"]["tests"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        tests = None
    if tests or _RAN.search(stdout) or _RAN.search(stderr):
        return None
    found = _BOOTSTRAP.search(stderr) or _BOOTSTRAP.search(stdout)
    return found.group(0).strip()[:300] if found else None


def _text(path: Path) -> str:
    """Return a regular file's text, its middle left out where it is long; "" for what is none."""
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
    return data.decode("utf-8", "replace")
