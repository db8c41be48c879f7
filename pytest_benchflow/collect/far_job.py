"""Copy a job's directory from another machine, over a connection made as xdist makes its own."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import execnet

from pytest_benchflow.collect import _far_program
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.attempts import is_number
from pytest_benchflow.records.coverage import CELLS
from pytest_benchflow.records.journal import Journal, read_json, read_lines
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.records.values import mapping
from pytest_benchflow.report.text import printable
from pytest_benchflow.rollout.job import adopt_run
from pytest_benchflow.rollout.ledger import NAME as LEDGER
from pytest_benchflow.rollout.place import set_aside

_CHUNK = 1 << 20
_ANSWER_SEC = 120.0
# So long a machine may take to let us in and start an interpreter; workers were there before.
_BEGIN_SEC = 300.0
_END_SEC = 5.0
# Where a rollout is put together before it is one of the job's.
_STAGING = ".arriving"


class FarJob:
    """A job's directory `far_dir` on the machine that `spec` leads to, whose rollouts are copied into `job_dir`.

    `root` is the project's directory here. Methods raise RecordError where the machine does not answer, OSError where
    this one has no room.
    """

    def __init__(self, spec: str, far_dir: str, job_dir: Path, root: Path) -> None:
        self.name = spec.partition("//")[0].partition("=")[2] or spec.partition("//")[0]
        self.far_dir = far_dir
        self.left: list[str] = []  # after `finish`: a line for each thing that stayed there
        self._spec = spec
        self._job_dir = job_dir
        self._root = root
        self._group = execnet.Group()
        self._channel: Any = None
        self._silent: str | None = None  # what was waited for in vain: not for each rollout again
        self._known: dict[str, dict[str, tuple[int, int]]] = {}  # rollout -> its files as they were when copied

    def bring(self, name: str) -> None:
        """Copy a rollout, or what of it has changed since it was copied."""
        _check_name(name)
        files, others = self._ask("tree", name)
        here, known = self._job_dir / name, self._known.get(name)
        into = here if known is not None else self._job_dir / _STAGING / name
        if known is None:
            shutil.rmtree(into, ignore_errors=True)
            into.mkdir(parents=True)
        have = known or {}
        for below, size, changed in files:
            if have.get(below) != (size, changed):
                self._copy(f"{name}/{below}", into, below)
        if known is None:
            self._place(into, here)
            self.left += [f"{self.name}: {name}/{printable(each)}, which is no plain file" for each in others]
        self._known[name] = {below: (size, changed) for below, size, changed in files}

    def finish(self) -> None:
        """Bring all rollouts and what the job tells of itself; then remove the directory there, if nothing is left."""
        self._silent = None  # a last try
        try:
            directories, files = self._ask("list")
        except _AbsentError:
            return  # no worker there has begun one
        for name in directories:
            try:
                self.bring(name)
            except _AwayError:
                raise
            except RecordError as error:  # the others come all the same
                self.left.append(f"{self.name}: {printable(name)}: {error}; it is there in {self.far_dir}")
        if "job.json" in files:
            self._adopt_job()
        for name in (CELLS, LEDGER):
            if name in files:
                self._append(name)
        shutil.rmtree(self._job_dir / _STAGING, ignore_errors=True)
        if not self.left:
            self._ask("remove")
        self._group.terminate(5.0)

    def _place(self, arrived: Path, here: Path) -> None:
        """Make a copy the job's rollout. One that did not end goes beside one that did, as its earlier attempt."""
        if (here / "config.json").is_file() and _ended(here) and not _ended(arrived):
            place = here / "attempts"
            place.mkdir(exist_ok=True)
            taken = [int(each.name) for each in place.iterdir() if is_number(each.name)]
            arrived.rename(place / str(max(taken, default=0) + 1))
            return
        set_aside(RunDir(here))
        here.mkdir(exist_ok=True)
        for path in arrived.iterdir():
            path.rename(here / path.name)

    def _adopt_job(self) -> None:
        """Take from the far job.json what was planned: only workers know it."""
        arrived = self._job_dir / _STAGING / "job.json"
        arrived.parent.mkdir(exist_ok=True)
        self._copy("job.json", arrived.parent, "job.json")
        root = f"{self._ask('where')}/{self._root.name}"
        adopt_run(self._job_dir, read_json(arrived), moved=(root, str(self._root)))

    def _append(self, name: str) -> None:
        """Add the lines of a job's journal to those here."""
        staging = self._job_dir / _STAGING
        staging.mkdir(exist_ok=True)
        self._copy(name, staging, name)
        journal = Journal(self._job_dir / name)
        try:
            for _, line in read_lines(staging / name):
                with suppress(ValueError):
                    journal.append({**mapping(loads(line)), "machine": self.name})
        finally:
            journal.close()

    def _copy(self, path: str, into: Path, below: str) -> None:
        """Copy one file whole: it is under its name only when it is complete."""
        target = into / below
        if not target.resolve().is_relative_to(into.resolve()) or printable(below) != below:
            raise RecordError(f"{self.name} tells of a file {printable(path)!r}, which is no name to write here")
        target.parent.mkdir(parents=True, exist_ok=True)
        arriving = target.with_name(f"{target.name[:200]}.arriving")
        with arriving.open("wb") as file:
            while data := self._ask("read", path, file.tell(), _CHUNK):
                file.write(data)
        arriving.replace(target)

    def _ask(self, *request: Any) -> Any:
        """Return the answer to a request. Raises: RecordError."""
        if self._silent is not None:
            raise _AwayError(self._silent)
        try:
            if self._channel is None or self._channel.isclosed():
                self._channel = self._begin().remote_exec(_far_program)
                self._channel.send(self.far_dir)
            self._channel.send(request)
            done, value = self._channel.receive(_ANSWER_SEC)
        except execnet.TimeoutError:
            self._channel = None
            self._silent = f"{self.name} has not answered for {_ANSWER_SEC:g} s"
            raise _AwayError(self._silent) from None
        except (EOFError, OSError, execnet.RemoteError, execnet.HostNotFound) as error:
            self._channel = None
            raise _AwayError(f"the machine does not answer: {str(error).strip() or type(error).__name__}") from None
        if not done:
            raise (_AbsentError if value == "it is not there" else RecordError)(f"{request[0]} {request[1:2]}: {value}")
        return value

    def _begin(self) -> Any:
        """Connect, in a thread that can be given up: execnet waits for ever for what is silent. Raises: RecordError."""
        made: Future[Any] = Future()

        def connect() -> None:
            try:
                made.set_result(self._group.makegateway(f"execmodel=thread//{self._spec}"))
            except BaseException as error:
                made.set_exception(error)

        thread = Thread(target=connect, name="benchflow-far-begin", daemon=True)
        thread.start()
        wait([made], _BEGIN_SEC)
        if not made.done():
            _end_children_of(thread)
            self._silent = (
                f"{self.name} has been silent for {_BEGIN_SEC:g} s where a connection to it begins; look whether "
                "ssh reaches it and its Python starts"
            )
            raise _AwayError(self._silent)
        return made.result()


def _end_children_of(thread: Thread) -> None:
    """Kill the processes that a thread has started and waits for, which ends the waiting."""
    with suppress(OSError):
        for pid in Path(f"/proc/self/task/{thread.native_id}/children").read_text("ascii").split():
            os.kill(int(pid), signal.SIGKILL)
        thread.join(_END_SEC)


class _AwayError(RecordError):
    """The machine does not answer."""


class _AbsentError(RecordError):
    """There is nothing of that name."""


def _ended(rundir: Path) -> bool:
    try:
        return read_json(rundir / "result.json").get("verdict") is not None
    except RecordError:
        return False


def _check_name(name: str) -> None:
    if name in ("", ".", "..") or "/" in name or os.sep in name or printable(name) != name:
        raise RecordError(f"{printable(name)!r} is no name of a rollout")
