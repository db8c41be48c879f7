"""Tell GitHub Actions what rollouts came to: a table in the job's summary, and annotations on findings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.values import mapping, sequence
from pytest_benchflow.report.markdown import Told, document, grouped_findings
from pytest_benchflow.report.text import one_line, printable
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_benchflow.report.summary import Summary

SUMMARY, ACTIONS = "GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"
# What GitHub takes: bytes of the summary of a step, and annotations of each kind that it shows of one.
ROOM = 1 << 20
ANNOTATIONS = 10
_MESSAGE = 1000
_KINDS = {"error": "error", "warning": "warning"}


def is_asked() -> bool:
    """Tell whether this process runs where GitHub Actions would hear of it."""
    return bool(host_variable(SUMMARY)) or host_variable(ACTIONS) == "true"


def tell(told: Sequence[Told], *, notes: Sequence[str] = ()) -> Iterator[str]:
    """Append to the job's summary, and yield the lines to print: annotations, and what could not be told."""
    if not told:
        return
    if host_variable(SUMMARY):
        yield from append_summary(Path(str(host_variable(SUMMARY))), told, notes=notes)
    if host_variable(ACTIONS) == "true":
        yield from annotation_lines(told)


def append_summary(path: Path, told: Sequence[Told], *, notes: Sequence[str] = ()) -> Iterator[str]:
    """Append a table to a step's summary within its limit; yield a line where that is not possible."""
    try:
        there = path.stat().st_size if path.exists() else 0
        text = document(told, ROOM - there, notes=notes)
        if text:
            with path.open("ab") as file:
                file.write(text.encode(errors="backslashreplace"))
            return
        why = f"it has {there:,} of at most {ROOM:,} bytes"
    except OSError as error:
        why = str(error.strerror)
    yield f"benchflow: nothing was added to the job's summary ({SUMMARY}): {why}"


def annotation_lines(told: Sequence[Told]) -> Iterator[str]:
    """Yield a workflow command for each different finding, as many as GitHub shows, and say how many it does not."""
    rest = dict.fromkeys(_KINDS, 0)
    shown = dict.fromkeys(_KINDS, 0)
    for finding, first, count in grouped_findings(told):
        kind = "warning" if finding.get("severity") == "warning" else "error"
        if shown[kind] == ANNOTATIONS:
            rest[kind] += 1
            continue
        shown[kind] += 1
        names = (first.summary.task, first.summary.agent, str(finding.get("check")))
        more = f" (and in {count - 1} more rollout{'s' if count > 2 else ''})" if count > 1 else ""
        yield command(
            _KINDS[kind],
            one_line(finding.get("message"), limit=_MESSAGE) + more,
            file=first.file,
            title=" · ".join(one_line(name, limit=100) for name in names),
        )
    left_out = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in rest.items() if count]
    if left_out:
        yield f"benchflow: {' and '.join(left_out)} more have no annotation; GitHub shows {ANNOTATIONS} of each kind"


def command(name: str, message: str, **properties: str | None) -> str:
    """Return a workflow command; nothing in its message or properties can end it or begin another."""
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)
    return f"::{name}{f' {given}' if given else ''}::{_data(message)}"


def told_of(summary: Summary, base: Path, root: Path) -> Told:
    """Return a rollout of this session with its findings; `base` is what its directory is relative to.

    The task's file is told relative to `root`. A record that cannot be read is a finding.
    """
    rollout = Rollout(base / summary.directory)
    try:
        findings = [mapping(each) for each in sequence(mapping(rollout.result.get("checks")).get("findings"))]
    except RecordError as error:
        said = str(error).replace(f"{rollout.path}/", "")
        findings = [{"severity": "error", "check": "result_readable", "message": said}]
    return Told(summary, findings, _task_file(rollout, root))


def _task_file(rollout: Rollout, root: Path) -> str | None:
    try:
        place = rollout.config.get("task_path")
    except RecordError:
        return None
    if not isinstance(place, str):
        return None
    top = Path(host_variable("GITHUB_WORKSPACE") or root)
    for name in ("task.md", "task.toml"):
        file = root / place / name
        if file.is_file() and file.is_relative_to(top):
            return os.path.relpath(file, top)
    return None


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
