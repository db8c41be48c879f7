"""Drive coroutines from test items: one long-lived background thread with one asyncio loop per process.

Sandboxes are spawned from this thread, because bubblewrap's die-with-parent follows the thread, not the process.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_benchflow.records.turns import hand_on

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_CLEAN_UP_SEC = 60.0
_MEANWHILE_SEC = 0.1


class Pool:
    """A background event loop; made on first use, ended by `close`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(
        self,
        work: Coroutine[Any, Any, T],
        *,
        meanwhile: Callable[[], None] | None = None,
        interrupted: Callable[[], None] | None = None,
    ) -> T:
        """Run a coroutine on the loop and return its result; `meanwhile` is called here, now and then, until it ends.

        When the waiting thread is interrupted, the coroutine is cancelled and given time to clean up first;
        `interrupted` is called on the loop then, if it was by the user.
        """
        loop = self._started()
        done: Future[T] = Future()
        holder: list[asyncio.Task[T]] = []

        def start() -> None:
            task = loop.create_task(work)
            holder.append(task)
            task.add_done_callback(lambda finished: hand_on(finished, done))

        def stop() -> None:
            if holder:
                holder[0].cancel()
            else:  # interrupted before it was handed over
                work.close()
                done.set_exception(asyncio.CancelledError())

        # An interrupt may come at any point, also between the hand-over and the wait.
        try:
            loop.call_soon_threadsafe(start)
            while meanwhile and not wait([done], _MEANWHILE_SEC).done:
                meanwhile()
            return done.result()
        except BaseException as error:
            if interrupted and isinstance(error, KeyboardInterrupt):
                loop.call_soon_threadsafe(interrupted)
            if not done.done():
                loop.call_soon_threadsafe(stop)
                done.exception(timeout=_CLEAN_UP_SEC)
            raise

    def close(self) -> None:
        """Cancel what still runs, end the loop and its thread; safe to call twice."""
        if self._loop is None or self._thread is None:
            return
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(_cancel_rest(), loop).result(timeout=_CLEAN_UP_SEC)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=_CLEAN_UP_SEC)
        loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="benchflow", daemon=True)
            self._thread.start()
        return self._loop


async def _cancel_rest() -> None:
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
