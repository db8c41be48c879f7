"""The check decorator and the one runner that executes every check once per rollout.

A check is a function `check_<claim>(rollout)` with asserts that carry their own message. It is found by its name in
the files of this directory, or registered by a hook.
"""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from pytest_benchflow import registry
from pytest_benchflow.checks._evidence import NEEDS, NotApplicableError
from pytest_benchflow.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_benchflow.records.rollout import Rollout

Severity = Literal["error", "warning"]
# What is at fault when a check fails, the gravest first: a rollout with several faults is named by the first.
CATEGORIES = ("infra", "verifier", "capture", "conduct", "accounting", "training")


# What a terminal obeys or hides, and what cannot be printed: control characters, the marks that turn the direction of
# text or have no width, line separators, lone surrogates.
_OBEYED = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff\\U000e0000-\\U000e007f]"
)
_LONGEST = 2000


def plain(text: str) -> str:
    """Return text as one line that a terminal shows and does not obey, cut where it is very long."""
    shown = _OBEYED.sub(lambda match: match.group().encode("unicode_escape").decode(), text[:_LONGEST])
    return shown if len(text) <= _LONGEST else f"{shown}…"


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim that does not hold; an error makes the rollout unhealthy, a warning does not.

    `message` is always one plain line, whatever the records hold.
    """

    check: str
    severity: Severity
    message: str
    category: str = "capture"

    def __post_init__(self) -> None:
        """Escape what a record could make a terminal do."""
        object.__setattr__(self, "message", plain(self.message))

    def as_json(self) -> dict[str, str]:
        """Return the finding as a review prints it."""
        return {"check": self.check, "severity": self.severity, "message": self.message, "category": self.category}


@dataclass(frozen=True, slots=True)
class Check:
    """One claim about a rollout; `needs` names the evidence without which it says nothing."""

    function: Callable[[Rollout], None]
    name: str
    claim: str
    severity: Severity = "error"
    category: str = "capture"
    needs: tuple[str, ...] = ()

    def __call__(self, rollout: Rollout) -> None:
        """Raise AssertionError when the claim does not hold."""
        self.function(rollout)


def check(
    *, severity: Severity = "error", category: str = "capture", needs: tuple[str, ...] = ()
) -> Callable[[Callable[[Rollout], None]], Check]:
    """Make a function `check_<claim>` a check; the first line of its docstring is the claim.

    `needs` are names of `NEEDS`, such as "model" or "row": where the evidence is not there, the check is listed as not
    applicable. Raises: ValueError on an unknown severity, category or need.
    """
    for what, value, allowed in (("severity", severity, ("error", "warning")), ("category", category, CATEGORIES)):
        if value not in allowed:
            raise ValueError(f"{what} is {value!r}; it takes one of: {', '.join(allowed)}")
    for need in needs:
        if need not in NEEDS:
            raise ValueError(f"needs has {need!r}; it takes: {', '.join(NEEDS)}")

    def make(function: Callable[[Rollout], None]) -> Check:
        claim = (function.__doc__ or "").strip().partition("\n")[0]
        return Check(function, function.__name__.removeprefix("check_"), claim, severity, category, needs)

    return make


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the checks said of one rollout; every check is in `ran` or in `not_applicable` (with its reason)."""

    findings: list[Finding] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    not_applicable: dict[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> list[Finding]:
        """Return the findings that make the rollout unhealthy."""
        return [finding for finding in self.findings if finding.severity == "error"]

    def of(self, name: str) -> list[Finding]:
        """Return the findings of one check."""
        return [finding for finding in self.findings if finding.check == name]

    def as_json(self) -> dict[str, Any]:
        """Return the report as result.json holds it."""
        return {
            "ran": self.ran,
            "not_applicable": self.not_applicable,
            "findings": [finding.as_json() for finding in self.findings],
        }


@functools.cache
def _shipped() -> dict[str, Check]:
    found: dict[str, Check] = {}
    for name in registry.shipped("checks"):
        module = importlib.import_module(f"pytest_benchflow.checks.{name}")
        for attribute, value in vars(module).items():
            if attribute.startswith("check_") and isinstance(value, Check):
                found[value.name] = value
    return found


def all_checks() -> dict[str, Check]:
    """Return every check by name: the shipped ones, then what hooks registered."""
    found = dict(_shipped())
    for name, function in registry.registered("checks").items():
        found[name] = function if isinstance(function, Check) else check()(function)
    return found


_reports: WeakKeyDictionary[Rollout, CheckReport] = WeakKeyDictionary()


def run_checks(rollout: Rollout, checks: Mapping[str, Check] | None = None) -> CheckReport:
    """Run checks (all of them by default) on a finished rollout; all of them run once per `Rollout` object."""
    if checks is None:
        known = _reports.get(rollout)
        if known is None:
            known = _reports[rollout] = _run(rollout, all_checks())
        return known
    return _run(rollout, checks)


def _run(rollout: Rollout, checks: Mapping[str, Check]) -> CheckReport:
    report = CheckReport()
    missing = {name: need(rollout) for name, need in NEEDS.items()}
    for name, item in checks.items():
        lacking = next((reason for need in item.needs if (reason := missing[need]) is not None), None)
        if lacking is not None:
            report.not_applicable[name] = plain(lacking)
            continue
        _run_one(rollout, name, item, report)
    return report


def _run_one(rollout: Rollout, name: str, item: Check, report: CheckReport) -> None:
    """Run one check; whatever it raises is a finding, and nothing it raises is a pass."""
    try:
        item(rollout)
    except NotApplicableError as reason:
        report.not_applicable[name] = plain(str(reason))
        return
    except AssertionError as error:
        # An assert's own message comes first; what pytest adds about the values follows on lines of their own.
        message = str(error).partition("\nassert ")[0].strip() or f"does not hold: {item.claim}"
        report.findings.append(Finding(name, item.severity, message, item.category))
    except RecordError as error:
        report.findings.append(Finding(name, "error", str(error), "capture"))
    except Exception as error:
        report.findings.append(Finding(name, "error", f"check crashed: {type(error).__name__}: {error}", item.category))
    report.ran.append(name)
