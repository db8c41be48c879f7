"""Tell from what a test runner printed whether it ran a test."""

from __future__ import annotations

import re

# Words that only a runner prints which has run something. A number of tests alone says nothing: banners have one too.
_RAN = re.compile(
    "^(?:"
    + "|".join(
        (
            r".*\b[1-9]\d* (?:passed|failed|xfailed|xpassed|passing|failing)\b.*",  # pytest, mocha, jest, vitest
            r"(?:PASSED|FAILED|XFAIL|XPASS) \S+::.*",
            r"\S+\.py(?:::\S+)? [.FsxX]+E?(?:[.FEsxX]*)(?: +\[ *\d+%\])?",
            r"_+ ERROR at (?:setup|teardown) of .*",
            r".*\b[1-9]\d* tests? (?:ran|run|passed|failed|completed|executed)\b.*",
            r"Ran [1-9]\d* tests?\b.*",  # unittest
            r"(?:Tests:|.*\bTests run:) .*[1-9].*",  # jest, phpunit, maven
            r"# tests [1-9]\d*",  # node
            r"(?:not )?ok \d+\b.*",  # TAP
            r" *--- (?:PASS|FAIL): .*|(?:ok|FAIL)[ \t]+\S+[ \t]+[\d.]+s",  # go
            r"test result: \w+\. (?!0 passed; 0 failed).*",  # cargo
            r"\d+% tests passed, \d+ tests? failed out of [1-9].*",  # ctest
            r"[1-9]\d* examples?, .*",  # rspec
            r"(?:Failed|Passed)! +- Failed:.*[1-9].*",  # dotnet
        )
    )
    + ")$",
    re.MULTILINE,
)
_COLLECTED = re.compile(r"^(?:collecting \.\.\. *)?collected [1-9]\d* items?(?P<rest>.*)$", re.MULTILINE)
_NOTHING_LEFT = re.compile(r"/ (?:\d+ errors?|0 selected)")
# unittest counts a module that it could not import as a test.
_NO_MODULE = re.compile(r"^ERROR: .*\(unittest\.loader\._FailedTest", re.MULTILINE)
_UNITTEST = re.compile(r"^Ran (\d+) tests?\b", re.MULTILINE)
_SUMMARY = re.compile(r"^.*\b\d+ (?:failed|passed|errors?)\b.* in [\d.]+s", re.MULTILINE)
_FAILED = re.compile(r"\b(\d+) (?:failed|errors?)\b")

_NONE = re.compile(
    "^(?:"
    + "|".join(
        (
            r"=* *no tests ran\b.*|.*\bcollected 0 items(?! / \d+ error).*",
            r"=* *(?:\d+ (?:skipped|deselected|warnings?)(?:, )?)+ in [\d.]+s.*",
            r"Ran 0 tests\b.*|NO TESTS RAN\b.*",
            r"No tests? (?:files )?found\b.*",
            r" *0 passing\b.*|\?[ \t]+\S+[ \t]+\[no test files\]|1\.\.0\b.*|(?:.* )?Tests run: 0,.*|0 examples, .*",
            r"test result: \w+\. 0 passed; 0 failed.*|# tests 0",
        )
    )
    + ")$",
    re.MULTILINE,
)
_COLLECTION = re.compile(
    r"^(?:_+ ERROR collecting |.*\berrors? during collection|ImportError while loading conftest)", re.MULTILINE
)
_NO_FILE = re.compile(r"^ERROR: file or directory not found: (?!/(?:tests|verifier)/)", re.MULTILINE)
_ROOT = re.compile(r"^rootdir: (\S+?)(?:,.*)?$", re.MULTILINE)


def ran_tests(text: str) -> bool:
    """Tell whether a runner's output shows that a test was executed; one that could not be imported was not."""
    unittest = sum(int(number) for number in _UNITTEST.findall(text))
    if unittest and unittest == len(_NO_MODULE.findall(text)):
        return False
    begun = any(not _NOTHING_LEFT.search(found["rest"]) for found in _COLLECTED.finditer(text))
    return begun or bool(_RAN.search(text))


def count_failed(text: str) -> int:
    """Return how many tests pytest says have failed or could not be set up."""
    return sum(int(number) for summary in _SUMMARY.findall(text) for number in _FAILED.findall(summary))


def ran_none(text: str) -> str | None:
    """Return the line in which a runner says that it found no test, None without one."""
    found = _NONE.search(text)
    return found.group(0).strip() if found else None


def has_reason(text: str) -> bool:
    """Tell whether a runner ran no test because it could not import a file, or not find one outside /tests."""
    return bool(_COLLECTION.search(text) or _NO_FILE.search(text))


def root_of(text: str) -> str | None:
    """Return the directory that pytest says it looked for tests in."""
    found = _ROOT.search(text)
    return found[1] if found else None
