"""A stand-in for Daytona that serves the real Python client and really runs the commands.

    def test_something(daytona: DaytonaHost, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in daytona.environ.items():
            monkeypatch.setenv(name, value)
        daytona.fail("POST /process/execute", status=500, times=2)  # also hang, lose_reply, delay, refuse_quota
        ...
        assert daytona.requests["POST /sandbox"] == 1
        assert not daytona.sandboxes

The fixture `daytona` (tests/conftest.py) is one server for the whole session, healed and emptied for each test.
A sandbox is a record until something is executed in it, then a set of namespaces with a root in memory, the machine's
`/usr` read-only, no network but its own loopback, process 1 and whatever a test starts. `ssh-access` leads to a real
OpenSSH server whose user names are the tokens; it refuses every forwarding.

What Daytona does and this copies: `exec` merges output and errors and its time limit kills the shell alone; a session's
commands are sourced, so `exit` ends it, and its shell stays until the session is deleted; a terminal starts as a login
shell with echo and lines of at most 4096 bytes; a deleted sandbox is 404.

Routes for faults and counters are written without where they are mounted: `POST /sandbox`, `GET /sandbox/{box}`,
`POST /process/session/{session}/exec`; faults take `*` too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tests.daytonahost._host import DaytonaHost
from tests.daytonahost._world import why_not

if TYPE_CHECKING:
    import pytest

__all__ = ["DaytonaHost", "allow_http", "why_not"]


def allow_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client of the object store, to which contexts of builds go, speak HTTP: here is no certificate."""
    module = importlib.import_module("daytona._async.object_storage")
    store = module.S3Store

    def plain(**options: Any) -> Any:
        return store(**{**options, "client_options": {"allow_http": True}})

    monkeypatch.setattr(module, "S3Store", plain)
