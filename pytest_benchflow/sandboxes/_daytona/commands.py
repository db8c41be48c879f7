"""Run commands in a Daytona sandbox, each in a session of its own, and see that they and their sessions end."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_benchflow.contracts import ExecResult
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._daytona.process import DaytonaProcess
from pytest_benchflow.sandboxes._daytona.scripts import (
    BRIDGE,
    END_PHASE,
    KILL,
    PROCESSES,
    RUN_VARIABLE,
    program,
)
from pytest_benchflow.sandboxes._daytona.window import SshWindow, TerminalWindow
from pytest_benchflow.sandboxes._pipes import HEAD_BYTES, TAIL_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pytest_benchflow.sandboxes._daytona.box import Box
    from pytest_benchflow.sandboxes._daytona.window import Window

_FIRST_LOOK_SEC = 0.05
_LOOK_SEC = 1.0
_GROWTH = 1.5
_KILL_SEC = 20.0
_LOST_LOOKS = 10  # so often a command's end is looked for before its shell is


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, as whom, and where; `ids` is "uid gid", empty for root."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    ids: str = ""
    stdin: bytes | None = None


@dataclass(slots=True)
class _Run:
    """A started command: its files, its session, and the mark of its processes."""

    directory: str
    session: str
    mark: str
    command: str = ""  # Daytona's id of it
    kept: bool = field(default=False)  # something of it lives on


class Commands:
    """The commands of one sandbox. Marks tell them apart; the start of all of them tells them from others' programs."""

    def __init__(self, box: Box, transport: str, name: str) -> None:
        self._box = box
        self._transport = transport
        self._token = f"{secrets.token_hex(6)}-{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}"
        self._numbers = itertools.count(1)
        self._own_processes = " "
        self._processes: list[DaytonaProcess] = []
        self._runs: list[_Run] = []

    async def prepare(self) -> None:
        """Put in place what every command needs, and see what runs before any of them."""
        await self._box.put({f"{self._box.place}/bridge": BRIDGE.encode()})
        await self._box.shell('chmod 700 "$1"', self._box.place)
        self._own_processes = f" {' '.join((await self._box.shell(PROCESSES)).split())} "

    async def _start(self, command: Command, *, lives: bool) -> _Run:
        mark = f"{self._token}-{next(self._numbers)}"
        run = _Run(f"{self._box.place}/{mark}", f"benchflow-{mark}", mark)
        stdin = None if lives else "in" if command.stdin is not None else "/dev/null"
        text = program(
            command.argv,
            env=command.env,
            cwd=command.cwd,
            ids=command.ids,
            mark=mark,
            stdin=stdin,
            directory=run.directory,
        )
        files = {f"{run.directory}/run": text.encode()}
        if command.stdin is not None:
            files[f"{run.directory}/in"] = command.stdin
        self._runs.append(run)
        await self._box.put(dict(files))
        run.command = await self._box.begin(run.session, shlex.join(["sh", f"{run.directory}/run"]))
        return run

    async def exec(self, command: Command, timeout: float | None) -> ExecResult:
        """Run a command to its end, or until its time is up: then it is killed with all it started."""
        starting = asyncio.ensure_future(self._start(command, lives=False))
        try:
            run = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                await asyncio.shield(self._cut_short(starting.result()))
            raise
        timed_out = False
        try:
            async with asyncio.timeout(timeout):
                await self._ended(run)
        except TimeoutError:
            timed_out = True
            await asyncio.shield(self._kill_run(run))
        except asyncio.CancelledError:
            await asyncio.shield(self._cut_short(run))
            raise
        return await self._result(run, timed_out=timed_out)

    async def _cut_short(self, run: _Run) -> None:
        await self._kill_run(run)
        await self._forget(run)

    async def _ended(self, run: _Run) -> None:
        """Wait until a command has ended; one whose shell was killed has, too."""
        pause, looks = _FIRST_LOOK_SEC, 0
        while await self._box.code(run.session, run.command) is None:
            await asyncio.sleep(pause)
            pause = min(pause * _GROWTH, _LOOK_SEC)
            looks += 1
            if looks % _LOST_LOOKS == 0:
                script = 'cd "$1" && [ -e code ] || [ -d "/proc/$(cat pid)" ] || echo gone'
                if (await self._box.shell(script, run.directory)).strip() == "gone":
                    return

    async def _kill_run(self, run: _Run) -> None:
        """Kill a command with everything it started, and see its end; else all of the phase is killed."""
        until = asyncio.get_running_loop().time() + _KILL_SEC
        while asyncio.get_running_loop().time() < until:
            said = (await self._box.shell(KILL, f"{RUN_VARIABLE}={run.mark}")).strip()
            try:
                # It may not have carried its mark yet when it was looked for.
                async with asyncio.timeout(1.0):
                    await self._ended(run)
            except TimeoutError:
                continue
            if said == "none" or (await self._box.shell(KILL, f"{RUN_VARIABLE}={run.mark}")).strip() == "none":
                return
        await self.end_phase()

    async def _result(self, run: _Run, *, timed_out: bool) -> ExecResult:
        names = [f"{run.directory}/{name}" for name in ("code", "left", "sizes", "out.kept", "err.kept")]
        found = await self._box.get(names)
        code, left, sizes, out, err = (found.get(name, b"") for name in names)
        total = [int(word) for word in sizes.split()] or [0, 0]
        kept = [min(size, HEAD_BYTES + TAIL_BYTES) for size in total]
        if code.strip() and [len(out), len(err)] != kept:
            raise SandboxError(f"a command left {kept} bytes of output, and {len(out)} and {len(err)} came")
        run.kept = left.strip() not in (b"0", b"") and not timed_out
        await self._forget(run)
        # Its shell was killed by what it ran when there is no code.
        known = int(code) if code.strip() else -9
        return ExecResult(
            exit_code=None if timed_out else known,
            stdout=_text(out, total[0]),
            stderr=_text(err, total[-1]),
            timed_out=timed_out,
        )

    async def _forget(self, run: _Run) -> None:
        """Delete the session and the files of a command that left nothing running; of others when the phase ends."""
        if not run.kept:
            self._runs.remove(run)
            await self._box.end_session(run.session)
            await self._box.remove(run.directory)

    async def spawn(self, command: Command) -> DaytonaProcess:
        """Start a command and return it alive."""
        starting = asyncio.ensure_future(self._live(command))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                await asyncio.shield(starting.result().kill())
            raise

    async def _live(self, command: Command) -> DaytonaProcess:
        run = await self._start(command, lives=True)

        async def kill(process: DaytonaProcess) -> None:
            process.doom()
            until = asyncio.get_running_loop().time() + _KILL_SEC
            while not process.ended and asyncio.get_running_loop().time() < until:
                await self._box.shell(KILL, f"{RUN_VARIABLE}={run.mark}")
                if await process.ends_within(1.0):
                    break
            if (await self._box.shell(KILL, f"{RUN_VARIABLE}={run.mark}")).strip() != "none" or not process.ended:
                await self.end_phase()

        process = DaytonaProcess(self._box, run.directory, run.session, self._window(run), kill)
        self._processes.append(process)
        try:
            await process.attach()
        except BaseException:
            await asyncio.shield(self._box.shell(KILL, f"{RUN_VARIABLE}={run.mark}"))
            raise
        return process

    def _window(self, run: _Run) -> Callable[[str, int, Callable[[bytes], Awaitable[None]]], Awaitable[Window]]:
        count = itertools.count(1)

        async def open_window(directory: str, position: int, take: Callable[[bytes], Awaitable[None]]) -> Window:
            if self._transport == "ssh":
                return await SshWindow.open(self._box, directory, position, take)
            name = f"{run.session}-{next(count)}"
            return await TerminalWindow.open(self._box, name, directory, position, take)

        return open_window

    async def end_phase(self) -> None:
        """Kill every process but those of the sandbox itself, see them dead, and delete all sessions of ours.

        Raises: SandboxError when one lives on.
        """
        for process in self._processes:
            process.doom()
        said = (await self._box.shell(END_PHASE, self._own_processes)).strip()
        if said == "shared":
            said = (await self._box.shell(KILL, f"{RUN_VARIABLE}={self._token}-")).strip()
        if said != "none":
            raise SandboxError(f"a process of the phase before cannot be killed: {said[:200]}")
        processes, self._processes = self._processes, []
        for process in processes:
            await process.died()
        runs, self._runs = self._runs, []
        for run in runs:
            await self._box.end_session(run.session)
        if runs:
            await self._box.shell('cd "$1" && rm -rf ./*-*', self._box.place)

    async def close(self) -> None:
        """Let go of all processes on this side."""
        processes, self._processes = self._processes, []
        for process in processes:
            await process.close()


def _text(data: bytes, total: int) -> str:
    """Return output as text; of one that was too long, its head and its tail came."""
    if total <= HEAD_BYTES + TAIL_BYTES:
        return data.decode(errors="backslashreplace")
    head, tail = data[:HEAD_BYTES], data[HEAD_BYTES:]
    note = f"\n[{total - len(data)} bytes left out here]\n"
    return head.decode(errors="backslashreplace") + note + tail.decode(errors="backslashreplace")
