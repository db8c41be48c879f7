"""Sessions: a shell that reads commands from its input and stays until it is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.daytonahost._faults import RefusedError, refusal
from tests.daytonahost._world import STATE, World, entered, kill_tree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.daytonahost._host import Plane
    from tests.daytonahost._records import Sandbox

_STDOUT, _STDERR = b"\x01\x01\x01", b"\x02\x02\x02"
_POLL_SEC = 0.02
# Sourced, so that a change of directory stays and `exit` ends the session with no exit code for the command.
_FEED = "{{ . {place}/command; }} <{place}/input >{place}/stdout 2>{place}/stderr; {{ echo $? >{place}/code.new; }} && "
_FEED += "mv {place}/code.new {place}/code\n"


@dataclass(slots=True)
class Command:
    """One command of a session."""

    id: str
    text: str
    place: Path  # as this machine sees it
    input: int  # the writing end of its standard input, -1 when it has none

    @property
    def code(self) -> int | None:
        """Return the exit code, None as long as there is none."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.place / "code").read_text())
        return None

    def output(self, name: str, start: int = 0) -> bytes:
        """Return what was written to stdout or stderr so far, from a position on."""
        with contextlib.suppress(OSError), (self.place / name).open("rb") as file:
            file.seek(start)
            return file.read()
        return b""

    def dto(self) -> dict[str, Any]:
        """Return the command as the toolbox writes it."""
        known = {} if self.code is None else {"exitCode": self.code}
        return {"id": self.id, "command": self.text, **known}


@dataclass(slots=True)
class Session:
    """A shell inside; `process` is what entered for it, None for one that was there before."""

    id: str
    pid: int
    process: asyncio.subprocess.Process | None = None
    commands: dict[str, Command] = field(default_factory=dict)

    def dto(self) -> dict[str, Any]:
        """Return the session as the toolbox writes it."""
        return {"sessionId": self.id, "commands": [command.dto() for command in self.commands.values()]}

    def end(self) -> None:
        """Kill the shell and what descends from it."""
        for command in self.commands.values():
            if command.input >= 0:
                os.close(command.input)
        kill_tree(self.pid)


def routes(plane: Plane) -> list[web.RouteDef]:
    """Return the routes of sessions below `/toolbox/{box}`."""
    sessions = Sessions(plane)
    one = "/process/session/{session}"
    return [
        web.post("/process/session", sessions.create),
        web.get("/process/session", sessions.listing),
        web.get(one, sessions.get),
        web.delete(one, sessions.delete),
        web.post(f"{one}/exec", sessions.execute),
        web.get(f"{one}/command/{{command}}", sessions.command),
        web.get(f"{one}/command/{{command}}/logs", sessions.logs),
        web.post(f"{one}/command/{{command}}/input", sessions.send_input),
    ]


