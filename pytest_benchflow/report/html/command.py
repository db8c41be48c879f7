"""The command `report`: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import errno
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import RecordError
from pytest_benchflow.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.report.html.write import Report

HELP = "write a job as an HTML file to read in a browser"
TEXT = """\
Write a job as one HTML file that needs no network: the matrix, a table with filters, and each rollout with its
exchanges, tool calls, findings, verifier output, tokens and cost. Rollouts are reviewed as they lie on disk; totals are
those of summary.json. Where the rollouts' data is larger than --single-file allows, it goes into the directory
FILE-data beside the file, and both belong together.
Exit codes: 0 written; 1 a file cannot be read or written; 2 wrong use."""

_MIB = 1 << 20
_DEFAULT = 64
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # nothing that reads gets these


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("job", type=Path, metavar="JOB", help="a job's directory, such as jobs/NAME")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: report.html in the job)")
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    parser.add_argument(
        "--single-file",
        type=_size,
        default=_DEFAULT,
        metavar="MB",
        help=f"put the data beside the file when there is more of it (default: {_DEFAULT})",
    )


def run(options: argparse.Namespace) -> int:
    """Write the report and say where it is. Raises: UsageError, RecordError, OSError."""
    from pytest_benchflow.report.html.write import write_report
    from pytest_benchflow.report.review import checks_for

    out: Path = options.out or options.job / "report.html"
    try:
        done = write_report(options.job, out, checks_for(), single_file=options.single_file * _MIB)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise RecordError(f"{out}: cannot be written ({error.strerror}); make room, or pass another --out") from None
    for line in lines_of(done):
        sys.stdout.write(printable(line) + "\n")
    if options.open:
        import webbrowser

        if not webbrowser.open(done.file.resolve().as_uri()):
            sys.stdout.write("no browser was found here; open the file by hand\n")
    return 0


def lines_of(done: Report) -> Iterator[str]:
    """Yield what was written, and what a reader should know of it."""
    rollouts = f"{done.rollouts} rollout{'' if done.rollouts == 1 else 's'}"
    yield f"{done.file}: {rollouts}, {done.bytes / _MIB:,.1f} MB"
    if done.data is not None:
        yield f"  its data is in {done.data}/, which belongs beside it"
    if done.unread:
        yield f"  {done.unread} of them cannot be read, and {'is' if done.unread == 1 else 'are'} shown as such"
    for note in done.notes:
        yield f"  note: {note}"


def _size(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0; it takes megabytes, 0 to put all data beside it")
    return value
