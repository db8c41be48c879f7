"""A command's output is whole, also where a slow way brings it after the command's end."""

from __future__ import annotations

import asyncio

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._running import run_to_end


class Ended:
    """A command that has ended; its output comes in pieces, each after a while, and then has an end or not."""

    def __init__(self, pieces: int, pause: float, *, ends: bool) -> None:
        self._left = pieces
        self._pause = pause
        self._ends = ends

    async def read(self, limit: int = 65536) -> bytes:  # noqa: ARG002 - pieces are small
        if not self._left:
            if not self._ends:
                await asyncio.Event().wait()
            return b""
        await asyncio.sleep(self._pause)
        self._left -= 1
        return b"piece "

    async def read_stderr(self, limit: int = 65536) -> bytes:  # noqa: ARG002 - there are none
        return b""

    async def write(self, data: bytes) -> None:
        """Take it."""

    async def close_stdin(self) -> None:
        """Do nothing."""

    async def wait(self) -> int:
        return 0

    async def kill(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "held-open"])
def test_what_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    monkeypatch.setattr("pytest_benchflow.sandboxes._running._GRACE_SEC", 0.2)
    result = asyncio.run(run_to_end(Ended(9, 0.05, ends=ends), None, 60))
    assert (result.exit_code, result.stdout) == (0, "piece " * 9)


def test_what_was_said_until_the_sandbox_was_lost_is_kept() -> None:
    class Lost(Ended):
        async def wait(self) -> int:
            await asyncio.sleep(0.05)
            raise SandboxError("it is lost")

    with pytest.raises(SandboxError, match="it is lost") as caught:
        asyncio.run(run_to_end(Lost(3, 0.001, ends=True), None, 60))
    assert caught.value.said == ("piece " * 3, "")


def test_what_goes_on_talking_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_benchflow.sandboxes._running._LATE_SEC", 0.2)
    result = asyncio.run(run_to_end(Ended(10**9, 0.01, ends=False), None, 60))
    assert result.exit_code == 0
    assert result.stdout.startswith("piece piece ")
