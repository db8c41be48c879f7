"""One sandbox at Daytona as we reach into it: short commands, files, sessions, terminals, SSH."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._daytona.api import CALL_SEC, GoneError
from pytest_benchflow.sandboxes._daytona.lost import DeletedError, explain
from pytest_benchflow.sandboxes._daytona.scripts import one_shot
from pytest_benchflow.sandboxes._daytona.ssh import ACCESS_MINUTES, Address, SshLink, parse_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path
    from typing import TypeVar

    from pytest_benchflow.sandboxes._daytona.api import Api

    T = TypeVar("T")

_TRANSFER_SEC = 1800
_TRIES = 4
_RUNNING = frozenset({"started", "starting", "resizing", "snapshotting", "forking"})
_GONE = frozenset({"destroyed", "destroying"})


class Box:
    """A running sandbox; every call tells a sandbox that somebody deleted from one that answers with an error."""

    def __init__(self, api: Api, handle: Any, place: str) -> None:
        self._api = api
        self.handle = handle
        self.place = place  # a directory in there that is ours
        self.deleting = False
        self._link: SshLink | None = None
        self._token = ""
        self._linking = asyncio.Lock()

    @property
    def id(self) -> str:
        """Return Daytona's name of it."""
        return str(self.handle.id)

    async def ask(
        self, what: str, call: Callable[[], Awaitable[T]], *, again: bool = True, timeout: float | None = CALL_SEC
    ) -> T:
        """Return the answer of one call. Raises: DeletedError, GoneError, SandboxError."""
        try:
            return await self._api.ask(what, call, again=again, timeout=timeout)
        except SandboxError as error:
            await self._see_that_it_is_there(error)
            raise

    async def _see_that_it_is_there(self, error: SandboxError) -> None:
        client = await self._api.open()
        try:
            found = await self._api.ask("looking for the sandbox", lambda: client.get(self.id))
            state = str(getattr(found.state, "value", found.state))
        except GoneError:
            state = "destroyed"
        except SandboxError:
            return
        if state in _RUNNING:
            return
        if state not in _GONE:
            reason = self._api.clean(str(getattr(found, "error_reason", None) or "it gives no reason"))
            raise SandboxError(f"the sandbox {self.id} is {state} in the middle of a rollout: {reason}") from error
        if self.deleting:
            raise SandboxError(f"the sandbox {self.id} was removed by this session") from error
        raise DeletedError(self.id, await explain(self._api, self.handle)) from error

    async def shell(self, script: str, *words: str, again: bool = True, timeout: float = CALL_SEC) -> str:
        """Run a short script that leaves no session, and return what it says. Raises: SandboxError when it fails."""
        answer = await self.ask(
            "running a command in the sandbox",
            lambda: self.handle.process.exec(one_shot(script, *words), cwd="/", timeout=int(timeout)),
            again=again,
            timeout=timeout + 10,
        )
        if answer.exit_code != 0:
            raise SandboxError(f"a command in the sandbox ended with {answer.exit_code}: {str(answer.result)[-300:]}")
        return str(answer.result)

    async def put(self, files: Mapping[str, bytes | Path]) -> None:
        """Write files, making their directories."""
        sdk = self._api.sdk

        def upload() -> Awaitable[None]:
            sent = [
                sdk.FileUpload(source=data if isinstance(data, bytes) else str(data), destination=path)
                for path, data in files.items()
            ]
            done: Awaitable[None] = self.handle.fs.upload_files(sent, _TRANSFER_SEC)
            return done

        await self.ask("copying files into the sandbox", upload, timeout=_TRANSFER_SEC)

    async def get(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Return the content of small files, without those that are not there."""
        sdk = self._api.sdk
        answers = await self.ask(
            "copying files out of the sandbox",
            lambda: self.handle.fs.download_files([sdk.FileDownloadRequest(source=path) for path in paths]),
            timeout=_TRANSFER_SEC,
        )
        found = {}
        for answer in answers:
            if answer.error is None and answer.result is not None:
                data = answer.result
                found[str(answer.source)] = data.encode() if isinstance(data, str) else bytes(data)
        return found

    async def fetch(self, path: str, target: Path) -> None:
        """Copy one file out. Raises: SandboxError."""
        await self.ask(
            f"copying {path} out of the sandbox",
            lambda: self.handle.fs.download_file(path, str(target), _TRANSFER_SEC),
            timeout=_TRANSFER_SEC,
        )

    async def remove(self, path: str) -> None:
        """Remove a file or a tree; nothing happens when it is not there."""
        with contextlib.suppress(GoneError):
            # That it is not there is no sign of anything here.
            await self._api.ask(f"removing {path}", lambda: self.handle.fs.delete_file(path, recursive=True))

    async def begin(self, session: str, command: str) -> str:
        """Start a command in a session of its own and return its id; it runs once, whatever answers are lost."""
        process = self.handle.process
        request = self._api.sdk.SessionExecuteRequest(command=command, run_async=True)
        await self._open_session(session)
        for _ in range(_TRIES):
            try:
                made = await self.ask(
                    "starting a command",
                    lambda: process.execute_session_command(session, request),
                    again=False,
                )
                return str(made.cmd_id)
            except (DeletedError, GoneError):
                raise
            except SandboxError as error:
                last = error
                found = await self.ask("looking for a command", lambda: process.get_session(session))
                if found.commands:
                    return str(found.commands[0].id)
        raise last

    async def _open_session(self, session: str) -> None:
        process = self.handle.process
        try:
            await self.ask("opening a session", lambda: process.create_session(session))
        except SandboxError:
            # Its answer may have been lost and it be there.
            await self.ask("looking for a session", lambda: process.get_session(session))

    async def code(self, session: str, command: str) -> int | None:
        """Return the exit code of a session's command, None while it runs."""
        found = await self.ask(
            "asking for a command's end", lambda: self.handle.process.get_session_command(session, command)
        )
        return None if found.exit_code is None else int(found.exit_code)

    async def end_session(self, session: str) -> None:
        """Delete a session; nothing happens when there is none."""
        with contextlib.suppress(GoneError):
            await self._api.ask("deleting a session", lambda: self.handle.process.delete_session(session))

    async def sessions(self) -> list[str]:
        """Return the names of the sessions there are."""
        found = await self.ask("listing sessions", self.handle.process.list_sessions)
        return [str(each.session_id) for each in found]

    async def end_terminal(self, name: str) -> None:
        """Kill a terminal; nothing happens when there is none."""
        with contextlib.suppress(GoneError):
            await self._api.ask("ending a terminal", lambda: self.handle.process.kill_pty_session(name))

    async def link(self) -> SshLink:
        """Return the SSH connection, made where there is none. Raises: SandboxError."""
        async with self._linking:
            if self._link is None or not self._link.is_active:
                await self._unlink()
                self._link = await SshLink.connect(await self._access())
            return self._link

    async def _access(self) -> Address:
        made = await self.ask(
            "asking for SSH access", lambda: self.handle.create_ssh_access(expires_in_minutes=ACCESS_MINUTES)
        )
        self._token = str(made.token)
        self._api.hide(self._token)
        return parse_command(str(made.ssh_command), self._token)

    async def _unlink(self) -> None:
        link, self._link = self._link, None
        token, self._token = self._token, ""
        if link is not None:
            await link.close()
        if token and not self.deleting:
            # One that outlives its use is a way in for whoever finds it; the sandbox's end voids it, too.
            with contextlib.suppress(SandboxError):
                await self._api.ask("ending SSH access", lambda: self.handle.revoke_ssh_access(token))

    async def unlink(self) -> None:
        """End the SSH connection and void its token."""
        async with self._linking:
            await self._unlink()
