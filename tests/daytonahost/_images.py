"""Images and snapshots: Dockerfiles whose steps are run, once, on this machine's programs; files kept as archives."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from tests.daytonahost._faults import RefusedError
from tests.daytonahost._records import MAX_DISK_GB, Sandbox, Snapshot
from tests.daytonahost._world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.daytonahost._host import Plane

# Less what belongs to the machine or to one sandbox alone.
_OTHERS = ("run/daytona", "usr", "proc", "dev", "etc/ssl", "etc/ca-certificates", "etc/alternatives", "etc/ld.so.*")
_KEEP = "tar -C / --one-file-system " + "".join(f"--exclude=./{name} " for name in _OTHERS) + "-cf - ."
_BRING = "tar -C / -xpf -"


class BuildError(Exception):
    """A step of a Dockerfile failed."""


@dataclass(slots=True)
class Image:
    """What a Dockerfile amounts to; `files` None: nothing but what every sandbox has."""

    files: bytes | None = None
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"
    log: str = ""
    error: str | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Images:
    """All images that were built, by Dockerfile and contexts."""

    def __init__(self, *, share_network: bool) -> None:
        self.missing: set[str] = set()  # names that no registry knows
        self.store: dict[str, bytes] = {}  # contexts, by key
        self.built = 0
        self._share_network = share_network
        self._images: dict[tuple[str, tuple[str, ...]], Image] = {}
        self._builds: set[asyncio.Task[None]] = set()

    def get(self, dockerfile: str, contexts: tuple[str, ...]) -> Image:
        """Return an image; its building begins where it is not known."""
        image = self._images.get((dockerfile, contexts))
        if image is None or (image.done.is_set() and image.error):
            image = self._images[dockerfile, contexts] = Image()
            steps = list(_steps(dockerfile))
            build = asyncio.ensure_future(self._build(image, steps, contexts))
            self._builds.add(build)
            build.add_done_callback(self._builds.discard)
        return image

    def forget(self) -> None:
        """Know no image and no context any more."""
        self._images.clear()
        self.store.clear()
        self.missing.clear()
        self.built = 0

    async def close(self) -> None:
        """End builds that go on."""
        for build in self._builds:
            build.cancel()
        await asyncio.gather(*self._builds, return_exceptions=True)

    async def _build(self, image: Image, steps: list[tuple[str, str]], contexts: tuple[str, ...]) -> None:
        try:
            await self._run(image, steps, contexts)
        except (BuildError, RefusedError) as error:
            image.error = str(error)
            image.log += f"{error}\n"
        finally:
            image.done.set()

    async def _run(self, image: Image, steps: list[tuple[str, str]], contexts: tuple[str, ...]) -> None:
        world: World | None = None
        try:
            for keyword, text in steps:
                image.log += f"{keyword} {text}\n"
                if keyword == "FROM" and text.split()[0] in self.missing:
                    raise BuildError(f"failed to pull image: {text}: not found: manifest unknown")
                if keyword in ("RUN", "COPY", "ADD") and world is None:
                    self.built += 1
                    world = await World.start({}, "root", MAX_DISK_GB << 30, share_network=self._share_network)
                await self._step(image, world, keyword, text, contexts)
            if world is not None:
                image.files = await keep(world)
        finally:
            if world is not None:
                await world.end()

    async def _step(
        self, image: Image, world: World | None, keyword: str, text: str, contexts: tuple[str, ...]
    ) -> None:
        if keyword == "WORKDIR":
            image.workdir = posixpath.join(image.workdir, text)
        elif keyword == "USER":
            image.user = text.partition(":")[0]
        elif keyword == "ENV":
            for word in shlex.split(text):
                name, _, value = word.partition("=")
                image.env[name] = value
        elif keyword == "RUN" and world is not None:
            await _run_step(
                image, world, ["/bin/sh", "-c", f"mkdir -p {image.workdir} && cd {image.workdir} && {text}"]
            )
        elif keyword in ("COPY", "ADD") and world is not None:
            await self._copy(image, world, text, contexts)

    async def _copy(self, image: Image, world: World, text: str, contexts: tuple[str, ...]) -> None:
        *sources, target = [word for word in shlex.split(text) if not word.startswith("--")]
        into = posixpath.join(image.workdir, target)
        for key in contexts:
            data = next((data for name, data in self.store.items() if f"/{key}/" in name), b"")
            code, _, said = await world.run(
                ["/bin/sh", "-c", "mkdir -p /run/context && tar -C /run/context -xf -"], data
            )
            if code:
                raise BuildError(f"context {key}: {said.decode(errors='replace')}")
        names = " ".join(f"/run/context/{shlex.quote(posixpath.normpath(source.lstrip('/')))}" for source in sources)
        directory = target.endswith("/") or len(sources) > 1 or target == "."
        place = into if directory else posixpath.dirname(into)
        command = f"mkdir -p {shlex.quote(place)} && for one in {names}; do if [ -d $one ]; then "
        command += f"mkdir -p {shlex.quote(into)} && cp -a $one/. {shlex.quote(into)}/; "
        command += f"else cp -a $one {shlex.quote(into)}; fi || exit; done"
        await _run_step(image, world, ["/bin/sh", "-c", command])
        await world.run(["rm", "-rf", "/run/context"])


async def _run_step(image: Image, world: World, command: list[str]) -> None:
    variables = [f"{name}={value}" for name, value in image.env.items()]
    code, out, said = await world.run(["/usr/bin/env", *variables, *command])
    image.log += (out + said).decode(errors="replace")
    if code:
        raise BuildError(f"process {shlex.join(command)!r} did not complete successfully: exit code: {code}")


def _steps(dockerfile: str) -> Iterator[tuple[str, str]]:
    whole = ""
    for line in dockerfile.splitlines():
        if line.lstrip().startswith("#"):
            continue
        whole += line
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        keyword, _, text = whole.strip().partition(" ")
        if keyword:
            yield keyword.upper(), text.strip()
        whole = ""


async def keep(world: World) -> bytes:
    """Return a sandbox's files as a tar archive."""
    code, archive, said = await world.run(["/bin/sh", "-c", _KEEP])
    if code:
        raise RefusedError(500, f"snapshot failed: {said.decode(errors='replace')[:300]}")
    return archive


