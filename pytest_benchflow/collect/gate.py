"""Tell whether a review had every shipped check of every rollout, or lost some on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.checks._baseline import SHIPPED
from pytest_benchflow.collect.findings import PREFIX, says_it_does_not_apply
from pytest_benchflow.collect.selection import absolute_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pytest

_NAMED = 5


class Gate:
    """What reports told of; rollouts are known by the node ids of their files, checks by a bit each.

    A plugin or a conftest may drop items or mark them as skipped: only what a user left out by name is not missed.
    """

    def __init__(self, config: pytest.Config, rollouts: int) -> None:
        self._config = config
        self._rollouts = rollouts
        self._bits = {f"{PREFIX}{name}": 1 << place for place, name in enumerate(SHIPPED)}
        self._told: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def hear(self, report: pytest.TestReport) -> None:
        """Note that a check ran, or said itself why it does not apply."""
        if report.when != "call" or hasattr(report, "wasxfail"):
            return
        if not report.skipped or says_it_does_not_apply(report):
            self._note(self._told, report.nodeid)

    def leave_out(self, items: Iterable[pytest.Item]) -> None:
        """Note items that were deselected, where the user named some to deselect."""
        if self._config.option.keyword or self._config.option.deselect:
            for item in items:
                self._note(self._left_out, item.nodeid)

    @property
    def left_out(self) -> dict[str, int]:
        """Return what was left out by name, as plain values for the process that leads xdist's workers."""
        return self._left_out

    def take_over(self, left_out: Mapping[str, int]) -> None:
        """Add what a worker left out."""
        for place, bits in left_out.items():
            self._left_out[place] = self._left_out.get(place, 0) | bits

    def missed(self) -> list[str]:
        """Say which shipped checks nothing told of, in how many rollouts; empty when none is missed."""
        # --lf and --sw are of failures before, which pytest chooses while it collects; -p may have turned them off.
        if any(self._config.getoption(name, default=False) for name in ("collectonly", "lf", "stepwise")):
            return []
        known = {place: self._told.get(place, 0) | bits for place, bits in self._left_out.items()}
        known = {**self._told, **known, **self._named()}
        seen = [*known.values(), *[0] * (self._rollouts - len(known))]
        counts = {name: sum(not bits & bit for bits in seen) for name, bit in self._bits.items()}
        lost = {name.removeprefix(PREFIX): count for name, count in counts.items() if count}
        missing = [f"  {name}: {count} of {len(seen)} rollouts" for name, count in lost.items()]
        if not missing:
            return []
        more = [f"  and {len(missing) - _NAMED} other checks"] if len(missing) > _NAMED else []
        said = "shipped checks did not run, and no -k or --deselect left them out, so this review fails:"
        return [said, *missing[:_NAMED], *more]

    def _named(self) -> dict[str, int]:
        """Return the rollouts of which the command line names single checks: nothing else of them is missed."""
        config = self._config
        names = [argument for argument in config.args if "::" in argument]
        places = absolute_paths(names, config.invocation_params.dir)
        whole = sum(self._bits.values())
        return {place: whole for place in self._told if config.rootpath / place in places}

    def _note(self, where: dict[str, int], nodeid: str) -> None:
        place, _, name = nodeid.rpartition("::")
        bit = self._bits.get(name)
        if bit is not None:
            where[place] = where.get(place, 0) | bit
