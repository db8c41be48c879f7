"""Tell which slots of a job are filled, and what is wrong with the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import UsageError
from pytest_benchflow.records.rundir import check_job
from pytest_benchflow.records.slots import STATES, counts_of, slots_of
from pytest_benchflow.report.text import one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pytest_benchflow.records.slots import Slot

HELP = "tell which rollouts of a job are there, healthy, missing or twice"
TEXT = """\
Tell what became of each slot of a job: a planned cell of task, agent, model, skill mode and trial. Nothing is run.

  healthy    a rollout with a verdict that counts
  unhealthy  one whose run, verifier or records were at fault
  stale      one of a task, or of a catalogue entry of its agent, that is none of what the latest session planned
  duplicate  several directories say that they are this slot's rollout
  missing    none does, or one of another name
  skipped    it could not run where it was tried

Earlier attempts are counted beside it and nowhere else. What is not there is filled by
`pytest ... --benchflow-job-name=NAME --benchflow-resume`.
Exit codes: 0 every slot is healthy; 1 one is not, or there is none; 2 wrong use."""

_LONGEST = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument("job", type=Path, metavar="JOB", help="directory of a job, such as jobs/ramp")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises: UsageError."""
    job: Path = options.job
    if not job.is_dir():
        raise UsageError(
            f"{job} {'is no directory' if job.exists() else 'does not exist'}; name the directory of a job"
        )
    check_job(job)
    slots = slots_of(job)
    if options.json:
        sys.stdout.write(json.dumps(document(job, slots), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(job, slots))
    return int(not _complete(slots))


def document(job: Path, slots: list[Slot]) -> dict[str, Any]:
    """Return the JSON of the command."""
    return {
        "job": str(job),
        "complete": _complete(slots),
        "counts": counts_of(slots),
        "slots": [slot.as_json() for slot in slots],
    }


def _complete(slots: list[Slot]) -> bool:
    return bool(slots) and all(slot.state == "healthy" for slot in slots)


def _lines(job: Path, slots: list[Slot]) -> Iterator[str]:
    counts = counts_of(slots)
    told = " · ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    earlier = sum(slot.attempts for slot in slots)
    more = f" · {earlier} earlier attempt{'s' if earlier != 1 else ''}" if earlier else ""
    yield f"{one_line(job)}: {counts['expected']} expected{f' · {told}' if told else ''}{more}"
    width = max(map(len, STATES))
    for slot in slots:
        if slot.state != "healthy":
            reason = f": {one_line(slot.reason, limit=_LONGEST)}" if slot.reason else ""
            yield f"  {slot.state.ljust(width)}  {one_line(slot.rollout)}{reason}"
    if not slots:
        yield "  nothing was planned, and no rollout is here"
