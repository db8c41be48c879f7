"""Distribute items over xdist workers so that a rollout and its checks meet in one process."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]  # it ships no types

if TYPE_CHECKING:
    from collections.abc import Callable

# So many workers may die of one group, as of a rollout and then of a check of what it left.
_DEATHS = 2
# What follows the file in the id of a check of a rollout on disk.
_CHECK = "::check_"
# A run of an agent: the capabilities that it shows are judged where it ran.
_SCENARIO = "conformance/"
_CELL = re.compile(r"(?P<file>.*/?task\.(?:toml|md))::(?:rollout|check_\w+)(?P<cell>\[.*\])\Z", re.DOTALL)


class CellScheduling(LoadGroupScheduling):  # type: ignore[misc]  # its base has none
    """Distribute by group, where the items of a cell are a group by their ids alone.

    xdist itself marks groups by adding to node ids, which some versions of pytest undo, and which would give items
    other ids under -n than without it.
    """

    def __init__(self, config: Any, log: Any, *, flights: int, lost: Callable[[str], None] = lambda _: None) -> None:
        """Keep `flights` groups on each worker; `lost` is told of the item that ran when a worker died."""
        super().__init__(config, log)
        self._flights = flights
        self._lost = lost
        self._deaths: Counter[str] = Counter()  # by group: workers that died as they ran it

    def schedule(self) -> None:
        """Hand out work, also to a worker that came late."""
        super().schedule()
        self._end_idle_waits()

    def remove_node(self, node: Any) -> str | None:
        """Take back the work of a worker that ended; the item that ran when it died is done, and is not run again.

        Of a group that has taken several workers along the rest is told of as failed, and not run.
        """
        groups = self.assigned_work[node]
        left = (str(item) for group in groups.values() for item, done in group.items() if not done)
        crashed = next(left, None)
        if crashed is None:
            super().remove_node(node)
            self._end_idle_waits()
            return None
        self._lost(crashed)
        scope = self._split_scope(crashed)
        groups[scope][crashed] = True
        self._deaths[scope] += 1
        given_up = [item for item, done in groups[scope].items() if not done and self._deaths[scope] >= _DEATHS]
        groups[scope].update(dict.fromkeys(given_up, True))
        super().remove_node(node)
        self._end_idle_waits()
        for item in given_up:
            self._tell_not_run(item, f"not run: {_DEATHS} workers died as they ran items of {scope}")
        return crashed

    def _tell_not_run(self, item: str, why: str) -> None:
        """Report an item that no worker will run as failed, as xdist reports one that a worker died of."""
        place = (item.partition("::")[0], None, item.partition("::")[2])
        when: Any = "setup"
        report = pytest.TestReport(item, place, {}, "failed", why, when)
        self.config.hook.pytest_runtest_logreport(report=report)

    def _reschedule(self, node: Any) -> None:
        """Hand a worker more work: as many groups as it keeps rollouts in flight, but no more than its share."""
        if node not in self.registered_collections:
            return  # one that takes a dead one's place, and has not told what it collected
        self._forget_done()
        workers = sum(1 for each in self.nodes if not each.shutting_down)
        if self._flights > 1 and workers and not node.shutting_down:
            left = len(self.workqueue) + sum(map(self._groups_of, self.nodes))
            while self.workqueue and self._groups_of(node) < min(self._flights, -(-left // workers)):
                self._assign_work_unit(node)
        super()._reschedule(node)

    def _groups_of(self, node: Any) -> int:
        """Return how many groups of a worker are not done."""
        return sum(1 for group in self.assigned_work[node].values() if not all(group.values()))

    def _end_idle_waits(self) -> None:
        """Give each worker a second item, or word that no more will come.

        A worker holds its last item back until it knows what follows. xdist sees to that at the start only, so that
        what is handed on after a crash might never be run.
        """
        if self.collection is None:
            return
        self._forget_done()
        # One that takes a dead one's place is handed work when it has told what it collected.
        waiting = [node for node in self.nodes if node in self.registered_collections and not node.shutting_down]
        for node in waiting:
            while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
                self._assign_work_unit(node)
        if not self.workqueue:
            for node in waiting:
                node.shutdown()

    def _forget_done(self) -> None:
        """Drop groups that a worker had done when it died: handed on, they would be work of which no end is told."""
        for scope in [scope for scope, group in self.workqueue.items() if all(group.values())]:
            del self.workqueue[scope]

    def _split_scope(self, nodeid: str) -> str:
        found = _CELL.match(nodeid)
        if found:
            return f"{found['file']}{found['cell']}"
        if nodeid.startswith(_SCENARIO):
            return nodeid.partition("::")[0]
        return nodeid.partition(_CHECK)[0] if _CHECK in nodeid else str(super()._split_scope(nodeid))
