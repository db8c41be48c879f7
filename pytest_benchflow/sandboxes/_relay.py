"""Bring the model into a machine that only runs commands: a relay listens in there and talks to us over its pipes.

It needs no forwarding by the machine's own server, and Python 3.6 or Perl in there.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._frames import Frames, Stream, pump

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Endpoint, Process

_START_SEC = 30.0
_READY = b"\nrelay ready: "
_FAILED = b"\nrelay failed: "
# One script for all machines: which of them runs is known only in there.
_CHOOSE = """\
for python in python3 python; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null && exec "$python" -ISc "$2" "$1"
done
command -v perl >/dev/null && exec perl -e "$3" "$1"
echo; echo "relay failed: there is neither Python 3.6 nor Perl"
"""


def relay_command(port: int) -> list[str]:
    """Return what to run where the model is wanted, as an argument list; port 0 takes any that is free."""
    programs = [Path(__file__).with_name(name).read_text("utf-8") for name in ("_relay_program.py", "_relay.pl")]
    return ["sh", "-c", _CHOOSE, "relay", str(port), *programs]


class Relay:
    """A started relay: connections that are made in there come out at the endpoint."""

    def __init__(self, process: Process, port: int) -> None:
        self.port = port  # in there, on 127.0.0.1
        self._process = process
        self._endpoint_port = 0
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._frames = Frames(self._outgoing.put_nowait, self._accept)
        self._jobs: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, process: Process, endpoint: Endpoint) -> Relay:
        """Take a process that runs `relay_command` and serve what it accepts. Raises: SandboxError."""
        try:
            async with asyncio.timeout(_START_SEC):
                port, rest = await _ready(process)
        except BaseException as error:
            await asyncio.shield(process.kill())
            if isinstance(error, TimeoutError):
                raise SandboxError(f"the relay to the model did not start in {_START_SEC:.0f} s") from error
            raise
        relay = cls(process, port)
        relay._endpoint_port = await endpoint.port()
        for work in (relay._read(rest), relay._write(), relay._drain()):
            relay._keep(asyncio.ensure_future(work))
        return relay

    def _keep(self, job: asyncio.Task[None]) -> None:
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _read(self, data: bytes) -> None:
        why = "the relay ended"
        try:
            self._frames.feed(data)
            while data := await self._process.read():
                self._frames.feed(data)
        except (OSError, SandboxError) as error:
            why = str(error)
        self._frames.lose(why)

    async def _write(self) -> None:
        with contextlib.suppress(OSError, SandboxError):
            while True:
                data = [await self._outgoing.get()]
                while not self._outgoing.empty():
                    data.append(self._outgoing.get_nowait())
                await self._process.write(b"".join(data))

    async def _drain(self) -> None:
        with contextlib.suppress(OSError, SandboxError):
            while await self._process.read_stderr():
                pass

    def _accept(self, stream: Stream, _purpose: bytes) -> None:
        self._keep(asyncio.ensure_future(self._serve(stream)))

    async def _serve(self, stream: Stream) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._endpoint_port)
        except OSError:
            stream.close()
            return
        await pump(stream, reader, writer)

    async def close(self) -> None:
        """End the relay and every connection; safe to call twice."""
        self._frames.lose("the relay was closed")
        jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await self._process.kill()


async def _ready(process: Process) -> tuple[int, bytes]:
    """Read until the relay listens; return its port and what came after that. A login's greeting may come first."""
    found = b""
    while chunk := await process.read():
        found += chunk
        for word in (_READY, _FAILED):
            _, seen, rest = found.partition(word)
            if seen and b"\n" in rest:
                line, _, rest = rest.partition(b"\n")
                if word is _READY:
                    return int(line), rest
                raise SandboxError(f"the relay to the model cannot run there: {line.decode(errors='replace')}")
    said = (found + await process.read_stderr())[-300:].decode(errors="backslashreplace").strip()
    raise SandboxError(f"the relay to the model ended at once: {said or 'it said nothing'}")
