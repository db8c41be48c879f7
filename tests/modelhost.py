"""Serve an invented model from a thread of this process, for tests that start pytest."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_benchflow.proxy.serve import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Upstream


@contextmanager
def served(upstream: Upstream) -> Iterator[str]:
    """Serve an upstream and yield its base URL, which ends in /v1."""
    loop, over = asyncio.new_event_loop(), asyncio.Event()
    urls: list[str] = []
    ready = threading.Event()

    async def serve() -> None:
        async with serving(upstream) as url:
            urls.append(url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
