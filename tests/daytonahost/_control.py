"""The control plane: sandboxes as records, access by SSH, the audit log."""

from __future__ import annotations

import datetime
import json
import secrets
import uuid
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.daytonahost._faults import refusal
from tests.daytonahost._records import MAX_DISK_GB, Sandbox, stamp

if TYPE_CHECKING:
    from tests.daytonahost._host import Plane

_PAGE = 100
_INTERVALS = {
    "autostop": "auto_stop",
    "autoarchive": "auto_archive",
    "autodelete": "auto_delete",
    "ttl": "ttl",
}


def routes(plane: Plane) -> list[web.RouteDef]:
    """Return the routes below `/api`."""
    control = Control(plane)
    return [
        web.post("/sandbox", control.create),
        web.get("/sandbox", control.listing),
        web.get("/sandbox/ssh-access/validate", control.validate_access),
        web.get("/sandbox/{box}", control.get),
        web.delete("/sandbox/{box}", control.delete),
        web.get("/sandbox/{box}/toolbox-proxy-url", control.toolbox_url),
        web.post("/sandbox/{box}/start", control.start),
        web.post("/sandbox/{box}/stop", control.stop),
        web.put("/sandbox/{box}/labels", control.set_labels),
        web.post("/sandbox/{box}/network-settings", control.set_network),
        web.post("/sandbox/{box}/last-activity", control.touch),
        web.post("/sandbox/{box}/ssh-access", control.give_access),
        web.delete("/sandbox/{box}/ssh-access", control.take_access),
        *(web.post(f"/sandbox/{{box}}/{name}/{{minutes}}", control.set_interval) for name in _INTERVALS),
        web.get("/audit/organizations/{organization}", control.audit),
        web.get("/config", control.config),
    ]


