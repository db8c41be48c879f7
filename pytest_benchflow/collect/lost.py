"""Complete the record of the rollout that ran in a worker of xdist when it died."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import BenchflowError, RecordError, UsageError
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.rollout.config import slug
from pytest_benchflow.rollout.job import complete_lost
from pytest_benchflow.rollout.place import held

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# The kernel lets go of a dead process's locks a moment after others see its connection closed.
_LET_GO_SEC = 5.0
_TICK_SEC = 0.05
_CELL = re.compile(r"(?P<file>.*task\.(?:toml|md))::\w+\[(?P<cell>.*)\]\Z", re.DOTALL)
_DISTINGUISHED = re.compile(r"__[0-9a-f]{8}\Z")


def record_lost(job_dir: Path, session_id: str, root: Path, nodeid: str) -> None:
    """Complete what the rollout of an item left that was running when its worker died, so that nobody runs it again.

    `root` is what node ids are relative to. An item of no task, and a rollout that never began or is done, is left.
    """
    found = _CELL.match(nodeid)
    if found is None:
        return
    for file in sorted(job_dir.glob("*/config.json")):
        try:
            config = read_json(file)
        except (RecordError, OSError):
            continue
        # What a link leads to is no rollout of this job.
        if file.parent.is_symlink() or config.get("session_id") != session_id:
            continue
        if _is_of(config, root / found["file"], found["cell"]):
            # What cannot be written now is completed, and told, when the session ends.
            with suppress(BenchflowError, OSError):
                _complete(RunDir(file.parent))


def _is_of(config: Mapping[str, Any], file: Path, cell: str) -> bool:
    """Tell whether a rollout is the one of a cell of the task in `file`."""
    path, name = Path(str(config.get("task_path"))), str(config.get("rollout_name"))
    task = f"{slug(path.name)}__"
    if path != file.parent or not name.startswith(task):
        return False
    rest = name.removeprefix(task)
    return cell.replace("__", "-") in (each.replace("__", "-") for each in (rest, _DISTINGUISHED.sub("", rest)))


def _complete(rundir: RunDir) -> None:
    end = time.monotonic() + _LET_GO_SEC
    while True:
        try:
            with held(rundir, wait=False):
                complete_lost(rundir)
        except UsageError:
            if time.monotonic() > end:
                raise
            time.sleep(_TICK_SEC)
        else:
            return
