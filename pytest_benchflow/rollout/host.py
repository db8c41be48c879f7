"""Hold what the rollouts of one process share: the gateway, scratch space and the sandbox ledger."""

from __future__ import annotations

import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.journal import Journal
from pytest_benchflow.rollout.scratch import ScratchBase

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from pytest_benchflow.proxy.gateway import Gateway


class Host:
    """An async context manager; `session_id` tells the rollouts of one pytest session from older ones."""

    def __init__(self, session_id: str | None = None) -> None:
        self.session_id = session_id or secrets.token_hex(8)
        self.scratch = ScratchBase()
        self._gateway: Gateway | None = None
        self._ledgers: dict[Path, Journal] = {}

    async def __aenter__(self) -> Host:
        self.scratch.open()
        self.scratch.sweep()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._gateway is not None:
            await self._gateway.close()
        for ledger in self._ledgers.values():
            ledger.close()
        self.scratch.close()

    def gateway(self) -> Gateway:
        """Return this process's gateway, made on first use."""
        if self._gateway is None:
            from pytest_benchflow.proxy.gateway import Gateway

            self._gateway = Gateway()
        return self._gateway

    def ledger(self, job_dir: Path, event: str, **facts: Any) -> None:
        """Add a line to the job's sandbox ledger: before create, after create, after delete."""
        path = job_dir / "sandboxes.jsonl"
        journal = self._ledgers.setdefault(path, Journal(path))
        journal.append({"event": event, "time": time.time(), "pid": os.getpid(), "session": self.session_id, **facts})
