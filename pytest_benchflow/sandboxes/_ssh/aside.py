"""Run what belongs to connections on a loop of its own, so that callers may have any loop, or none."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_benchflow.records.turns import hand_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")


class Aside:
    """A loop in a thread of its own, from its first use until this process ends."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="benchflow-aside", daemon=True).start()
            return self._loop

    async def run(self, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Run a coroutine there and return its result; when this is cancelled, so is it, and its end is waited for.

        `undo` gets a result that came too late for that.
        """
        loop = self._started()
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            task = loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(lambda finished: hand_on(finished, done))

        def stop() -> None:
            tasks[0].cancel()

        loop.call_soon_threadsafe(start)
        try:
            return await asyncio.shield(waiting := asyncio.wrap_future(done))
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(stop)
            await asyncio.wait([waiting])
            if not waiting.cancelled() and waiting.exception() is None and undo is not None:
                await asyncio.shield(undo(waiting.result()))
            raise

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result without a loop."""
        return asyncio.run_coroutine_threadsafe(work, self._started()).result()
