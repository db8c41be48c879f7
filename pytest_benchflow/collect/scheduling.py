"""Distribute items over xdist workers so that a rollout and its checks meet in one process."""

from __future__ import annotations

import re

from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]  # it ships no types

_CELL = re.compile(r"(?P<file>.*/?task\.(?:toml|md))::(?:rollout|check_\w+)(?P<cell>\[.*\])\Z", re.DOTALL)


class CellScheduling(LoadGroupScheduling):  # type: ignore[misc]  # its base has none
    """Distribute by group, where the items of a cell are a group by their ids alone.

    xdist itself marks groups by adding to node ids, which some versions of pytest undo, and which would give items
    other ids under -n than without it.
    """

    def _split_scope(self, nodeid: str) -> str:
        found = _CELL.match(nodeid)
        return f"{found['file']}{found['cell']}" if found else str(super()._split_scope(nodeid))
