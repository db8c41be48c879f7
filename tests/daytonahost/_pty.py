"""Terminals: a login shell each, to which clients connect over a WebSocket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import os
import pty
import struct
import termios
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

from tests.daytonahost._faults import RefusedError, refusal
from tests.daytonahost._records import stamp
from tests.daytonahost._world import World, entered, kill_tree

if TYPE_CHECKING:
    from tests.daytonahost._host import Plane
    from tests.daytonahost._records import Sandbox

_EXIT_CONTROL = "X-Daytona-Pty-Exit-Control"
_ENVS = "X-Daytona-Pty-Envs~"
_MESSAGE = 64 << 10


@dataclass(slots=True)
class Silence:
    """From the frame that holds `mark` on, nothing comes through: neither output nor the news of an end."""

    mark: bytes
    connections: int = 1  # how many connections of a terminal go silent; a later one hears again


@dataclass(slots=True)
class Pty:
    """One terminal and who is connected to it."""

    id: str
    created: str
    cwd: str
    master: int
    process: asyncio.subprocess.Process
    envs: dict[str, str]
    cols: int = 80
    rows: int = 24
    silence: Silence | None = None
    code: int | None = None
    clients: dict[web.WebSocketResponse, bool] = field(default_factory=dict)  # whether each hears of an exit
    silent: set[web.WebSocketResponse] = field(default_factory=set)
    tail: bytes = b""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def dto(self) -> dict[str, Any]:
        """Return the terminal as the toolbox writes it."""
        return {
            "id": self.id, "active": self.code is None, "cols": self.cols, "rows": self.rows, "cwd": self.cwd,
            "createdAt": self.created, "envs": self.envs, "lazyStart": False,
        }  # fmt: skip

    def resize(self, cols: int, rows: int) -> None:
        """Set the size in characters."""
        self.cols, self.rows = cols, rows
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    async def pump(self) -> None:
        """Send to every client what the terminal shows, and at the end the exit code."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.master, readable.set)
        try:
            while await self._forward(readable):
                pass
        finally:
            loop.remove_reader(self.master)
            self.code = await self.process.wait()
            os.close(self.master)
            self.ended.set()

    async def _forward(self, readable: asyncio.Event) -> bool:
        await readable.wait()
        readable.clear()
        try:
            data = os.read(self.master, _MESSAGE)
        except BlockingIOError:
            return True
        except OSError:  # nobody has the other side open any more
            return False
        seen = self.tail + data
        quiet = self.silence is not None and self.silence.mark in seen
        self.tail = seen[-256:]
        for client in list(self.clients):
            if quiet and self.silence is not None and self.silence.connections > 0:
                self.silence.connections -= 1
                self.silent.add(client)
            if client not in self.silent:
                with contextlib.suppress(ConnectionError, RuntimeError):
                    await client.send_bytes(data)
        return bool(data)


def routes(plane: Plane) -> list[web.RouteDef]:
    """Return the routes of terminals below `/toolbox/{box}`."""
    ptys = Ptys(plane)
    return [
        web.get("/process/pty/create-connect", ptys.create_connect),
        web.get("/process/pty", ptys.listing),
        web.get("/process/pty/{pty}", ptys.get),
        web.delete("/process/pty/{pty}", ptys.delete),
        web.get("/process/pty/{pty}/connect", ptys.connect),
        web.post("/process/pty/{pty}/resize", ptys.resize),
    ]


