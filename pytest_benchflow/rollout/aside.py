"""Do in threads what would hold up the loop, such as writing a file, and see it through."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_benchflow.records.turns import in_turn

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def aside(work: Callable[..., T], *args: Any) -> T:
    """Do something in a thread, to its end also where it is cancelled."""
    result, interrupted = await whole(asyncio.ensure_future(asyncio.to_thread(in_turn, work, *args)), lambda: False)
    if interrupted:
        raise asyncio.CancelledError
    return result


async def whole(job: asyncio.Future[T], drop: Callable[[], bool]) -> tuple[T, bool]:
    """Return (result, whether it was interrupted); what `drop` could still keep from beginning is not waited for."""
    interrupted = False
    while not job.done():
        try:
            await asyncio.wait([job])
        except asyncio.CancelledError:
            if drop():
                raise
            interrupted = True
    return job.result(), interrupted
