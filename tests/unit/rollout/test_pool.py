from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.rollout.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


def test_all_work_runs_on_one_thread_that_stays(pool: Pool) -> None:
    async def where() -> int:
        return threading.get_ident()

    first, second = pool.run(where()), pool.run(where())
    assert first == second != threading.get_ident()


def test_an_error_comes_back_as_it_was(pool: Pool) -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        pool.run(fail())


def test_an_interrupt_lets_the_work_clean_up_first(pool: Pool) -> None:
    cleaned = threading.Event()
    begun = threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()

    def interrupt() -> None:
        begun.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        pool.run(work())
    assert cleaned.is_set()


def test_close_cancels_what_is_left_and_can_be_repeated() -> None:
    pool = Pool()
    ended = threading.Event()

    async def background() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def start() -> None:
        task = asyncio.get_running_loop().create_task(background())
        pool.kept = task  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    pool.run(start())
    pool.close()
    pool.close()
    assert ended.is_set()
