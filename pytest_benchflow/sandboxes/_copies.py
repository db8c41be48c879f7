"""Run what copies files of a sandbox in threads, and know when all of it has ended."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.turns import in_turn

if TYPE_CHECKING:
    from collections.abc import Callable


class Copies:
    """The copies of one sandbox that are under way; false when there are none."""

    def __init__(self) -> None:
        self._jobs: set[asyncio.Future[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    async def run(self, copy: Callable[..., None], *args: Any) -> None:
        """Run a copy in a thread; a cancelled one goes on, and `ended` waits for it."""
        job = asyncio.get_running_loop().run_in_executor(None, functools.partial(in_turn, copy, *args))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        await asyncio.shield(job)

    async def ended(self) -> None:
        """Wait until none is under way."""
        while self._jobs:
            await asyncio.wait(self._jobs)
