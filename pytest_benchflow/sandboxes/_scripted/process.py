"""A command that is answered and not run."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytest_benchflow.sandboxes._scripted.answers import Answer


class ScriptedProcess:
    """Says at once what it has to say, and ends when its time is over; `at_end` is what it does last."""

    def __init__(self, answer: Answer, at_end: Callable[[], Awaitable[None]]) -> None:
        self._out, self._err = answer.stdout.encode(), answer.stderr.encode()
        self._work = asyncio.create_task(self._live(answer, at_end))
        # Who waits is told of an error; of a command that nobody waits for it is nobody's.
        self._work.add_done_callback(lambda work: work.cancelled() or work.exception())

    async def _live(self, answer: Answer, at_end: Callable[[], Awaitable[None]]) -> int:
        if answer.seconds:
            await asyncio.sleep(answer.seconds)
        await at_end()
        return answer.exit_code

    def when_ended(self, tell: Callable[[ScriptedProcess], None]) -> None:
        """Tell somebody of its end."""
        self._work.add_done_callback(lambda _: tell(self))

    async def write(self, data: bytes) -> None:
        """Take input, which nobody reads. Raises: BrokenPipeError when it has ended."""
        del data
        await asyncio.sleep(0)
        if self._work.done():
            raise BrokenPipeError("the command has ended")

    async def close_stdin(self) -> None:
        """Do nothing: nobody reads it."""

    async def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of what it says; b"" when it has ended."""
        data, self._out = self._out[:limit], self._out[limit:]
        if not data:
            await asyncio.wait([self._work])
        return data

    async def read_stderr(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of its complaints; b"" when it has ended."""
        data, self._err = self._err[:limit], self._err[limit:]
        if not data:
            await asyncio.wait([self._work])
        return data

    async def wait(self) -> int:
        """Wait for the end and return the exit code (negative: it was killed)."""
        await asyncio.wait([self._work])
        return -signal.SIGKILL if self._work.cancelled() else self._work.result()

    async def kill(self) -> None:
        """End it now."""
        self._work.cancel()
        await asyncio.wait([self._work])

    def close(self) -> None:
        """Free nothing: there are no pipes."""
