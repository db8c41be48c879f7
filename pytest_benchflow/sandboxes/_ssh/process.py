"""A command over SSH as a live process: its streams come from paramiko's threads, and wait when nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_WAITING = 16  # pieces that were received and not read yet


class SshProcess:
    """As contracts.Process says; `end` kills what it started, which the server does not."""

    def __init__(self, channel: Any, end: Callable[[], Awaitable[None]], where: str) -> None:
        self._channel = channel
        self._end = end
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._killed = False
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._queues: dict[str, asyncio.Queue[bytes]] = {}
        self._rest = {"out": bytearray(), "err": bytearray()}
        for name, receive in (("out", channel.recv), ("err", channel.recv_stderr)):
            self._queues[name] = asyncio.Queue(_WAITING)
            self._thread(self._read, receive, self._queues[name])
        self._thread(self._watch)

    @classmethod
    async def start(cls, client: Any, line: str, end: Callable[[], Awaitable[None]], where: str) -> SshProcess:
        """Run one line of the login shell's. Raises: SandboxError."""

        def begin() -> Any:
            channel = client.get_transport().open_session(timeout=30)
            channel.exec_command(line)
            return channel

        beginning = asyncio.ensure_future(asyncio.to_thread(begin))
        try:
            return cls(await asyncio.shield(beginning), end, where)
        except asyncio.CancelledError:
            await asyncio.wait([beginning])
            if not beginning.cancelled() and beginning.exception() is None:
                beginning.result().close()
            raise
        except Exception as error:  # a library's error of whatever kind
            raise SandboxError(f"the connection to {where} was lost: {error or type(error).__name__}") from error

    def _thread(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, name="benchflow-ssh", daemon=True).start()

    def _read(self, receive: Callable[[int], bytes], queue: asyncio.Queue[bytes]) -> None:
        data = b"?"
        while data:
            try:
                data = receive(1 << 16)
            except Exception:  # the connection is gone
                data = b""
            try:
                asyncio.run_coroutine_threadsafe(queue.put(data), self._loop).result()
            except BaseException:  # so is the loop, and with it whoever would read
                return

    def _watch(self) -> None:
        self._channel.status_event.wait()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self._ended.done():
            return
        transport = self._channel.get_transport()
        if self._channel.exit_status >= 0:
            self._ended.set_result(-signal.SIGKILL if self._killed else self._channel.exit_status)
        elif self._killed or (transport is not None and transport.is_active()):
            self._ended.set_result(-signal.SIGKILL)  # the server told of a signal, not of a code
        else:
            self._ended.set_exception(SandboxError(f"the connection to {self._where} was lost"))

    async def write(self, data: bytes) -> None:
        """Write to stdin and drain. Raises: BrokenPipeError when the process is gone."""
        try:
            await asyncio.to_thread(self._channel.sendall, data)
        except Exception as error:  # a library's error of whatever kind
            raise BrokenPipeError("the process takes no more") from error

    async def close_stdin(self) -> None:
        """Close stdin."""
        with contextlib.suppress(Exception):
            await asyncio.to_thread(self._channel.shutdown_write)

    async def read(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stdout as soon as there are any; b"" at its end. Raises: SandboxError."""
        return await self._next("out", limit)

    async def read_stderr(self, limit: int = 65536) -> bytes:
        """Return up to `limit` bytes of stderr as soon as there are any; b"" at its end."""
        return await self._next("err", limit)

    async def _next(self, name: str, limit: int) -> bytes:
        rest, queue = self._rest[name], self._queues[name]
        if not rest:
            data = await queue.get()
            if not data:
                queue.put_nowait(b"")  # the end stays the end
                if name == "out" and self._is_cut:  # to tell so once is enough
                    raise SandboxError(f"the connection to {self._where} was lost")
                return b""
            rest += data
        found = bytes(rest[:limit])
        del rest[:limit]
        return found

    @property
    def _is_cut(self) -> bool:
        """Tell whether its output ended because the connection did."""
        transport = self._channel.get_transport()
        told = self._killed or self._channel.exit_status >= 0
        return not told and (transport is None or not transport.is_active())

    async def wait(self) -> int:
        """Wait for the end and return the exit code (negative: the signal). Raises: SandboxError without connection."""
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        """Kill the process and everything it started; return when they are dead."""
        self._killed = True
        await self._end()
        self.close()
        with contextlib.suppress(SandboxError):
            await self.wait()

    def doom(self) -> None:
        """Take its end for a kill: its phase is over."""
        self._killed = True

    def close(self) -> None:
        """Let go of its streams; safe to call twice."""
        with contextlib.suppress(Exception):
            self._channel.close()
