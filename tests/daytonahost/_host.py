"""The stand-in as a server in a thread of its own, and what a test does with it."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import tempfile
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from tests.daytonahost import _control, _images, _pty, _sessions, _toolbox
from tests.daytonahost._faults import Faults, RefusedError, Rule, refusal
from tests.daytonahost._gateway import Gateway
from tests.daytonahost._images import Image, Images, Storage, bring
from tests.daytonahost._pty import Silence
from tests.daytonahost._records import AuditEvent, Sandbox, Snapshot
from tests.daytonahost._world import World

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

_T = TypeVar("_T")
_GB = 1 << 30
PAGE = 200  # the most sandboxes that one page of a list holds


class Plane:
    """The state behind all routes; touched in the server's thread only."""

    def __init__(self, place: Path, key: str, *, share_network: bool) -> None:
        self.key = key
        self.actor = "you"
        self.toolbox_url = ""
        self.sandboxes: dict[str, Sandbox] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.events: list[AuditEvent] = []
        self.audit_forbidden = False
        self.audit_late = datetime.timedelta()  # how long after a deed the log tells of it
        self.deaf_to_networks = False  # True: a changed network is accepted and not applied
        self.page_size = PAGE
        self.disk_bytes: int | None = None
        self.silence: Silence | None = None
        self.faults = Faults()
        self.gateway = Gateway(place / "sshd")
        self.images = Images(share_network=share_network)
        self._waits: set[asyncio.Task[None]] = set()
        self.ahead = datetime.timedelta()
        self._share_network = share_network
        self._starting: dict[str, asyncio.Lock] = {}

    def now(self) -> datetime.datetime:
        """Return the time, which a test may have moved ahead."""
        return datetime.datetime.now(datetime.UTC) + self.ahead

    def find(self, request: web.Request) -> Sandbox:
        """Return the sandbox a route names by id or name. Raises: RefusedError."""
        wanted = request.match_info["box"]
        box = self.sandboxes.get(wanted) or next((b for b in self.sandboxes.values() if b.name == wanted), None)
        if box is None:
            raise RefusedError(404, f"Sandbox with ID or name {wanted} not found")
        return box

    def prepare(self, box: Sandbox) -> None:
        """Give a sandbox what its image or snapshot says, or let it wait for its build. Raises: RefusedError."""
        if box.snapshot is not None:
            snapshot = self.snapshots.get(box.snapshot)
            if snapshot is None or snapshot.state != "active":
                raise RefusedError(404, f"Snapshot {box.snapshot} not found. Did you add it through the Dashboard?")
            box.dockerfile, box.contexts, box.files = snapshot.dockerfile, snapshot.contexts, snapshot.files
            box.cpu, box.memory, box.disk = snapshot.cpu, snapshot.memory, snapshot.disk
        if box.dockerfile is None:
            return
        image = self.images.get(box.dockerfile, box.contexts)
        box.state = "pending_build"
        wait = asyncio.ensure_future(self._settle(box, image))
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)

    async def _settle(self, box: Sandbox, image: Image) -> None:
        await image.done.wait()
        if box.state != "pending_build":
            return
        box.error = image.error
        box.env, box.workdir, box.user = {**image.env, **box.env}, image.workdir, box.user or image.user
        box.files = box.files if box.files is not None else image.files
        box.state = "build_failed" if image.error else "started"

    async def inside(self, request: web.Request) -> tuple[Sandbox, World]:
        """Return a route's sandbox and its running inside. Raises: RefusedError."""
        box = self.find(request)
        box.active = self.now()
        return box, await self.world(box)

    async def world(self, box: Sandbox) -> World:
        """Return the inside of a sandbox, started at first use."""
        if box.state != "started":
            raise RefusedError(
                400, "bad request: failed to resolve container IP: no IP address found. Is the Sandbox started?"
            )
        async with self._starting.setdefault(box.id, asyncio.Lock()):
            if box.world is None:
                size = box.disk_bytes or box.disk * _GB
                box.world = await World.start(box.env, box.user or "root", size, share_network=self._share_network)
                if box.files is not None:
                    await bring(box.world, box.files)
                await box.world.run(["mkdir", "-p", "--", box.workdir])
            return box.world

    async def halt(self, box: Sandbox) -> None:
        """Kill all of a sandbox's processes and call it stopped."""
        if box.world is not None:
            await box.world.kill_all()
        box.sessions.clear()
        box.ptys.clear()
        box.state = "stopped"
        if box.auto_delete == 0:
            await self.destroy([box], "system")

    async def destroy(self, boxes: Sequence[Sandbox], actor: str) -> list[AuditEvent]:
        """Kill and forget sandboxes, as one request of somebody's."""
        events = self.record("delete", [box.id for box in boxes], actor)
        for box in boxes:
            self.sandboxes.pop(box.id, None)
            self.gateway.dismiss(box.id)
            box.state = "destroyed"
            if box.world is not None:
                await box.world.end()
        return events

    def record(self, action: str, targets: Sequence[str], actor: str) -> list[AuditEvent]:
        """Write one line of the audit log for each target of a request."""
        request, now = uuid.uuid4().hex, self.now()
        events = [AuditEvent(str(uuid.uuid4()), actor, action, target, now, request) for target in targets]
        self.events += events
        return events

    async def pass_time(self, minutes: float) -> None:
        """Move the clock and stop or delete what is due."""
        self.ahead += datetime.timedelta(minutes=minutes)
        now = self.now()
        for box in list(self.sandboxes.values()):
            idle = (now - (box.active or box.created)).total_seconds() / 60
            old = (now - box.created).total_seconds() / 60
            if box.ttl and old >= box.ttl:
                await self.destroy([box], "system")
                continue
            if box.state == "started" and box.auto_stop and idle >= box.auto_stop:
                await self.halt(box)
            if box.state == "stopped" and box.auto_delete >= 0 and idle >= box.auto_stop + box.auto_delete:
                await self.destroy([box], "system")

    async def close(self) -> None:
        """End everything."""
        self.faults.heal()
        await self.images.close()
        for box in list(self.sandboxes.values()):
            if box.world is not None:
                await box.world.end()
        await self.gateway.close()


