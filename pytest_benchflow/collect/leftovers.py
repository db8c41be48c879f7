"""Fail a session that leaves a sandbox behind, by an item of its own that only such a session has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NODE_ID = "benchflow::sandboxes_are_gone"


class SandboxesAreGone(pytest.Item):
    """Fails with the sandboxes that are not surely gone."""

    def __init__(self, *, left: Sequence[str], **rest: Any) -> None:
        super().__init__(nodeid=NODE_ID, **rest)
        self._left = left

    def runtest(self) -> None:
        """Fail."""
        shown = "\n  ".join(self._left)
        pytest.fail(
            f"{len(self._left)} not removed by this session, or not known to be; what is left may go on and cost "
            f"something:\n  {shown}\n"
            "`pytest-benchflow reap` removes what can be, and so does the next session's start",
            pytrace=False,
        )

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return what the failure is headed by."""
        return self.path, None, "sandboxes are gone"


def report_left(session: pytest.Session, left: Sequence[str]) -> None:
    """Run the item for every plugin to hear of: the terminal, JUnit's file and others'."""
    name = NODE_ID.rpartition("::")[2]
    item: pytest.Item = SandboxesAreGone.from_parent(session, name=name, left=left)
    session.testscollected += 1  # or it would be counted as more than all
    session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
