"""Try each key once in a session, and start no rollout with one that its provider has rejected."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from pytest_benchflow.errors import ProviderError, RejectedKeyError
from pytest_benchflow.records.files import open_plain
from pytest_benchflow.records.jsontext import dumps, loads
from pytest_benchflow.records.values import mapping
from pytest_benchflow.rollout.place import take_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO

    from pytest_benchflow.proxy.routes import Route


class Keys:
    """What the processes of a session know of its keys, in a file of the job; it names variables, never values."""

    def __init__(self, job_dir: Path, session_id: str, *, probe: bool) -> None:
        self._path = job_dir / f".keys-{hashlib.sha256(session_id.encode()).hexdigest()[:16]}"
        self._probe = probe
        self._session_id = session_id
        self._let_go: Callable[[], None] | None = None  # of the LiteLLM process, where a key was tried by that

    async def check(self, route: Route | None) -> None:
        """Raise RejectedKeyError for a key known to be rejected; one that nobody has tried is tried here."""
        if route is None or route.way is None:
            return
        way = route.way
        with self._open() as file:
            await take_lock(file)
            known = self._known(file)
            name = f"{way.key_source} {next(iter(way.natives.values()), way.litellm_model.partition('/')[0])}"
            doubt = f"{way.key_name} in doubt"
            if way.key_source is not None and (name not in known or known.get(doubt)) and self._probe:
                known[name] = await self._tried(route)
                file.write(dumps([name, known[name]]) + b"\n" + dumps([doubt, None]) + b"\n")
            at_start, later = known.get(name), known.get(way.key_name)
        if at_start is not None:
            raise RejectedKeyError(
                f"the key in {way.key_source} was rejected: {at_start}; set a valid one, or pass "
                "--benchflow-skip-key-check when this says nothing about the model"
            )
        if later is not None and way.key_source is None:
            raise RejectedKeyError(
                f"requests without a key were rejected: {later}; set one, for a server of your own in "
                "BENCHFLOW_MODEL_API_KEY"
            )
        if later is not None:
            raise RejectedKeyError(f"the key in {way.key_source} was rejected: {later}; set a valid one")

    async def _tried(self, route: Route) -> str | None:
        """Return what a provider says that rejects a key; a process that was started for it stays for the rollouts."""
        from pytest_benchflow.proxy.keycheck import rejection
        from pytest_benchflow.proxy.litellm import Translation

        translation = Translation(self._session_id)
        try:
            said = await rejection(route, translation)
            if translation.begun and said is None and self._let_go is None:
                with suppress(ProviderError):
                    self._let_go = await translation.hold()
            return said
        finally:
            await translation.close()

    def close(self) -> None:
        """Need the LiteLLM process no longer; safe to call twice."""
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()

    def reject(self, source: str, said: str | None) -> None:
        """Note that a provider rejected a key in the middle of a session; None: a doubt, so that it is tried again."""
        line = [f"{source} in doubt", "a request was forbidden"] if said is None else [source, said]
        with suppress(OSError), self._open() as file:
            file.write(dumps(line) + b"\n")

    def forget(self) -> None:
        """Remove the file, when the session is over."""
        self._path.unlink(missing_ok=True)

    def _open(self) -> IO[bytes]:
        return os.fdopen(open_plain(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+b")

    def _known(self, file: IO[bytes]) -> dict[str, str | None]:
        file.seek(0)
        lines = (loads(line) for line in file.read().splitlines() if line.endswith(b"]"))
        return mapping(dict(lines))
