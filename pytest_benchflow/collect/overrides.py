"""Refuse overrides of the ladder of fixtures that would make one rollout of several cells, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.report.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_benchflow.fixtures import Runs

# By rung: what of a cell it decides, and how people call several of it.
_RUNGS = {"agent": ("agent_name", "agent"), "llm_proxy": ("model", "model")}
# From these an override may learn which cell it is asked for.
_TELLS = frozenset({"request", "benchflow_cell", "sandbox", "llm_proxy", "agent", "rollout"})


def check_overrides(items: Iterable[pytest.Item], runs: Runs) -> None:
    """Refuse an override that is the same for cells which only differ in what it decides. Raises: pytest.UsageError."""
    known: dict[tuple[Any, ...], set[str]] = {}
    for item in items:
        cell = runs.cell_of(item)
        if cell is None:
            continue
        for rung, (decides, noun) in _RUNGS.items():
            value = getattr(cell, decides)
            if value == "none" or not _is_blind(item, rung):
                continue
            others = {name: getattr(cell, name) for name, _ in _RUNGS.values() if name != decides}
            values = known.setdefault(
                (rung, str(getattr(cell.task, "path", cell.task)), cell.skills, cell.trial, *others.values()), set()
            )
            values.add(value)
            if len(values) > 1:
                place = _function(item, rung).__code__
                raise pytest.UsageError(
                    f"the fixture {rung} of {printable(place.co_filename)}:{place.co_firstlineno} is the same for "
                    f"{counted(len(values), noun)} ({', '.join(sorted(map(printable, values)))}), whose rollouts would "
                    f"be one; ask for one {noun}, or let the fixture take benchflow_cell and return what it names"
                )


def _is_blind(item: pytest.Item, rung: str) -> bool:
    """Tell whether somebody overrides a rung by a function that cannot know the cell."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    definitions = known.get(rung, ())
    if not definitions or _is_ours(definitions[-1]):
        return False
    seen: set[str] = set()
    left = [definitions[-1]]
    while left:
        definition = left.pop()
        if definition.params or not _TELLS.isdisjoint(definition.argnames):
            return False
        names = [name for name in definition.argnames if name not in seen]
        seen.update(names)
        left += [known[name][-1] for name in names if known.get(name) and not _is_ours(known[name][-1])]
    return True


def _is_ours(definition: Any) -> bool:
    return str(definition.func.__module__).startswith("pytest_benchflow.")


def _function(item: pytest.Item, rung: str) -> Any:
    info: Any = getattr(item, "_fixtureinfo", None)
    return info.name2fixturedefs[rung][-1].func