class _Keeper:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Let nobody in without the key."""
        stored = request.path.startswith("/storage/")
        if not stored and request.headers.get("Authorization") != f"Bearer {self._plane.key}":
            return refusal(401, "Invalid credentials")
        try:
            return await handler(request)
        except RefusedError as error:
            return refusal(error.status, str(error))
        except OSError as error:  # of a sandbox that ended meanwhile
            return refusal(500, repr(error))


def _mount(app: web.Application, prefix: str, routes: Sequence[web.RouteDef]) -> None:
    for route in routes:
        app.router.add_route(route.method, prefix + route.path, route.handler)


class DaytonaHost:
    """A running stand-in. Use it as a context manager; all methods may be called from the test's thread."""

    def __init__(self, *, share_network: bool = False) -> None:
        self.key = f"dtn_test_{uuid.uuid4().hex}"
        self.url = ""
        self._place = Path(tempfile.mkdtemp(prefix="bf-daytona-"))
        self._place.chmod(0o755)
        self._ready = threading.Event()
        self._share_network = share_network
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="daytona", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._plane: Plane | None = None

    def __enter__(self) -> DaytonaHost:
        self._thread.start()
        assert self._ready.wait(30), "the stand-in did not start"
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        shutil.rmtree(self._place, ignore_errors=True)

    @property
    def plane(self) -> Plane:
        """Return the state; simple values may be read and set from any thread."""
        assert self._plane is not None
        return self._plane

    @property
    def environ(self) -> dict[str, str]:
        """Return what makes the real client speak to this server."""
        return {"DAYTONA_API_KEY": self.key, "DAYTONA_API_URL": f"{self.url}/api", "DAYTONA_TARGET": "us"}

    @property
    def requests(self) -> Counter[str]:
        """Count requests by route, such as `POST /sandbox` or `GET /process/session/{session}/command/{command}`."""
        return self.plane.faults.requests

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        plane = self._plane = Plane(self._place, self.key, share_network=self._share_network)
        app = web.Application(middlewares=[plane.faults.middleware, _Keeper(plane).middleware], client_max_size=_GB)
        for prefix, module in (("/api", _control), ("/toolbox/{box}", _toolbox)):
            _mount(app, prefix, module.routes(plane))
        _mount(app, "/api", _images.routes(plane))
        app.router.add_route("*", "/storage/{key:.+}", Storage(plane.images).serve)
        _mount(app, "/toolbox/{box}", _sessions.routes(plane))
        _mount(app, "/toolbox/{box}", _pty.routes(plane))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        plane.toolbox_url = f"{self.url}/toolbox"
        self._ready.set()
        await self._stop.wait()
        await plane.close()
        await runner.cleanup()

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(600)

    def fail(
        self,
        route: str,
        *,
        status: int = 500,
        times: int | None = 1,
        message: str = "Internal Server Error",
        sandbox: str | None = None,
    ) -> None:
        """Answer the next `times` requests of a route (None: all) with an error; `POST /process/*` names several."""
        self._rule(Rule(route, "fail", times, status=status, message=message, sandbox=sandbox))

    def hang(self, route: str, *, times: int | None = 1, sandbox: str | None = None) -> None:
        """Never answer, and do nothing of what was asked."""
        self._rule(Rule(route, "hang", times, sandbox=sandbox))

    def lose_reply(self, route: str, *, times: int | None = 1, sandbox: str | None = None) -> None:
        """Do what was asked and never answer, such as `POST /sandbox`: the sandbox is there, the client knows no id."""
        self._rule(Rule(route, "lose", times, sandbox=sandbox))

    def spoil(self, route: str, *, status: int = 504, times: int | None = 1, sandbox: str | None = None) -> None:
        """Do what was asked and answer with an error, as a gateway does that waited too long."""
        self._rule(Rule(route, "spoil", times, status=status, message="Gateway Time-out", sandbox=sandbox))

    def delay(self, route: str, seconds: float, *, times: int | None = None, sandbox: str | None = None) -> None:
        """Answer late, such as `GET /sandbox` for slow pages of a list."""
        self._rule(Rule(route, "delay", times, seconds=seconds, sandbox=sandbox))

    def refuse_quota(self, *, times: int | None = None) -> None:
        """Let no sandbox be made, as an organization at its limit."""
        message = "Total CPU limit exceeded. Maximum allowed: 10."
        self.fail("POST /sandbox", status=403, times=times, message=message)

    def heal(self) -> None:
        """Drop all faults and let go of what hangs; sandboxes stay."""

        async def heal() -> None:
            plane = self.plane
            plane.faults.heal()
            plane.silence, plane.disk_bytes, plane.page_size = None, None, PAGE
            plane.audit_forbidden = plane.deaf_to_networks = False
            plane.audit_late = datetime.timedelta()

        self._do(heal())

    def clear(self) -> None:
        """Heal, remove every sandbox, snapshot and event, and set counters to zero: for the next test."""

        async def clear() -> None:
            plane = self.plane
            await plane.destroy(list(plane.sandboxes.values()), "system")
            plane.snapshots.clear()
            plane.images.forget()
            plane.events.clear()
            plane.faults.requests.clear()
            plane.gateway.given = 0
            plane.ahead = datetime.timedelta()

        self.heal()
        self._do(clear())

    def hide_image(self, name: str) -> None:
        """Let no registry know an image: a build from it fails."""
        self.plane.images.missing.add(name)

    @property
    def builds(self) -> int:
        """Count the images of which steps were run."""
        return self.plane.images.built

    def fill_disks(self, free_bytes: int) -> None:
        """Give sandboxes made from now on so little space, whatever they ask for."""
        self.plane.disk_bytes = free_bytes

    def silence_pty(self, mark: bytes, *, connections: int = 1) -> None:
        """Let terminals made from now on fall silent from the frame that holds `mark` on, also about their end.

        The connection stays open. `connections` says how many connections of a terminal fall silent.
        """
        self.plane.silence = Silence(mark, connections)

    def cut_ssh(self, sandbox: str) -> int:
        """Break the SSH connections into a sandbox; return how many there were."""
        return self.plane.gateway.cut(sandbox)

    def cut_ptys(self, sandbox: str) -> int:
        """Break the connections to a sandbox's terminals, which go on; return how many there were."""

        async def cut() -> int:
            clients = [one for found in self.plane.sandboxes[sandbox].ptys.values() for one in found.clients]
            for client in clients:
                await client.close(code=1011, message=b"broken")
            return len(clients)

        return self._do(cut())

    def forbid_audit(self) -> None:
        """Let the key not read the audit log."""
        self.plane.audit_forbidden = True

    def add(
        self,
        labels: Mapping[str, str],
        *,
        count: int = 1,
        age: datetime.timedelta = datetime.timedelta(),
        idle: datetime.timedelta | None = None,
        dated: bool = True,
    ) -> list[str]:
        """Add sandboxes that somebody made earlier; return their ids. `dated` False: they have no timestamps."""
        ids = []
        for _ in range(count):
            now = self.plane.now()
            box = Sandbox(
                created=now - age, labels=dict(labels), active=now - (age if idle is None else idle), dated=dated
            )
            self.plane.sandboxes[box.id] = box
            ids.append(box.id)
        return ids

    def sleeping_shells(self, sandbox: str, count: int) -> None:
        """Leave sessions in a sandbox whose shells sleep, as clients do that poll and never delete: real processes."""

        async def leave() -> None:
            box = self.plane.sandboxes[sandbox]
            await _sessions.sleeping_shells(box, await self.plane.world(box), count)

        self._do(leave())

    def delete_by_other(self, *sandboxes: str, actor: str = "somebody-else") -> list[AuditEvent]:
        """Delete sandboxes as another person would, in one request; return what the audit log says of it."""
        boxes = [self.plane.sandboxes[name] for name in sandboxes]
        return self._do(self.plane.destroy(boxes, actor))

    def pass_time(self, minutes: float) -> None:
        """Move the service's clock on: what is due is stopped or deleted."""
        self._do(self.plane.pass_time(minutes))

    @property
    def sandboxes(self) -> dict[str, Sandbox]:
        """Return what there is now, by id: labels, intervals, state."""
        return dict(self.plane.sandboxes)

    def sessions(self, sandbox: str) -> int:
        """Count the open sessions of a sandbox."""
        return len(self.plane.sandboxes[sandbox].sessions)

    def ptys(self, sandbox: str) -> int:
        """Count the terminals of a sandbox."""
        return len(self.plane.sandboxes[sandbox].ptys)

    def ssh_accesses(self, sandbox: str) -> int:
        """Count the valid SSH tokens of a sandbox."""
        return self.plane.gateway.open_for(sandbox)

    def processes(self, sandbox: str) -> list[str]:
        """Return the command lines of a sandbox's processes, without its first and what that started."""

        async def look() -> list[str]:
            box = self.plane.sandboxes[sandbox]
            return [] if box.world is None else box.world.processes()

        return self._do(look())

    def _rule(self, rule: Rule) -> None:
        async def add() -> None:
            self.plane.faults.add(rule)

        self._do(add())
