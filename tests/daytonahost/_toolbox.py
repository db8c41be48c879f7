"""The toolbox of a sandbox: commands and files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import BodyPartReader, web

from tests.daytonahost._faults import refusal
from tests.daytonahost._world import entered

if TYPE_CHECKING:
    from tests.daytonahost._host import Plane
    from tests.daytonahost._world import World

_UPLOAD = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
_DOWNLOAD = (
    '[ -e "$1" ] || { echo "file not found: $1" >&2; exit 44; }; '
    '[ ! -d "$1" ] || { echo "path is a directory: $1" >&2; exit 40; }; cat -- "$1"'
)
_DEFAULT_SEC = 10  # as the API's own description has it
_STATUS = {44: 404, 40: 400}
_STAT = "%F\t%s\t%a\t%A\t%U\t%G\t%Y\t%n"


def routes(plane: Plane) -> list[web.RouteDef]:
    """Return the routes below `/toolbox/{box}` that need nothing kept between requests."""
    files = Files(plane)
    return [
        web.post("/process/execute", Execute(plane).execute),
        web.get("/user-home-dir", files.home),
        web.get("/work-dir", files.work_dir),
        web.post("/files/bulk-upload", files.upload),
        web.post("/files/bulk-download", files.download),
        web.get("/files/download", files.download_one),
        web.get("/files/info", files.info),
        web.get("/files", files.listing),
        web.delete("/files", files.delete),
        web.post("/files/folder", files.folder),
        web.post("/files/move", files.move),
        web.post("/files/permissions", files.permissions),
    ]


class Execute:
    """Commands that are waited for."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._left: list[asyncio.subprocess.Process] = []

    async def execute(self, request: web.Request) -> web.Response:
        """Run a command; output and errors come as one, and a time limit kills the shell alone."""
        box, world = await self._plane.inside(request)
        asked = await request.json()
        argv = world.argv(
            ["/bin/bash", "-c", asked["command"]], cwd=asked.get("cwd") or box.workdir, env=asked.get("envs")
        )
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(asked.get("timeout") or _DEFAULT_SEC):
                output = await process.stdout.read()
                code = await process.wait()
        except TimeoutError:
            inside = await entered(process)
            with contextlib.suppress(ProcessLookupError):
                os.kill(inside, signal.SIGKILL)
            # Not waited for: what the shell started may hold its output open.
            self._left.append(process)
            return refusal(408, "command execution timeout")
        text = output.decode(errors="replace")
        return web.json_response({"exitCode": code if code >= 0 else -1, "result": text})


