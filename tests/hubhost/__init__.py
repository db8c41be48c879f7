"""A stand-in for the Hugging Face Hub that serves its real Python client: dataset repositories, in memory.

    def test_something(hub: HubHost) -> None:
        repo = hub.create("org/set")
        hub.fail("POST commit", status=500, times=2, lose_reply=True)
        ...
        assert repo.files("main")["a/b.json"] == b"{}"
        assert hub.requests["POST commit"] == 3

`HubHost.environ` is what leads a client here, with a token that may write; `READER` may only read and open pull
requests. The fixture `hub` (tests/conftest.py) empties one server for each test.

What the hub does and this copies: commits are atomic, on top of `parentCommit` or refused with 412; large files go to a
store of their own first, and a commit may only name what is there; what .gitignore names is left out without a word;
listings come in pages; a pull request is a branch refs/pr/N; who may not see a repository is told that there is none.

Routes for faults and counters: `GET info`, `GET tree`, `POST preupload`, `POST batch`, `PUT object`, `POST verify`,
`POST commit`, `GET discussion`, `POST discussion`; a fault takes `*` too.
"""

from __future__ import annotations

from tests.hubhost._host import READER, WRITER, HubHost
from tests.hubhost._repo import Repo

__all__ = ["READER", "WRITER", "HubHost", "Repo"]
