"""Hold what the rollouts of one process share: the gateway, scratch space and the sandbox ledger."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import hashlib
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.records.turns import in_turn
from pytest_benchflow.rollout.aside import whole
from pytest_benchflow.rollout.ledger import NAME, Ledger, closes, settle
from pytest_benchflow.rollout.scratch import ScratchBase
from pytest_benchflow.sandboxes._local.sessions import base_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pytest_benchflow.contracts import Backend
    from pytest_benchflow.proxy.gateway import Gateway
    from pytest_benchflow.proxy.litellm import Translation
    from pytest_benchflow.rollout.progress import Progress

T = TypeVar("T")


class Host:
    """An async context manager; `session_id` tells the rollouts of one pytest session from older ones.

    `model_concurrency` is how many calls may be open per key, over all processes of the session; None: any number.
    """

    def __init__(self, session_id: str | None = None, *, model_concurrency: int | None = None) -> None:
        self.session_id = session_id or secrets.token_hex(8)
        self._model_concurrency = model_concurrency
        self.progress: Progress | None = None  # tells of rollouts under way, where somebody wants to know
        self.scratch = ScratchBase()
        self._gateway: Gateway | None = None
        self._translation: Translation | None = None
        self._ledger: Ledger | None = None
        self._backends: dict[int, Backend] = {}
        # One thread: records are made by computing, and the loop would have to share the interpreter with several.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="benchflow-records")

    async def __aenter__(self) -> Host:
        self._ledger = Ledger(self.scratch.open() / NAME, self.session_id)
        self.scratch.sweep(last=NAME, settle=lambda path: settle(path, self.session_id))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with AsyncExitStack() as stack:  # each is let go of, whatever the others raise
            stack.callback(self._writer.shutdown)
            stack.callback(self._close_scratch)
            if self._ledger is not None:
                stack.callback(self._ledger.close)
            for backend in self._backends.values():
                stack.push_async_callback(backend.close)
            if self._translation is not None:
                stack.push_async_callback(self._translation.close)
            if self._gateway is not None:
                stack.push_async_callback(self._gateway.close)

    def _close_scratch(self) -> None:
        self.scratch.close(keep="" if closes(self.scratch.open() / NAME) else NAME)

    async def write_whole(self, write: Callable[..., T], *args: Any, begun: bool) -> tuple[T, bool]:
        """Write records in a thread of their own, to their end; return (result, whether it was interrupted meanwhile).

        Raises: CancelledError when the records were not `begun`, and need not be.
        """
        work = self._writer.submit(in_turn, contextvars.copy_context().run, functools.partial(write, *args))
        return await whole(asyncio.wrap_future(work), lambda: not begun and work.cancel())

    def use(self, backend: Backend) -> None:
        """Let go of what a backend holds when this host is left."""
        self._backends[id(backend)] = backend

    def gateway(self) -> Gateway:
        """Return this process's gateway, made on first use."""
        if self._gateway is None:
            from pytest_benchflow.proxy._pacing import Pacing
            from pytest_benchflow.proxy.gateway import Gateway

            # Of this session, whichever of its processes comes first.
            shared = base_directory() / f"pacing-{hashlib.sha256(self.session_id.encode()).hexdigest()[:16]}"
            self._gateway = Gateway(pacing=Pacing(shared, limit=self._model_concurrency))
        return self._gateway

    def translation(self) -> Translation:
        """Return this process's share in the session's LiteLLM process, which starts when it is first needed."""
        if self._translation is None:
            from pytest_benchflow.proxy.litellm import Translation

            self._translation = Translation(self.session_id)
        return self._translation

    @property
    def ledger(self) -> Ledger:
        """Return the ledger of sandboxes. Raises: SandboxError before the host is entered."""
        if self._ledger is None:
            raise SandboxError("the host's rollouts have not begun: use it as a context manager")
        return self._ledger
