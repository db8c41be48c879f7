"""What the host makes of a process 1 that does not play by the rules."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._local.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

PEER = """
import os, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
os.write(int(sys.argv[2]), b'{"child-pid": %d}' % os.getpid())
control.send(b"ready")
message = control.recv(100).decode()
"""


async def start(tmp_path: Path, program: str) -> Phase:
    def command(control: int, info: int, _rules: int) -> list[str]:
        return [sys.executable, "-c", program, str(control), str(info)]

    return await Phase.start(command, tmp_path / "log", lambda _pid: None)


LISTENERS = {
    "a-file": "socket.send_fds(control, [b'listening'], [os.open('/etc/passwd', 0)])",
    "a-unix-socket": "s = socket.socket(socket.AF_UNIX); socket.send_fds(control, [b'listening'], [s.fileno()])",
    "a-socket-that-does-not-listen": "s = socket.socket(); socket.send_fds(control, [b'listening'], [s.fileno()])",
    "none": "control.send(b'listening')",
    "two": "s = socket.create_server(('127.0.0.1', 0)); socket.send_fds(control, [b'listening'], [s.fileno()] * 2)",
    "a-refusal": "control.send(b'failed Address already in use')",
    "an-end": "sys.exit(0)",
}


@pytest.mark.parametrize("answer", LISTENERS)
def test_only_a_listening_tcp_socket_is_taken_for_one(tmp_path: Path, answer: str) -> None:
    async def ask() -> None:
        phase = await start(tmp_path, PEER + LISTENERS[answer] + "\ncontrol.recv(100)")
        try:
            with pytest.raises(SandboxError):
                await phase.listen(8000)
        finally:
            await phase.end()

    asyncio.run(ask())


NOISE = """
for _ in range(2000):
    control.send(b"exit 77 0")
for message in (b"exit", b"exit x y", b"killed 1 \\xff", b"\\xff\\xfe", b"ready", b" ", b"x" * 9000):
    control.send(message)
    socket.send_fds(control, [message], [0, 1, 2])
control.send(b"exit 1 " + b"9" * 3000)
control.recv(100)
"""


def test_noise_is_survived_and_an_exit_code_that_is_none_counts_as_killed(tmp_path: Path) -> None:
    async def run() -> int:
        phase = await start(tmp_path, PEER + NOISE)
        process = await phase.spawn(["true"], env={}, cwd="/", ids="", with_stdin=False)
        try:
            async with asyncio.timeout(20):
                return await process.wait()
        finally:
            await phase.end()
            process.pipes.close()

    assert asyncio.run(run()) == -9


def test_a_command_whose_sandbox_was_killed_has_no_exit_code(tmp_path: Path) -> None:
    async def run(end: Callable[[Phase], Awaitable[None]]) -> int:
        phase = await start(tmp_path, PEER + "control.recv(100)")
        process = await phase.spawn(["true"], env={}, cwd="/", ids="", with_stdin=False)
        try:
            await end(phase)
            async with asyncio.timeout(20):
                return await process.wait()
        finally:
            await phase.end()
            process.pipes.close()

    async def kill(phase: Phase) -> None:
        assert phase.init is not None
        os.kill(phase.init, signal.SIGKILL)

    with pytest.raises(SandboxError, match="killed from outside"):
        asyncio.run(run(kill))
    assert asyncio.run(run(Phase.end)) == -9


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('cannot mount')", "cannot mount"),
        ("import os, sys; os.write(int(sys.argv[2]), b'nonsense'); sys.exit('odd')", "odd"),
    ],
    ids=["at-once", "after-nonsense"],
)
def test_a_start_that_fails_says_what_was_said(tmp_path: Path, program: str, message: str) -> None:
    with pytest.raises(SandboxError, match=message):
        asyncio.run(start(tmp_path, program))


def test_limits_that_cannot_be_applied_are_an_error(tmp_path: Path) -> None:
    def refuse(_pid: int) -> None:
        raise PermissionError(13, "no such luck")

    async def begin() -> None:
        await Phase.start(
            lambda control, info, _: [sys.executable, "-c", PEER, str(control), str(info)], tmp_path / "log", refuse
        )

    with pytest.raises(SandboxError, match=r"limits could not be applied.*no such luck"):
        asyncio.run(begin())


def test_a_nul_byte_in_an_argument_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        phase = await start(tmp_path, PEER)
        try:
            with pytest.raises(SandboxError, match="NUL"):
                await phase.spawn(["echo", "a\0b"], env={}, cwd="/", ids="", with_stdin=True)
        finally:
            await phase.end()

    asyncio.run(run())
