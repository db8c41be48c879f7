"""Run one command over an SSH connection and carry its bytes between paramiko's threads and a loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class SshPipe:
    """A started command. `heard` gets what it says, b"" when it or the connection has ended; both on the loop."""

    def __init__(self, channel: Any, heard: Callable[[bytes], None]) -> None:
        self._channel = channel
        self._heard = heard
        self.complaint = ""  # of a command that has ended
        self._loop = asyncio.get_running_loop()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for work in (self._read, self._write):
            threading.Thread(target=work, name="benchflow-ssh", daemon=True).start()

    @classmethod
    async def start(cls, client: Any, command: str, heard: Callable[[bytes], None]) -> SshPipe:
        """Start a command. Raises: OSError, EOFError, paramiko.SSHException."""

        def begin() -> Any:
            channel = client.get_transport().open_session(timeout=30)
            channel.exec_command(command)
            return channel

        return cls(await asyncio.to_thread(begin), heard)

    def write(self, data: bytes) -> None:
        """Send to its stdin, in order, without waiting."""
        self._outgoing.put(data)

    def close(self) -> None:
        """Send what is left and let go of it; safe to call twice."""
        self._outgoing.put(None)

    def _read(self) -> None:
        data = b"?"
        while data:
            try:
                data = self._channel.recv(1 << 16)
                if not data:
                    self.complaint = self._channel.recv_stderr(1 << 16).decode(errors="replace").strip()[-600:]
            except Exception:  # whatever kind a library's error is, the connection is gone
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._heard, data)
            except RuntimeError:  # the loop is gone, and with it whoever listened
                return

    def _write(self) -> None:
        while (data := self._outgoing.get()) is not None:
            while not self._outgoing.empty() and len(data) < 1 << 18:
                more = self._outgoing.get()
                if more is None:
                    self._outgoing.put(None)
                    break
                data += more
            try:
                self._channel.sendall(data)
            except Exception:  # as above
                break
        with contextlib.suppress(Exception):
            self._channel.close()
