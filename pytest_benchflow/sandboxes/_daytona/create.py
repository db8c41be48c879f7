"""Have Daytona make a sandbox, and remove it again, also one whose making we were never told of."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._daytona.api import GoneError, is_refusal_for_now, is_unknown_key
from pytest_benchflow.sandboxes._daytona.image import intervals, resources
from pytest_benchflow.sandboxes._labels import SCRATCH, check_ours, labels_for, owner_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from pytest_benchflow.contracts import SandboxSpec
    from pytest_benchflow.sandboxes._daytona.api import Api
    from pytest_benchflow.sandboxes._daytona.image import Plan

_START_SEC = 300.0
_TRIES = 3
_DELETE_SEC = 120
# A sandbox whose making was not answered may show in the list a little later.
_LATE_SEC = (0.0, 1.0, 3.0)
# So often it is looked whether a sandbox is there whose making is not answered.
_LOOK_SEC = 30.0


async def create(api: Api, spec: SandboxSpec, plan: Plan, limits: dict[str, Any]) -> Any:
    """Return the SDK's handle of a started sandbox, labelled as ours and cut off from every network.

    Raises: SandboxError after what was made of it is removed.
    """
    client = await api.open()
    await _check_key(api)
    labels = labels_for(spec, owner_of("daytona"))
    limit = spec.task.environment.build_timeout_sec + _START_SEC
    for attempt in range(1, _TRIES + 1):
        params = _params(api, spec, plan, labels, limits)
        try:
            making = functools.partial(client.create, params, timeout=limit)
            handle = await _made(api, labels, api.ask("making a sandbox", making, again=False, timeout=None))
        except BaseException as error:
            await asyncio.shield(_remove_late(api, labels, error))
            # One that took too long is not asked for again: the next would take as long.
            if attempt < _TRIES and isinstance(error, SandboxError) and is_refusal_for_now(error.__cause__):
                continue
            raise
        return handle
    raise AssertionError("unreachable")


def _params(api: Api, spec: SandboxSpec, plan: Plan, labels: Mapping[str, str], limits: dict[str, Any]) -> Any:
    sdk = api.sdk
    size = resources(spec.task.environment, limits)
    common = {
        "name": f"{spec.id}-{secrets.token_hex(4)}",
        "labels": dict(labels),
        "os_user": "root",
        "public": False,
        "network_block_all": True,
        **intervals(spec.lifetime_sec),
    }
    snapshot = next((str(mount.source) for mount in spec.mounts if mount.there), None)
    if snapshot is not None:
        # Its size was chosen when it was made, of a sandbox for the same task.
        return sdk.CreateSandboxFromSnapshotParams(snapshot=snapshot, **common)
    if plan.text is None:
        image = sdk.Image.from_dockerfile(str(spec.task.dockerfile), strict_context=True)
    else:
        first, *rest = plan.text.splitlines()
        image = sdk.Image.base(first.removeprefix("FROM ")).dockerfile_commands(rest)
    return sdk.CreateSandboxFromImageParams(image=image, resources=sdk.Resources(**size) if size else None, **common)


async def _check_key(api: Api) -> None:
    """Raise SandboxError for a key that Daytona does not know, while it is sure that nothing was made with it.

    Where the making itself is refused it may be the look at what was made.
    """
    if api.taken:
        return
    try:
        await listed(api, {SCRATCH: "none"})
    except SandboxError as error:
        # Whatever else it may be, such as a key that lists nothing, the making tells.
        if is_unknown_key(error.__cause__):
            error.nothing_made = True
            raise
    else:
        api.take()


async def _made(api: Api, labels: Mapping[str, str], asking: Coroutine[Any, Any, Any]) -> Any:
    """Return what is made, also where the answer is lost: then it is found by its labels, and was started a while ago.

    Raises: SandboxError.
    """
    making, seen = asyncio.ensure_future(asking), None
    try:
        while not (await asyncio.wait([making], timeout=_LOOK_SEC))[0]:
            looking = asyncio.ensure_future(_started(api, labels[SCRATCH]))
            try:
                await asyncio.wait([making, looking], return_when=asyncio.FIRST_COMPLETED)
                found = looking.result() if looking.done() and not making.done() else None
            finally:
                await _end(looking)
            if found is not None and found.id == seen:
                return found
            seen = found.id if found is not None else None
        return making.result()
    finally:
        await _end(making)


async def _end(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _started(api: Api, scratch: str) -> Any:
    """Return the one sandbox of ours that was made for a scratch directory and is started; None: nobody can tell."""
    try:
        found = [each for each in await listed(api, {SCRATCH: scratch}) if (each.labels or {}).get(SCRATCH) == scratch]
        for handle in found:
            check_ours(handle.labels, owner_of("daytona"))
    except SandboxError:
        return None
    started = [each for each in found if str(getattr(each.state, "value", each.state)) == "started"]
    return started[0] if len(found) == len(started) == 1 else None


async def _remove_late(api: Api, labels: Mapping[str, str], error: BaseException) -> None:
    """Remove what a failed request may have made, found by its labels."""
    try:
        for wait in _LATE_SEC:
            await asyncio.sleep(wait)
            if await remove_made_for(api, labels[SCRATCH]):
                return
            if isinstance(error, SandboxError) and not api.is_transient(error.__cause__):
                return
    except SandboxError as second:
        error.add_note(f"whether it left a sandbox is not known: {second}")


async def remove_made_for(api: Api, scratch: str) -> int:
    """Remove the sandboxes that were made for a scratch directory; return how many there were.

    Raises: SandboxError, also for one that bears another owner's name, of which nothing is removed.
    """
    owner = owner_of("daytona")
    found = [each for each in await listed(api, {SCRATCH: scratch}) if (each.labels or {}).get(SCRATCH) == scratch]
    for handle in found:
        check_ours(handle.labels, owner)
    for handle in found:
        await delete(api, handle)
    return len(found)


async def listed(api: Api, labels: Mapping[str, str] | None = None) -> Sequence[Any]:
    """Return the sandboxes there are, with these labels or all. Raises: SandboxError."""
    client = await api.open()

    async def collect() -> list[Any]:
        query = api.sdk.ListSandboxesQuery(labels=dict(labels) if labels else None)
        return [each async for each in client.list(query)]

    found = await api.ask("listing sandboxes", collect, timeout=600.0)
    return [each for each in found if str(getattr(each.state, "value", each.state)) not in ("destroyed", "destroying")]


async def delete(api: Api, handle: Any) -> None:
    """Delete a sandbox and see it gone; nothing happens when it is. Raises: SandboxError."""
    with contextlib.suppress(GoneError):
        await api.ask("deleting a sandbox", lambda: handle.delete(timeout=_DELETE_SEC, wait=True), timeout=None)