class Files:
    """Files, touched by programs inside so that links, rights and space are the sandbox's own."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def home(self, request: web.Request) -> web.Response:
        """Tell the user's home directory."""
        _, world = await self._plane.inside(request)
        return web.json_response({"dir": world.env["HOME"]})

    async def work_dir(self, request: web.Request) -> web.Response:
        """Tell the working directory."""
        box, _ = await self._plane.inside(request)
        return web.json_response({"dir": box.workdir})

    async def upload(self, request: web.Request) -> web.Response:
        """Write files, each sent as a path and then its content."""
        box, world = await self._plane.inside(request)
        errors: list[str] = []
        path = ""
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            assert isinstance(part, BodyPartReader)
            data = bytes(await part.read(decode=False))
            if (part.name or "").endswith(".path"):
                path = os.path.join(box.workdir, data.decode())  # noqa: PTH118  # inside, not of this machine
                continue
            code, _, said = await world.run(["/bin/sh", "-c", _UPLOAD, "sh", path], data)
            if code:
                errors.append(f"{path}: {said.decode(errors='replace').strip()}")
        return web.json_response({"errors": errors}, status=400) if errors else web.json_response({})

    async def download(self, request: web.Request) -> web.StreamResponse:
        """Send files as the parts of one answer; what cannot be read is a part that tells why."""
        box, world = await self._plane.inside(request)
        asked = await request.json()
        boundary = uuid.uuid4().hex
        response = web.StreamResponse(headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})
        await response.prepare(request)
        for path in asked["paths"]:
            status, data = await read(world, os.path.join(box.workdir, path))  # noqa: PTH118  # inside
            name, kind = ("file", "application/octet-stream") if status == 200 else ("error", "application/json")
            if status != 200:
                data = json.dumps({"message": data.decode(errors="replace"), "statusCode": status}).encode()
            head = (
                f"--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename*=UTF-8''{quote(path)}\r\n"
            )
            await response.write(f"{head}Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode())
            await response.write(data + b"\r\n")
        await response.write(f"--{boundary}--\r\n".encode())
        await response.write_eof()
        return response

    async def download_one(self, request: web.Request) -> web.Response:
        """Send one file."""
        box, world = await self._plane.inside(request)
        status, data = await read(world, os.path.join(box.workdir, request.query["path"]))  # noqa: PTH118  # inside
        return web.Response(body=data) if status == 200 else refusal(status, data.decode(errors="replace"))

    async def info(self, request: web.Request) -> web.Response:
        """Describe one file."""
        return await self._answer(
            request, ["/usr/bin/stat", f"--printf={_STAT}\n", "--", request.query["path"]], one=True
        )

    async def listing(self, request: web.Request) -> web.Response:
        """Describe the files of a directory."""
        command = 'cd -- "$1" && find . -mindepth 1 -maxdepth 1 -exec stat --printf="$2\n" -- {} +'
        return await self._answer(request, ["/bin/sh", "-c", command, "sh", request.query.get("path", "."), _STAT])

    async def _answer(self, request: web.Request, command: list[str], *, one: bool = False) -> web.Response:
        box, world = await self._plane.inside(request)
        code, out, said = await world.run(["/usr/bin/env", f"--chdir={box.workdir}", *command])
        if code:
            return refusal(404, said.decode(errors="replace").strip())
        found = [_entry(line) for line in out.decode(errors="replace").splitlines()]
        return web.json_response(found[0] if one else found)

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a file, or a directory with all it holds where that is asked for."""
        command = 'ls -d -- "$1" >/dev/null || exit 44; if [ -d "$1" ] && [ ! -L "$1" ] && [ "$2" != true ]; '
        command += 'then echo "cannot delete directory without recursive flag" >&2; exit 40; fi; rm -rf -- "$1"'
        return await self._do(request, command, request.query["path"], request.query.get("recursive", "").lower())

    async def folder(self, request: web.Request) -> web.Response:
        """Make a directory."""
        command = 'mkdir -p -m "$2" -- "$1"'
        return await self._do(request, command, request.query["path"], request.query.get("mode") or "755")

    async def move(self, request: web.Request) -> web.Response:
        """Rename a file."""
        return await self._do(request, 'mv -- "$1" "$2"', request.query["source"], request.query["destination"])

    async def permissions(self, request: web.Request) -> web.Response:
        """Change a file's mode and owner."""
        command = '[ -z "$2" ] || chmod "$2" -- "$1" && [ "$3" = : ] || chown "$3" -- "$1"'
        asked = request.query
        owner = f"{asked.get('owner', '')}:{asked.get('group', '')}"
        return await self._do(request, command, asked["path"], asked.get("mode", ""), owner)

    async def _do(self, request: web.Request, command: str, *words: str) -> web.Response:
        box, world = await self._plane.inside(request)
        code, _, said = await world.run(
            ["/usr/bin/env", f"--chdir={box.workdir}", "/bin/sh", "-c", command, "sh", *words]
        )
        return refusal(_STATUS.get(code, 500), said.decode(errors="replace").strip()) if code else web.json_response({})


async def read(world: World, path: str) -> tuple[int, bytes]:
    """Return a status and a file's content, or what was said about it."""
    code, out, said = await world.run(["/bin/sh", "-c", _DOWNLOAD, "sh", path])
    return (_STATUS.get(code, 500), said.strip()) if code else (200, out)


def _entry(line: str) -> dict[str, Any]:
    kind, size, permissions, mode, owner, group, changed, name = line.split("\t", 7)
    return {
        "name": name.rstrip("/").rpartition("/")[2], "path": name, "isDir": kind == "directory", "size": int(size),
        "permissions": permissions, "mode": mode, "owner": owner, "group": group, "modTime": changed,
    }  # fmt: skip
