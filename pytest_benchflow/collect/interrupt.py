"""Pass an interrupt on to xdist's workers, which otherwise hear of it only after seconds."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest


class LocalWorkers:
    """Hooks of the controlling process: they know the workers on this machine."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """Remember a worker that has started."""
        if gateway.spec.popen:
            # The way in which xdist itself asks a gateway what is at its other end.
            self._pids[gateway.id] = int(gateway._rinfo().pid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Forget a worker that has ended: its number may be another process's by now."""
        self._pids.pop(node.gateway.id, None)

    def pytest_keyboard_interrupt(self) -> None:
        """Let workers clean up at once: the signal may have reached this process alone.

        A worker that got it too takes both for one.
        """
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """See the workers of an interrupted session ended before anybody looks for what it leaves.

        Otherwise what they are just removing is told as left behind.
        """
        distributes: Any = session.config.pluginmanager.get_plugin("dsession")
        if session.exitstatus == pytest.ExitCode.INTERRUPTED and distributes is not None:
            distributes.pytest_sessionfinish()
