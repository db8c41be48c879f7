"""See a command in a sandbox through to its end, whatever kind of sandbox it is in."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from pytest_benchflow.contracts import ExecResult, Process
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._pipes import Collected

if TYPE_CHECKING:
    from collections.abc import Sequence

_GRACE_SEC = 0.5
# As long as a slow way brings what a command said before it ended; what it left running may go on talking.
_LATE_SEC = 5.0


class ClosableProcess(Process, Protocol):
    """A process whose streams the host can let go of."""

    def close(self) -> None:
        """Free the host's ends of its streams; safe to call twice."""


async def run_to_end(process: ClosableProcess, stdin: bytes | None, timeout: float | None) -> ExecResult:
    """Feed a command, collect its output and wait for its end; it is killed when its time is up or this is cancelled.

    Output beyond 16 MiB of a stream is cut in its middle. What is left running keeps running. Raises: SandboxError,
    which holds what was said until the sandbox was lost.
    """
    out, err = Collected(), Collected()
    try:
        code = await _run(process, stdin, timeout, (out, err))
    except SandboxError as error:
        error.said = (out.text(), err.text())
        raise
    return ExecResult(exit_code=code, stdout=out.text(), stderr=err.text(), timed_out=code is None)


async def _run(
    process: ClosableProcess, stdin: bytes | None, timeout: float | None, streams: tuple[Collected, Collected]
) -> int | None:
    """Return the exit code, None when the time was up."""
    out, err = streams
    jobs = [asyncio.create_task(out.fill(process.read)), asyncio.create_task(err.fill(process.read_stderr))]
    if stdin is not None:
        jobs.append(asyncio.create_task(_feed(process, stdin)))
    code: int | None = None
    try:
        async with asyncio.timeout(timeout):
            code = await process.wait()
    except TimeoutError:
        await process.kill()
    except BaseException:
        await process.kill()
        raise
    finally:
        await _end_jobs(jobs, streams)
        process.close()
    return code


async def _end_jobs(jobs: Sequence[asyncio.Task[None]], collected: Sequence[Collected]) -> None:
    """Let output end by itself while it comes: a background process may hold the pipes open for ever."""
    clock = asyncio.get_running_loop()
    until = clock.time() + _LATE_SEC
    try:
        while clock.time() < until:
            before = [each.count for each in collected]
            _, going = await asyncio.wait(jobs, timeout=_GRACE_SEC)
            if not going or before == [each.count for each in collected]:
                break
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


async def _feed(process: Process, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        await process.write(data)
    await process.close_stdin()
