"""Tell who deleted a sandbox, as far as the audit log may be read."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import json
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from pytest_benchflow.sandboxes._daytona.api import Api

_PAGE = 100
_PAGES = 5
# The log may tell of a deed a little after it was done.
_LATE_SEC = (0.0, 1.0, 3.0, 6.0)
# Deletions by one actor so close together are taken for one deed, where the log does not name the request.
_TOGETHER_SEC = 30.0


class DeletedError(SandboxError):
    """Somebody else deleted the sandbox; `details` is JSON with who and when, as far as that is known."""

    category = "sandbox_deleted"

    def __init__(self, sandbox: str, facts: dict[str, Any]) -> None:
        who = f"by {facts['actor']} at {facts['time']}" if facts.get("actor") else "by somebody else"
        super().__init__(f"the sandbox {sandbox} was deleted {who} in the middle of the rollout")
        self.details = json.dumps({"sandbox": sandbox, **facts})


async def explain(api: Api, handle: Any) -> dict[str, Any]:
    """Return the event id, actor and time of a sandbox's deletion, and what else was deleted with it."""
    own, events = None, list[Any]()
    for wait in _LATE_SEC:
        await asyncio.sleep(wait)
        try:
            events = await _deletions(api, handle)
        except SandboxError as error:
            return _concluded(str(error))
        own = next((event for event in events if event.target_id == handle.id), None)
        if own is not None:
            break
    if own is None:
        return _concluded("the audit log has no such event")
    others = sorted(
        {str(event.target_id) for event in events if event.target_id != handle.id and _one_deed(own, event)}
    )
    return {
        "source": "audit log",
        "event_id": own.id,
        "actor": own.actor_email or own.actor_id,
        "actor_id": own.actor_id,
        "time": own.created_at.isoformat(),
        "deleted_with_it": others,
    }


def _concluded(why: str) -> dict[str, Any]:
    return {
        "source": "concluded: this session did not delete it",
        "audit_log": why,
        "event_id": None,
        "actor": None,
        "time": None,
        "noticed": datetime.datetime.now(datetime.UTC).isoformat(),
        "deleted_with_it": None,
    }


async def _deletions(api: Api, handle: Any) -> list[Any]:
    """Return the latest deletions in the audit log, newest first. Raises: SandboxError where it may not be read."""
    client = await api.open()
    models = importlib.import_module("daytona_api_client_async")
    audit = models.AuditApi(client._api_client)
    found: list[Any] = []
    for page in range(1, _PAGES + 1):
        answer = await api.ask(
            "reading the audit log",
            lambda page=page: audit.get_organization_audit_logs(handle.organization_id, page=page, limit=_PAGE),  # type: ignore[misc]
        )
        found += [event for event in answer.items if "delete" in event.action.lower() or "destroy" in event.action]
        if page >= answer.total_pages or any(event.target_id == handle.id for event in found):
            break
    return found


def _one_deed(own: Any, other: Any) -> bool:
    asked, theirs = ((event.metadata or {}).get("requestId") for event in (own, other))
    if asked and theirs:
        return bool(asked == theirs)
    apart = abs((own.created_at - other.created_at).total_seconds())
    return bool(own.actor_id == other.actor_id and apart <= _TOGETHER_SEC)
