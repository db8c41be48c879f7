"""The relay carries connections made in a machine to the endpoint here, by Python and by Perl alike."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._relay import Relay, relay_command
from tests.contracts.sandboxrig import EchoEndpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

PROGRAMS = {"python": ("python3", "sh"), "perl": ("perl", "sh")}


class PipedProcess:
    """A process of this machine, as contracts.Process says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    async def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def read(self, limit: int = 65536) -> bytes:
        assert self.process.stdout is not None
        return await self.process.stdout.read(limit)

    async def read_stderr(self, limit: int = 65536) -> bytes:
        assert self.process.stderr is not None
        return await self.process.stderr.read(limit)

    async def wait(self) -> int:
        return await self.process.wait()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()


@pytest.fixture(params=PROGRAMS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a PATH that has one of the programs and a shell only."""
    for name in PROGRAMS[request.param]:
        found = shutil.which(name, path="/usr/bin:/bin") or shutil.which(name)
        if found is None:
            pytest.skip(f"{name} is not installed")
        (tmp_path / name).symlink_to(os.path.realpath(found))
    return str(tmp_path)


async def run(path: str, port: int = 0) -> PipedProcess:
    pipe = asyncio.subprocess.PIPE
    command = relay_command(port)
    command[0] = f"{path}/sh"
    return PipedProcess(
        await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env={"PATH": path})
    )


def with_relay(path: str, endpoint: Any, work: Callable[[Relay], Awaitable[None]]) -> None:
    async def main() -> None:
        relay = await Relay.start(await run(path), endpoint)
        try:
            await work(relay)
        finally:
            await relay.close()
            await endpoint.close()

    asyncio.run(main())


async def ask(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


class DigestEndpoint(EchoEndpoint):
    """Answers when everything has been sent, with a digest and as many bytes again."""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(hashlib.sha256(data).digest() + data)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


class SilentEndpoint(EchoEndpoint):
    """Takes connections and lets go of each at once."""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG002
        writer.transport.abort()


def test_many_connections_at_once_are_answered(path: str) -> None:
    async def work(relay: Relay) -> None:
        assert await asyncio.gather(*(ask(relay.port) for _ in range(50))) == ["echo\n"] * 50

    with_relay(path, EchoEndpoint(), work)


def test_megabytes_go_both_ways_and_an_end_one_way_is_passed_on(path: str) -> None:
    data = os.urandom(1 << 16) * 48

    async def work(relay: Relay) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(data)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer[:32] == hashlib.sha256(data).digest()
        assert answer[32:] == data

    with_relay(path, DigestEndpoint(), work)


def test_a_connection_that_the_endpoint_drops_ends_in_there(path: str) -> None:
    async def work(relay: Relay) -> None:
        with contextlib.suppress(ConnectionError):
            assert await ask(relay.port) == ""

    with_relay(path, SilentEndpoint(), work)


def test_it_ends_with_its_stdin(path: str) -> None:
    async def work() -> int:
        process = await run(path)
        await process.read()
        await process.close_stdin()
        async with asyncio.timeout(20):
            return await process.wait()

    assert asyncio.run(work()) == 0


def test_a_taken_port_is_told(path: str) -> None:
    async def work() -> None:
        endpoint = EchoEndpoint()
        taken = await endpoint.port()
        with pytest.raises(SandboxError, match=rf"port {taken}: .*use"):
            await Relay.start(await run(path, taken), endpoint)
        await endpoint.close()

    asyncio.run(work())


def test_a_machine_without_either_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to(os.path.realpath("/bin/sh"))

    async def work() -> None:
        with pytest.raises(SandboxError, match=r"neither Python 3\.6 nor Perl"):
            await Relay.start(await run(str(tmp_path)), EchoEndpoint())

    asyncio.run(work())
