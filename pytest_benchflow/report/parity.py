"""Put the comparison of two manifests into words, what weakens first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_benchflow.catalog.compare import LAUNCHED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_benchflow.catalog.compare import Difference
    from pytest_benchflow.catalog.directory import Directory
    from pytest_benchflow.catalog.load import Manifest
    from pytest_benchflow.rollout.behaviour import Behaviour
    from pytest_benchflow.rollout.drift import Drift

_SHOWN = 10
_STDERR = 300


def missing_lines(name: str, manifest: Manifest | None, there: Directory) -> list[str]:
    """Say that only one side declares an agent."""
    file = manifest.file if manifest is not None else ""
    if name in there.manifests:
        return [f"{name} is missing here: {file} declares it, and our catalogue does not"]
    return [f"{name} is missing there: our catalogue declares it in {file}, and {there.path} does not"]


def parity_lines(
    here: Manifest, there: Manifest, differences: Sequence[Difference], behaviour: Behaviour | str | None
) -> list[str]:
    """Return a summary of one line, each field that differs, and what the launch commands do; text: why unknown."""
    drifts: Sequence[Drift] = ()
    if behaviour is not None and not isinstance(behaviour, str):
        drifts = behaviour.drifts
    losses = [*(each.weakens for each in differences), *(each.weakens for each in drifts)]
    count = len(differences)
    names = ", ".join(each.field for each in differences)
    head = f"{here.name}: {count} field{'s' if count != 1 else ''} differ{'s' if count == 1 else ''}: {names}"
    note = _note(differences, behaviour)
    lines = [f"{head}{f' ({note})' if note else ''}", *(f"weakens: {loss}" for loss in dict.fromkeys(losses) if loss)]
    lines += [f"here:  {here.file}", f"there: {there.file}"]
    for difference in differences:
        lines += ["", *difference.lines()]
    return [*lines, *_behaviour_lines(behaviour)]


def _note(differences: Iterable[Difference], behaviour: Behaviour | str | None) -> str:
    """Return the word on behaviour; it is the same only where nothing else has an effect."""
    others = [each.field for each in differences if each.effect and each.field not in LAUNCHED]
    if behaviour is None:
        return "" if others else "same behaviour"
    if isinstance(behaviour, str) or (behaviour.undecided and not behaviour.drifts):
        return "behaviour undecided"
    if behaviour.drifts:
        return "other behaviour"
    return f"same behaviour of the launch, and {', '.join(others)} may have an effect" if others else "same behaviour"


def _behaviour_lines(behaviour: Behaviour | str | None) -> list[str]:
    if behaviour is None:
        return []
    if isinstance(behaviour, str):
        return ["", f"behaviour undecided: {behaviour}"]
    if behaviour.same:
        return ["", f"both launch commands do the same in {behaviour.rows} environments"]
    rows = len({drift.row for drift in behaviour.drifts})
    lines = ["", f"the launch commands differ in {rows} of {behaviour.rows} environments"] if rows else [""]
    groups = _groups(behaviour.drifts)
    for group in groups[:_SHOWN]:
        lines += group[0].lines() if len(group) == 1 else _joined(group).lines()
    if len(groups) > _SHOWN:
        lines.append(f"and {len(groups) - _SHOWN} more")
    lines += [f"stderr {said[-_STDERR:]}" for said in behaviour.stderr if not said.endswith(": ")]
    doubts = list(behaviour.undecided)
    lines += [f"undecided: {doubt}" for doubt in doubts[:_SHOWN]]
    if len(doubts) > _SHOWN:
        lines.append(f"and {len(doubts) - _SHOWN} more doubts")
    return lines


def _groups(drifts: Iterable[Drift]) -> list[list[Drift]]:
    """Return drifts that differ in their environment only together, those that weaken first."""
    groups: dict[tuple[str, str, str], list[Drift]] = {}
    for drift in drifts:
        groups.setdefault((drift.what, drift.here, drift.there), []).append(drift)
    return sorted(groups.values(), key=lambda group: group[0].weakens is None)


def _joined(group: list[Drift]) -> Drift:
    return replace(group[0], row=f"{group[0].row} and {len(group) - 1} more")
