"""Write a report: one HTML file that needs no network, or one with a directory of data beside it where it is large.

Rollouts are read and written one at a time. What they hold is compressed, and decoded in the browser when one is
opened; the file's head has a line of each.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import shutil
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow import __version__
from pytest_benchflow.errors import UsageError
from pytest_benchflow.records.files import write_whole
from pytest_benchflow.records.jsontext import dumps
from pytest_benchflow.report.html.job import Job
from pytest_benchflow.report.html.rollout import tell
from pytest_benchflow.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO

    from pytest_benchflow.checks._check import Check

# Bytes of rollouts' data that go into the file itself; browsers open this in a second or two.
SINGLE_FILE = 64 << 20
_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("base.js", "charts.js", "job.js", "table.js", "rollout.js", "main.js")
_COPY = 1 << 20
# What could end a script element or begin a comment in one, and what older engines take for the end of a line.
_ESCAPED = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}
_UNSAFE = re.compile(b"|".join(map(re.escape, _ESCAPED)))
_CHUNK_NAME = re.compile(r"[0-9]{6}\.js\Z")


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was written; `data` is the directory beside it, None where all is in the file."""

    file: Path
    data: Path | None
    rollouts: int
    bytes: int
    unread: int  # rollouts of which nothing could be read
    differing: int  # rollouts that a review calls otherwise than the run did
    notes: tuple[str, ...]


def write_report(job_dir: Path, out: Path, checks: Mapping[str, Check], *, single_file: int = SINGLE_FILE) -> Report:
    """Write the report of a job. The same job gives the same bytes.

    Raises: UsageError when it is no job, or `out` is nothing to write to; RecordError; OSError.
    """
    job = Job(job_dir)
    data = out.with_name(f"{out.stem}-data")
    _refuse(out, data)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out.parent) as spool:
        lines, sizes, counts = _spool(job, checks, spool)
        beside = sum(sizes) > single_file
        index = _index(job, lines, counts, beside=data.name if beside else None)
        spool.seek(0)
        if beside:
            _write_beside(data, sizes, spool)
        elif data.is_dir():
            shutil.rmtree(data)
        write_whole(out, _page(job, index, () if beside else _embedded(sizes, spool), beside=beside))
    size = out.stat().st_size + (sum(each.stat().st_size for each in data.iterdir()) if beside else 0)
    return Report(out, data if beside else None, len(sizes), size, counts["unread"], counts["differing"], (*job.notes,))


def _spool(job: Job, checks: Mapping[str, Check], spool: IO[bytes]) -> tuple[list[bytes], list[int], dict[str, int]]:
    """Write the rollouts' data one after the other, and return their lines and the sizes of their data."""
    lines: list[bytes] = []
    sizes: list[int] = []
    counts = {"unread": 0, "differing": 0}
    for path in job.rollouts:
        told = tell(path, job.plan.get(path.name, {}), checks)
        packed = base64.b64encode(zlib.compress(dumps(told.detail), 6))
        spool.write(packed)
        lines.append(dumps({**told.entry, "data": len(sizes)}))
        sizes.append(len(packed))
        counts["unread"] += told.entry["unread"]
        counts["differing"] += told.differs
    lines += map(dumps, job.absent())
    return lines, sizes, counts


def _index(job: Job, lines: list[bytes], counts: Mapping[str, int], *, beside: str | None) -> Iterator[bytes]:
    """Yield what the page shows at once, as JSON that nothing in it can end early."""
    head = {"job": job.head(), "version": __version__, "beside": beside, "summary": job.summary}
    if differing := counts["differing"]:
        job.notes.append(
            f"{differing} {'rollout is' if differing == 1 else 'rollouts are'} judged by a review otherwise than when "
            f"{'it was' if differing == 1 else 'they were'} run: numbers are those of the run, and the table marks them"
        )
    yield safe(dumps({**head, "notes": [note.replace(f"{job.path}/", "") for note in job.notes]})[:-1])
    yield b',"rollouts":['
    for number, line in enumerate(lines):
        yield (b"," if number else b"") + safe(line)
    yield b"]}"


def safe(data: bytes) -> bytes:
    """Return JSON that can stand inside a script element: what could end it is escaped."""
    return _UNSAFE.sub(lambda match: _ESCAPED[match.group()], data)


def _page(job: Job, index: Iterator[bytes], chunks: Any, *, beside: bool) -> Iterator[bytes]:
    style, script = (_ASSETS / "report.css").read_bytes(), _script()
    body = (_ASSETS / "body.html").read_bytes()
    title = html.escape(printable(job.name)).encode(errors="backslashreplace")
    yield b'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy(style, script, beside=beside)}">\n'.encode()
    yield b'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield b'<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
    yield b'<link rel="icon" href="data:,">\n'
    yield b"<title>" + title + b"</title>\n<style>" + style + b"</style>\n</head>\n<body>\n" + body
    yield b'<script type="application/json" id="index">'
    yield from index
    yield b"</script>\n<script>" + script + b"</script>\n"
    yield from chunks
    yield b"</body>\n</html>\n"


def policy(style: bytes, script: bytes, *, beside: bool) -> str:
    """Return the page's Content-Security-Policy: its own script and style by their digests, and nothing else.

    With data beside it, its script may load further ones, through the one policy for trusted URLs that it makes.
    """
    scripts = f"{_digest(script)} 'strict-dynamic'" if beside else _digest(script)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {scripts}",
            f"style-src {_digest(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types report-data" if beside else "trusted-types 'none'",
        )
    )


def _digest(source: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source).digest()).decode()}'"


def _script() -> bytes:
    parts = [(_ASSETS / name).read_bytes() for name in _SCRIPTS]
    return b'\n"use strict";\n(() => {\n' + b"\n".join(parts) + b"})();\n"


def _embedded(sizes: list[int], spool: IO[bytes]) -> Iterator[bytes]:
    for number, size in enumerate(sizes):
        yield f'<script type="application/octet-stream" id="data-{number}">'.encode()
        yield from _copied(spool, size)
        yield b"</script>\n"


def _write_beside(data: Path, sizes: list[int], spool: IO[bytes]) -> None:
    """Write each rollout's data into a file of a new directory, which then takes the place of an older one."""
    draft = Path(tempfile.mkdtemp(dir=data.parent, prefix=f".{data.name}."))
    try:
        for number, size in enumerate(sizes):
            with (draft / f"{number:06}.js").open("wb") as file:
                file.write(f"benchflowData({number},'".encode())
                file.writelines(_copied(spool, size))
                file.write(b"');\n")
        draft.chmod(0o755)
        if data.is_dir():
            shutil.rmtree(data)
        draft.rename(data)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _copied(spool: IO[bytes], size: int) -> Iterator[bytes]:
    while size:
        part = spool.read(min(size, _COPY))
        size -= len(part)
        yield part


def _refuse(out: Path, data: Path) -> None:
    """Refuse to write over what is no report. Raises: UsageError."""
    if out.is_dir():
        raise UsageError(f"{out} is a directory; --out takes a file to write, such as report.html")
    if not out.stem or out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{out} is no name of an HTML file; --out takes one that ends in .html")
    if os.path.lexists(data):
        ours = data.is_dir() and not data.is_symlink() and all(_CHUNK_NAME.match(each.name) for each in data.iterdir())
        if not ours:
            raise UsageError(
                f"{data} is where the data of a large report goes, and it holds something else; pass --out"
            )
