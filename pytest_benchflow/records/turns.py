"""Let threads that work on files take turns: each gives the interpreter up at every system call, and wants it back.

And hand what came of a task to a thread that waits for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")

LONGEST_WAIT_SEC = 0.02

_turn = threading.Lock()


def in_turn(work: Callable[..., T], *args: Any) -> T:
    """Do something while no other thread does; after 20 ms at once, so that what takes long holds up nobody."""
    ours = _turn.acquire(timeout=LONGEST_WAIT_SEC)
    try:
        return work(*args)
    finally:
        if ours:
            _turn.release()


def hand_on(task: asyncio.Task[T], done: Future[T]) -> None:
    """Let a future have what came of a task that has ended."""
    import asyncio

    if task.cancelled():
        done.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())
