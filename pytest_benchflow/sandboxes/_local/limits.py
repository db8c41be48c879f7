"""Apply the sizes a task asks for: control groups where this process may make them, else what the kernel offers."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import re
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_benchflow.tasks.task import Environment

_MOUNT = Path("/sys/fs/cgroup")
_PREFIX = "benchflow"
MAX_PROCESSES = 4096
_PERIOD_US = 100_000


@dataclass
class Limits:
    """The limits of one sandbox; `report` tells, for each that was asked for, what became of it."""

    environment: Environment
    name: str
    report: dict[str, Any] = field(default_factory=dict)
    _groups: list[Path] = field(default_factory=list)
    _rlimits: dict[int, int] = field(default_factory=dict)
    _cpus: set[int] | None = None

    def prepare(self) -> None:
        """Make what will hold the sandbox's processes."""
        environment = self.environment
        self._processes()
        if environment.memory_mb is not None:
            self._memory(environment.memory_mb)
        if environment.cpus is not None:
            self._cpu(environment.cpus)
        if environment.storage_mb is not None:
            self._rlimits[resource.RLIMIT_FSIZE] = environment.storage_mb << 20
            self._note("storage_mb", environment.storage_mb, "for each file: there is no quota on the whole")

    def hold(self, init: int) -> None:
        """Put process 1 of a phase under the limits; all it starts inherits them."""
        for group in self._groups:
            (group / "cgroup.procs").write_text(str(init))
        for kind, value in self._rlimits.items():
            resource.prlimit(init, kind, (value, value))
        if self._cpus is not None:
            os.sched_setaffinity(init, self._cpus)

    def remove(self) -> None:
        """Remove the control groups, when the processes in them are dead; safe to call twice."""
        for group in self._groups:
            _remove_group(group)
        self._groups.clear()

    def _note(self, key: str, asked: float, applied: str) -> None:
        self.report[key] = {"asked": asked, "applied": applied}

    def _processes(self) -> None:
        # Nobody asks for this one; without it a fork bomb inside takes the whole machine.
        if self._group("pids", {"pids.max": str(MAX_PROCESSES)}):
            self._note("processes", MAX_PROCESSES, "control group")

    def _memory(self, asked: int) -> None:
        size = asked << 20
        if self._group("memory", {"memory.limit_in_bytes": str(size)}, {"memory.max": str(size)}):
            self._note("memory_mb", asked, "control group")
        else:
            self._rlimits[resource.RLIMIT_DATA] = size
            self._note("memory_mb", asked, "for each process: this user may make no control group")

    def _cpu(self, asked: float) -> None:
        mine = sorted(os.sched_getaffinity(0))
        quota = f"{int(asked * _PERIOD_US)}"
        if asked >= len(mine):
            self._note("cpus", asked, f"the {len(mine)} this machine has")
        elif self._group("cpu", {"cpu.cfs_quota_us": quota}, {"cpu.max": f"{quota} {_PERIOD_US}"}):
            self._note("cpus", asked, "control group")
        else:
            self._cpus = set(random.sample(mine, max(1, math.ceil(asked))))
            self._note("cpus", asked, f"bound to {len(self._cpus)} of {len(mine)}")

    def _group(self, controller: str, *versions: dict[str, str]) -> bool:
        """Make a group where one can be made, with the files of its version (1, else 2)."""
        first, *second = _homes(controller)
        for home, files in ((first, versions[0]), *((home, versions[-1]) for home in second)):
            group = home / f"{_PREFIX}-{os.getpid()}-{self.name}"
            if home == Path() or not home.is_dir():
                continue
            try:
                group.mkdir(exist_ok=True)
                for name, value in files.items():
                    (group / name).write_text(value)
            except OSError:
                _remove_group(group)
                continue
            if group not in self._groups:
                self._groups.append(group)
            return True
        return False


def _homes(controller: str) -> tuple[Path, Path, Path]:
    """Return where a group can be made below: this process's own by version 1 and 2, and the top of version 2.

    Version 2 gives a group that holds processes, as this process's own does, no limited groups below it. Path(): none.
    """
    first = second = Path()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                first = _MOUNT / controllers / path.lstrip("/")
            elif not controllers:
                second = _MOUNT / path.lstrip("/")
    return first, second, _MOUNT if (_MOUNT / "cgroup.controllers").is_file() else Path()


def _remove_group(group: Path) -> None:
    for _attempt in range(50):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)  # the kernel lets go of ended processes a little later
        else:
            return


@functools.cache
def remove_stale_groups() -> None:
    """Remove the control groups of sessions that were killed; done once for each process."""
    for controller in ("pids", "memory", "cpu"):
        for home in _homes(controller):
            for group in home.glob(f"{_PREFIX}-*") if home != Path() else ():
                match = re.match(rf"{_PREFIX}-(\d+)-", group.name)
                if match and not Path("/proc", match[1]).exists():
                    with contextlib.suppress(OSError):
                        group.rmdir()
