"""What the control plane knows of its sandboxes and snapshots, and how it writes them."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.daytonahost._pty import Pty
    from tests.daytonahost._sessions import Session
    from tests.daytonahost._world import World

ORGANIZATION = "org-tests"
MAX_DISK_GB = 10


def stamp(moment: datetime.datetime | None) -> str | None:
    """Write a moment as the control plane does."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


@dataclass(slots=True)
class Sandbox:
    """One sandbox; it has no process until something is executed in it."""

    created: datetime.datetime
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    name: str = ""
    state: str = "started"
    labels: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    user: str = ""  # empty: the image's
    workdir: str = "/"
    cpu: int = 1
    memory: int = 1
    disk: int = 3
    disk_bytes: int | None = None  # less than what was asked, for a full disk
    snapshot: str | None = None
    dockerfile: str | None = None
    contexts: tuple[str, ...] = ()
    files: bytes | None = None  # a tar archive of what the root holds at first
    network_block_all: bool = False
    network_allow_list: str | None = None
    domain_allow_list: str | None = None
    auto_stop: int = 15
    auto_archive: int = 10080
    auto_delete: int = -1
    ttl: int = 0
    error: str | None = None
    active: datetime.datetime | None = None
    dated: bool = True  # False: its timestamps are missing, as old records' are
    world: World | None = None
    sessions: dict[str, Session] = field(default_factory=dict)
    ptys: dict[str, Pty] = field(default_factory=dict)

    def dto(self, toolbox: str) -> dict[str, Any]:
        """Return the sandbox as the API writes it."""
        created = stamp(self.created) if self.dated else None
        active = stamp(self.active or self.created) if self.dated else None
        destroy = stamp(self.created + datetime.timedelta(minutes=self.ttl)) if self.ttl else None
        document: dict[str, Any] = {
            "id": self.id, "name": self.name or self.id, "organizationId": ORGANIZATION, "user": self.user or "root",
            "env": self.env, "labels": self.labels, "public": False, "target": "us", "kvm": False,
            "networkBlockAll": self.network_block_all, "networkAllowList": self.network_allow_list,
            "domainAllowList": self.domain_allow_list, "cpu": self.cpu, "gpu": 0, "memory": self.memory,
            "disk": self.disk, "state": self.state, "desiredState": "started", "snapshot": self.snapshot,
            "autoStopInterval": self.auto_stop, "autoArchiveInterval": self.auto_archive,
            "autoDeleteInterval": self.auto_delete, "autoDestroyAt": destroy, "createdAt": created,
            "updatedAt": created, "lastActivityAt": active, "errorReason": self.error, "toolboxProxyUrl": toolbox,
        }  # fmt: skip
        return {key: value for key, value in document.items() if value is not None}


@dataclass(slots=True)
class Snapshot:
    """What sandboxes are made from: an image's name, a Dockerfile with its contexts, or another sandbox's files."""

    created: datetime.datetime
    name: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    state: str = "active"
    image: str | None = None
    dockerfile: str | None = None
    contexts: tuple[str, ...] = ()
    files: bytes | None = None  # a tar archive of the root
    source: str | None = None
    cpu: int = 1
    memory: int = 1
    disk: int = 3
    error: str | None = None

    def dto(self) -> dict[str, Any]:
        """Return the snapshot as the API writes it."""
        moment = stamp(self.created)
        return {
            "id": self.id, "organizationId": ORGANIZATION, "general": False, "name": self.name,
            "imageName": self.image, "state": self.state, "size": 0.1, "entrypoint": None, "cpu": self.cpu, "gpu": 0,
            "mem": self.memory, "disk": self.disk, "errorReason": self.error, "createdAt": moment,
            "updatedAt": moment, "lastUsedAt": None, "sourceSandboxId": self.source,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A line of the audit log."""

    id: str
    actor: str
    action: str
    target: str
    created: datetime.datetime
    request: str

    def dto(self) -> dict[str, Any]:
        """Return the event as the API writes it."""
        return {
            "id": self.id, "actorId": self.actor, "actorEmail": f"{self.actor}@example.org",
            "organizationId": ORGANIZATION, "action": self.action, "targetType": "sandbox", "targetId": self.target,
            "statusCode": 200, "metadata": {"requestId": self.request}, "createdAt": stamp(self.created),
        }  # fmt: skip