class Control:
    """Handlers of the control plane."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def _answer(self, box: Sandbox) -> web.Response:
        return web.json_response(box.dto(self._plane.toolbox_url))

    async def create(self, request: web.Request) -> web.Response:
        """Make a sandbox of an image or a snapshot."""
        asked = await request.json()
        disk = asked.get("disk") or 3
        if disk > MAX_DISK_GB:
            return refusal(400, f"Disk request {disk}GB exceeds maximum allowed per sandbox ({MAX_DISK_GB}GB)")
        if any(asked.get("name") == box.name for box in self._plane.sandboxes.values() if box.name):
            return refusal(409, f"Sandbox with name {asked['name']} already exists")
        build = asked.get("buildInfo") or {}
        box = Sandbox(
            created=self._plane.now(),
            name=asked.get("name") or "",
            labels=asked.get("labels") or {},
            env=asked.get("env") or {},
            user=asked.get("user") or "",
            cpu=asked.get("cpu") or 1,
            memory=asked.get("memory") or 1,
            disk=disk,
            disk_bytes=self._plane.disk_bytes,
            snapshot=asked.get("snapshot"),
            dockerfile=build.get("dockerfileContent"),
            contexts=tuple(build.get("contextHashes") or ()),
            network_block_all=bool(asked.get("networkBlockAll")),
            network_allow_list=asked.get("networkAllowList"),
            domain_allow_list=asked.get("domainAllowList"),
            ttl=asked.get("ttlMinutes") or 0,
        )
        for key, name in (("autoStopInterval", "auto_stop"), ("autoDeleteInterval", "auto_delete")):
            if asked.get(key) is not None:
                setattr(box, name, asked[key])
        self._plane.prepare(box)
        self._plane.sandboxes[box.id] = box
        self._plane.record("create", [box.id], self._plane.actor)
        return self._answer(box)

    async def listing(self, request: web.Request) -> web.Response:
        """Send one page of the sandboxes whose labels include those asked for."""
        wanted: dict[str, str] = json.loads(request.query.get("labels") or "{}")
        states = set(request.query.getall("states", []))
        found = [
            box
            for box in self._plane.sandboxes.values()
            if wanted.items() <= box.labels.items()
            and (not states or box.state in states)
            and request.query.get("id", box.id) == box.id
            and request.query.get("name", box.name or box.id) == (box.name or box.id)
        ]
        start = int(request.query.get("cursor") or 0)
        size = min(int(request.query.get("limit") or _PAGE), self._plane.page_size)
        end = start + size
        items = [box.dto(self._plane.toolbox_url) for box in found[start:end]]
        return web.json_response({"items": items, "nextCursor": str(end) if end < len(found) else None})

    async def get(self, request: web.Request) -> web.Response:
        """Send one sandbox."""
        return self._answer(self._plane.find(request))

    async def delete(self, request: web.Request) -> web.Response:
        """Kill and forget a sandbox."""
        box = self._plane.find(request)
        await self._plane.destroy([box], self._plane.actor)
        return self._answer(box)

    async def toolbox_url(self, request: web.Request) -> web.Response:
        """Tell where the toolbox is."""
        self._plane.find(request)
        return web.json_response({"url": self._plane.toolbox_url})

    async def start(self, request: web.Request) -> web.Response:
        """Let a stopped sandbox run again, with its files."""
        box = self._plane.find(request)
        if box.state in ("stopped", "started"):
            box.state, box.active = "started", self._plane.now()
        return self._answer(box)

    async def stop(self, request: web.Request) -> web.Response:
        """Kill all of a sandbox's processes; its files stay."""
        box = self._plane.find(request)
        await self._plane.halt(box)
        return self._answer(box)

    async def set_labels(self, request: web.Request) -> web.Response:
        """Replace the labels."""
        box = self._plane.find(request)
        box.labels = (await request.json())["labels"]
        return web.json_response({"labels": box.labels})

    async def set_interval(self, request: web.Request) -> web.Response:
        """Set after how many minutes the sandbox is stopped or deleted."""
        box = self._plane.find(request)
        name = request.path.split("/")[-2]
        setattr(box, _INTERVALS[name], int(request.match_info["minutes"]))
        return self._answer(box)

    async def set_network(self, request: web.Request) -> web.Response:
        """Note which way out the sandbox is to have; here it has none, whatever is asked for."""
        box, asked = self._plane.find(request), await request.json()
        if not self._plane.deaf_to_networks:
            box.network_block_all = asked.get("networkBlockAll", box.network_block_all)
            box.network_allow_list = asked.get("networkAllowList", box.network_allow_list)
            box.domain_allow_list = asked.get("domainAllowList", box.domain_allow_list)
        return self._answer(box)

    async def touch(self, request: web.Request) -> web.Response:
        """Count as activity."""
        self._plane.find(request).active = self._plane.now()
        return web.Response(status=201)

    async def give_access(self, request: web.Request) -> web.Response:
        """Make a token with which `ssh` enters the sandbox."""
        box = self._plane.find(request)
        if box.state != "started":
            return refusal(400, "Sandbox is not started")
        minutes = float(request.query.get("expiresInMinutes") or 60)
        now = self._plane.now()
        expires = now + datetime.timedelta(minutes=minutes)
        token = secrets.token_urlsafe(24).replace("-", "x")
        port = await self._plane.gateway.admit(token, box.id, await self._plane.world(box), box.workdir, minutes)
        document: dict[str, Any] = {
            "id": str(uuid.uuid4()), "sandboxId": box.id, "token": token, "expiresAt": stamp(expires),
            "createdAt": stamp(now), "updatedAt": stamp(now), "sshCommand": f"ssh -p {port} {token}@127.0.0.1",
        }  # fmt: skip
        return web.json_response(document)

    async def take_access(self, request: web.Request) -> web.Response:
        """Void one token, or all of a sandbox."""
        box = self._plane.find(request)
        self._plane.gateway.dismiss(box.id, request.query.get("token"))
        return self._answer(box)

    async def validate_access(self, request: web.Request) -> web.Response:
        """Tell whether a token is valid, and for which sandbox."""
        box = self._plane.gateway.sandbox_of(request.query["token"])
        return web.json_response({"valid": box is not None, "sandboxId": box or ""})

    async def audit(self, request: web.Request) -> web.Response:
        """Send the audit log, the newest first, where the key may read it."""
        if self._plane.audit_forbidden:
            return refusal(403, "Forbidden resource")
        asked, known = request.query, self._plane.now() - self._plane.audit_late
        events = [event for event in reversed(self._plane.events) if event.created <= known]
        page, limit = int(asked.get("page") or 1), int(asked.get("limit") or _PAGE)
        shown = events[(page - 1) * limit : page * limit]
        pages = -(-len(events) // limit)
        document = {"items": [e.dto() for e in shown], "total": len(events), "page": page, "totalPages": pages}
        return web.json_response(document)

    async def config(self, _: web.Request) -> web.Response:
        """Tell a client what the service offers: nothing beside sandboxes."""
        return web.json_response({"version": "0.226.0"})