class Ptys:
    """Handlers of terminals."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._pumps: set[asyncio.Task[None]] = set()

    async def _pty(self, request: web.Request) -> tuple[Sandbox, Pty]:
        box, _ = await self._plane.inside(request)
        found = box.ptys.get(request.match_info["pty"])
        if found is None:
            raise RefusedError(404, f"PTY session {request.match_info['pty']} not found")
        return box, found

    async def create_connect(self, request: web.Request) -> web.StreamResponse:
        """Start a terminal and connect to it."""
        box, world = await self._plane.inside(request)
        asked = request.query
        name = asked["id"]
        if name in box.ptys:
            return refusal(409, f"PTY session with ID {name} already exists")
        cwd = asked.get("cwd") or box.workdir
        envs = _envs(request)
        terminal = await _open(world, name, cwd, envs, stamp(self._plane.now()) or "")
        terminal.silence = self._plane.silence
        terminal.resize(int(asked.get("cols") or 80), int(asked.get("rows") or 24))
        box.ptys[name] = terminal
        pump = asyncio.create_task(terminal.pump())
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return await _serve(request, box, terminal)

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """Connect to a terminal that is there."""
        return await _serve(request, *await self._pty(request))

    async def listing(self, request: web.Request) -> web.Response:
        """Send all terminals."""
        box, _ = await self._plane.inside(request)
        return web.json_response({"sessions": [found.dto() for found in box.ptys.values()]})

    async def get(self, request: web.Request) -> web.Response:
        """Send one terminal."""
        return web.json_response((await self._pty(request))[1].dto())

    async def delete(self, request: web.Request) -> web.Response:
        """Kill a terminal and what its shell started."""
        box, found = await self._pty(request)
        del box.ptys[found.id]
        kill_tree(await entered(found.process))
        return web.json_response({"message": "PTY session deleted"})

    async def resize(self, request: web.Request) -> web.Response:
        """Set a terminal's size."""
        _, found = await self._pty(request)
        asked = await request.json()
        found.resize(asked["cols"], asked["rows"])
        return web.json_response(found.dto())


async def _open(world: World, name: str, cwd: str, envs: dict[str, str], created: str) -> Pty:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    command = world.argv(
        ["/usr/bin/setsid", "--ctty", "/bin/bash", "-l"], cwd=cwd, env={"TERM": "xterm-256color", **envs}
    )
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
    finally:
        os.close(slave)
    return Pty(name, created, cwd, master, process, envs)


async def _serve(request: web.Request, box: Sandbox, terminal: Pty) -> web.WebSocketResponse:
    offered = [word.strip() for word in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    socket = web.WebSocketResponse(protocols=[_EXIT_CONTROL] if _EXIT_CONTROL in offered else [], max_msg_size=_MESSAGE)
    await socket.prepare(request)
    await socket.send_str(json.dumps({"type": "control", "status": "connected"}))
    terminal.clients[socket] = _EXIT_CONTROL in offered
    listening = asyncio.create_task(_listen(socket, terminal))
    ending = asyncio.create_task(terminal.ended.wait())
    try:
        await asyncio.wait({listening, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            box.ptys.pop(terminal.id, None)
            await _tell_end(socket, terminal, listening)
    finally:
        terminal.clients.pop(socket, None)
        for task in (listening, ending):
            task.cancel()
        await asyncio.gather(listening, ending, return_exceptions=True)
    return socket


async def _tell_end(socket: web.WebSocketResponse, terminal: Pty, listening: asyncio.Task[None]) -> None:
    if socket in terminal.silent:
        await listening
        return
    code = terminal.code if terminal.code is not None and terminal.code >= 0 else 137
    if terminal.clients.get(socket):
        with contextlib.suppress(ConnectionError, RuntimeError):
            await socket.send_str(json.dumps({"type": "control", "status": "exited", "exitCode": code}))
    await socket.close(code=1000, message=json.dumps({"exitCode": code}).encode())


async def _listen(socket: web.WebSocketResponse, terminal: Pty) -> None:
    async for message in socket:
        if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
            continue
        data = message.data.encode() if isinstance(message.data, str) else message.data
        while data and terminal.code is None:
            try:
                data = data[os.write(terminal.master, data) :]
            except BlockingIOError:
                await asyncio.sleep(0.002)
            except OSError:
                return


def _envs(request: web.Request) -> dict[str, str]:
    for word in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
        if word.strip().startswith(_ENVS):
            encoded = word.strip().removeprefix(_ENVS)
            envs: dict[str, str] = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
            return envs
    return {}
