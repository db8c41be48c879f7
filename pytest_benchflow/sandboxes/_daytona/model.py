"""Keep the way to the model open: a relay through SSH, begun again where the connection breaks."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._daytona.lost import DeletedError
from pytest_benchflow.sandboxes._relay import Relay, relay_command

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Endpoint
    from pytest_benchflow.sandboxes._daytona.box import Box
    from pytest_benchflow.sandboxes._daytona.ssh import SshProcess

PORT = 8000
_AGAIN = 20
_PAUSE_SEC = 1.0


class ModelWay:
    """An endpoint as seen in a sandbox, for as long as a phase lasts."""

    url = f"http://127.0.0.1:{PORT}"

    def __init__(self, box: Box, endpoint: Endpoint) -> None:
        self._box = box
        self._endpoint = endpoint
        self._relay: Relay | None = None
        self._keeping: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, box: Box, endpoint: Endpoint) -> ModelWay:
        """Start the relay. Raises: SandboxError."""
        way = cls(box, endpoint)
        process = await way._start()
        way._keeping = asyncio.create_task(way._keep(process))
        return way

    async def _start(self) -> SshProcess:
        link = await self._box.link()
        process = await link.spawn(shlex.join(relay_command(PORT)))
        self._relay = await Relay.start(process, self._endpoint)
        return process

    async def _keep(self, process: SshProcess) -> None:
        """Begin again when the connection breaks; requests that were under way are the client's to repeat."""
        for _ in range(_AGAIN):
            await process.wait()
            await self._end()
            while True:
                await asyncio.sleep(_PAUSE_SEC)
                try:
                    process = await self._start()
                    break
                except DeletedError:  # whoever works in it is told
                    return
                except SandboxError:
                    # The port is free when the far side has noticed, too.
                    continue

    async def _end(self) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            await relay.close()

    async def close(self) -> None:
        """End the relay and every connection through it; safe to call twice."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._end()
