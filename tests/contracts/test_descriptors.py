"""What a command inherits from the processes that start it, and cannot take from them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.sandboxes.local import backend
from tests.contracts.sandboxrig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.contracts import Sandbox

pytestmark = pytest.mark.skipif(backend.available() is not None, reason=str(backend.available()))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(backend, tmp_path) as made:
        yield made


@pytest.fixture
def sandbox(rig: Rig) -> Sandbox:
    made = rig.create()
    rig.run(made.enter("agent", "proxy"))
    return made


LIST_DESCRIPTORS = """
import json, os
found = {}
for name in os.listdir("/proc/self/fd"):
    try:
        found[int(name)] = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
    except OSError:  # the one that the list was read through
        pass
print(json.dumps(sorted(found.items())))
"""


@pytest.mark.parametrize("how", ["exec", "exec-with-stdin", "spawn"])
def test_a_command_inherits_its_three_streams_and_nothing_else(rig: Rig, sandbox: Sandbox, how: str) -> None:
    async def descriptors() -> Any:
        argv = ["python3", "-c", LIST_DESCRIPTORS]
        if how == "spawn":
            process = await sandbox.spawn(argv)
            return json.loads(await process.read())
        return json.loads((await sandbox.exec(argv, stdin=b"x" if how == "exec-with-stdin" else None)).stdout)

    rig.sh(sandbox, "sleep 99 &")  # a command that runs beside it has descriptors of its own
    streams = "/dev/null" if how == "exec" else "pipe"
    assert rig.run(descriptors()) == [[0, streams], [1, "pipe"], [2, "pipe"]]


def test_no_descriptor_of_ours_can_be_taken_from_the_processes_that_start_commands(rig: Rig, sandbox: Sandbox) -> None:
    rig.sh(sandbox, "sleep 99 &")
    taken = rig.python(
        sandbox,
        """
        import ctypes, json, os
        libc = ctypes.CDLL(None, use_errno=True)
        taken = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            if open(f"/proc/{pid}/cmdline").read().startswith("sleep") or pid == os.getpid():
                continue
            pidfd = os.pidfd_open(pid)
            for number in range(64):
                if libc.syscall(438, pidfd, number, 0) >= 0:
                    taken.append([pid, number])
                try:
                    taken.append([pid, os.readlink(f"/proc/{pid}/fd/{number}")])
                except OSError:
                    pass
        print(json.dumps(taken))
        """,
    )
    assert taken == []