async def open_session(box: Sandbox, world: World, name: str) -> Session:
    """Start the shell of a session."""
    process = await asyncio.create_subprocess_exec(
        *world.argv(["/bin/bash"], cwd=box.workdir),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    session = box.sessions[name] = Session(name, await entered(process), process)
    return session


async def sleeping_shells(box: Sandbox, world: World, count: int) -> None:
    """Add sessions whose shells wait for ever, as polling clients left them: real processes, one fork each."""
    script = f"import os, signal\nfor _ in range({count}):\n    pid = os.fork()\n    if pid == 0:\n"
    script += "        os.close(1)\n        signal.pause()\n    print(pid, flush=True)\n"
    process = await asyncio.create_subprocess_exec(
        *world.argv(["/usr/bin/python3", "-c", script]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    inside = [int(await process.stdout.readline()) for _ in range(count)]
    assert await process.wait() == 0
    for number, pid in enumerate(inside):
        name = f"poll-{number:05}"
        box.sessions[name] = Session(name, world.host_pid(pid))


class Sessions:
    """Handlers of sessions."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def _session(self, request: web.Request) -> Session:
        box, _ = await self._plane.inside(request)
        session = box.sessions.get(request.match_info["session"])
        if session is None:
            raise RefusedError(404, f"session not found: {request.match_info['session']}")
        return session

    async def _command(self, request: web.Request) -> Command:
        command = (await self._session(request)).commands.get(request.match_info["command"])
        if command is None:
            raise RefusedError(404, f"command not found: {request.match_info['command']}")
        return command

    async def create(self, request: web.Request) -> web.Response:
        """Open a session."""
        box, world = await self._plane.inside(request)
        name = (await request.json())["sessionId"]
        if name in box.sessions:
            return refusal(409, "conflict: session already exists")
        await open_session(box, world, name)
        return web.Response(status=201)

    async def listing(self, request: web.Request) -> web.Response:
        """Send all sessions."""
        box, _ = await self._plane.inside(request)
        return web.json_response([session.dto() for session in box.sessions.values()])

    async def get(self, request: web.Request) -> web.Response:
        """Send one session."""
        return web.json_response((await self._session(request)).dto())

    async def delete(self, request: web.Request) -> web.Response:
        """End a session and what its shell started, less what got another parent."""
        session = await self._session(request)
        box, _ = await self._plane.inside(request)
        del box.sessions[session.id]
        session.end()
        if session.process is not None:
            await session.process.wait()
        return web.Response(status=204)

    async def execute(self, request: web.Request) -> web.Response:
        """Give a command to the session's shell, and wait for it unless asked not to."""
        session = await self._session(request)
        _, world = await self._plane.inside(request)
        asked = await request.json()
        detached = bool(asked.get("runAsync") or asked.get("async"))
        if session.process is None or session.process.returncode is not None or session.process.stdin is None:
            return refusal(500, "failed to write command: write |1: broken pipe")
        command = _prepare(session, world, asked["command"], with_input=detached)
        session.process.stdin.write(_FEED.format(place=f"{STATE}/{session.id}/{command.id}").encode())
        await session.process.stdin.drain()
        if detached:
            return web.json_response({"cmdId": command.id}, status=202)
        while command.code is None:
            if session.process.returncode is not None:
                return refusal(400, "bad request: session ended before the command did")
            await asyncio.sleep(_POLL_SEC)
        return web.json_response({"cmdId": command.id, "exitCode": command.code, **_texts(command)})

    async def command(self, request: web.Request) -> web.Response:
        """Send one command; it has an exit code when it has ended."""
        return web.json_response((await self._command(request)).dto())

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """Send what a command wrote, over a WebSocket as it comes where that is asked for."""
        command = await self._command(request)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return web.json_response(_texts(command))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        at = {"stdout": 0, "stderr": 0}
        while not socket.closed:
            ended = command.code is not None
            for name, mark in (("stdout", _STDOUT), ("stderr", _STDERR)):
                if data := command.output(name, at[name]):
                    at[name] += len(data)
                    await socket.send_bytes(mark + data)
            if ended:
                break
            await asyncio.sleep(_POLL_SEC)
        await socket.close()
        return socket

    async def send_input(self, request: web.Request) -> web.Response:
        """Write to a command's standard input."""
        command = await self._command(request)
        if command.input < 0 or command.code is not None:
            return refusal(410, "command has already completed")
        os.write(command.input, (await request.json())["data"].encode())
        return web.Response(status=204)


def _prepare(session: Session, world: World, text: str, *, with_input: bool) -> Command:
    name = uuid.uuid4().hex[:12]
    place = world.root / STATE.lstrip("/") / session.id / name
    place.mkdir(parents=True)
    (place / "command").write_text(text + "\n")
    source = -1
    if with_input:
        os.mkfifo(place / "input")
        source = os.open(place / "input", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    else:
        (place / "input").symlink_to("/dev/null")
    command = session.commands[name] = Command(name, text, place, source)
    return command


def _texts(command: Command) -> dict[str, str]:
    out, err = (command.output(name).decode(errors="replace") for name in ("stdout", "stderr"))
    return {"output": out + err, "stdout": out, "stderr": err}