async def bring(world: World, archive: bytes) -> None:
    """Put files into a sandbox. Raises: RefusedError where they have no space."""
    code, _, said = await world.run(["/bin/sh", "-c", _BRING], archive)
    if code:
        raise RefusedError(500, f"failed to create container: {said.decode(errors='replace')[:300]}")


def routes(plane: Plane) -> list[web.RouteDef]:
    """Return the routes of images and snapshots below `/api`."""
    snapshots = Snapshots(plane)
    return [
        web.get("/sandbox/{box}/build-logs-url", snapshots.log_url),
        web.get("/sandbox/{box}/build-logs", snapshots.log),
        web.post("/sandbox/{box}/snapshot", snapshots.of_sandbox),
        web.post("/snapshots", snapshots.create),
        web.get("/snapshots", snapshots.listing),
        web.get("/snapshots/{snapshot}", snapshots.get),
        web.delete("/snapshots/{snapshot}", snapshots.delete),
        web.post("/snapshots/{snapshot}/activate", snapshots.get),
        web.get("/snapshots/{snapshot}/build-logs-url", snapshots.log_url),
        web.get("/snapshots/{snapshot}/build-logs", snapshots.log),
        web.get("/object-storage/push-access", snapshots.push_access),
    ]


class Snapshots:
    """Handlers of images and snapshots."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._waits: set[asyncio.Task[None]] = set()

    def _find(self, request: web.Request) -> Snapshot:
        wanted = request.match_info["snapshot"]
        for snapshot in self._plane.snapshots.values():
            if wanted in (snapshot.id, snapshot.name):
                return snapshot
        raise RefusedError(404, f"Snapshot {wanted} not found")

    async def create(self, request: web.Request) -> web.Response:
        """Make a snapshot of an image."""
        asked = await request.json()
        self._new(asked["name"])
        build = asked.get("buildInfo") or {}
        dockerfile = build.get("dockerfileContent") or f"FROM {asked['imageName']}\n"
        snapshot = Snapshot(self._plane.now(), asked["name"], image=asked.get("imageName"), dockerfile=dockerfile)
        snapshot.contexts = tuple(build.get("contextHashes") or ())
        snapshot.cpu, snapshot.memory, snapshot.disk = (asked.get(key) or 1 for key in ("cpu", "memory", "disk"))
        snapshot.state = "building"
        image = self._plane.images.get(dockerfile, snapshot.contexts)
        self._plane.snapshots[snapshot.name] = snapshot
        wait = asyncio.ensure_future(_settle(snapshot, image))
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)
        return web.json_response(snapshot.dto())

    def _new(self, name: str) -> None:
        if name in self._plane.snapshots:
            raise RefusedError(409, f'Snapshot with name "{name}" already exists for this organization')

    async def of_sandbox(self, request: web.Request) -> web.Response:
        """Keep a sandbox's files as a snapshot."""
        box, world = await self._plane.inside(request)
        name = (await request.json())["name"]
        self._new(name)
        made = Snapshot(self._plane.now(), name, source=box.id, dockerfile=box.dockerfile, contexts=box.contexts)
        made.cpu, made.memory, made.disk = box.cpu, box.memory, box.disk
        made.files = await keep(world)
        self._plane.snapshots[name] = made
        return web.json_response(box.dto(self._plane.toolbox_url))

    async def listing(self, request: web.Request) -> web.Response:
        """Send a page of the snapshots."""
        known = list(self._plane.snapshots.values())
        page, limit = int(request.query.get("page") or 1), int(request.query.get("limit") or 100)
        items = [snapshot.dto() for snapshot in known[(page - 1) * limit : page * limit]]
        document = {"items": items, "total": len(known), "page": page, "totalPages": -(-len(known) // limit)}
        return web.json_response(document)

    async def get(self, request: web.Request) -> web.Response:
        """Send one snapshot."""
        return web.json_response(self._find(request).dto())

    async def delete(self, request: web.Request) -> web.Response:
        """Forget a snapshot."""
        del self._plane.snapshots[self._find(request).name]
        return web.Response(status=200)

    async def log_url(self, request: web.Request) -> web.Response:
        """Tell where the log of a build can be read."""
        return web.json_response({"url": f"{request.url.origin()}{request.path.removesuffix('-url')}"})

    async def log(self, request: web.Request) -> web.StreamResponse:
        """Send the log of a build as it grows."""
        named: Sandbox | Snapshot = (
            self._find(request) if "snapshot" in request.match_info else self._plane.find(request)
        )
        image = self._plane.images.get(named.dockerfile or "", named.contexts)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        sent, ended = 0, False
        while not ended:
            ended = image.done.is_set()
            await response.write(image.log[sent:].encode())
            sent = len(image.log)
            await asyncio.sleep(0.05)
        await response.write_eof()
        return response

    async def push_access(self, request: web.Request) -> web.Response:
        """Say where contexts of builds are to be sent."""
        document = {
            "accessKey": "key", "secret": "secret", "sessionToken": "token", "bucket": "builds",
            "storageUrl": f"{request.url.origin()}/storage", "organizationId": "org-tests", "region": "us-east-1",
        }  # fmt: skip
        return web.json_response(document)


async def _settle(snapshot: Snapshot, image: Image) -> None:
    await image.done.wait()
    snapshot.error = image.error
    snapshot.state = "build_failed" if image.error else "active"


class Storage:
    """The object store to which contexts are sent: as much of S3 as the client uses."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._parts: dict[str, dict[int, bytes]] = {}

    async def serve(self, request: web.Request) -> web.Response:
        """Answer one request of the object store's client."""
        key, asked = request.match_info["key"], request.query
        if request.method == "HEAD":
            known = self._images.store.get(key)
            if known is None:
                return web.Response(status=404)
            headers = {"ETag": '"1"', "Last-Modified": "Mon, 30 Nov 2026 12:00:00 GMT"}
            return web.Response(headers={**headers, "Content-Length": str(len(known))})
        if request.method == "POST" and "uploads" in asked:
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{key}</UploadId></InitiateMultipartUploadResult>")
        if request.method == "POST":
            parts = self._parts.pop(key, {})
            self._images.store[key] = b"".join(parts[number] for number in sorted(parts))
            return _xml('<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>')
        data = await request.read()
        if "partNumber" in asked:
            self._parts.setdefault(key, {})[int(asked["partNumber"])] = data
        else:
            self._images.store[key] = data
        return web.Response(headers={"ETag": '"1"'})


def _xml(text: str) -> web.Response:
    return web.Response(text=f'<?xml version="1.0" encoding="UTF-8"?>{text}', content_type="application/xml")
