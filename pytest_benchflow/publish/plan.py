"""Lay out a publication: which rollouts go where, the manifests that tell of them, and what stays here and why."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow import __version__
from pytest_benchflow.errors import UsageError
from pytest_benchflow.publish.choose import Chosen, choose
from pytest_benchflow.publish.staging import File
from pytest_benchflow.records.find import is_attempt
from pytest_benchflow.report.review import rollouts_at
from pytest_benchflow.rollout.config import slug
from pytest_benchflow.training.messages import scrub

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.publish.choose import LeftOut, Rules
    from pytest_benchflow.records.redact import Redactor

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Unit:
    """A rollout with its manifest: what of it goes to the repository, in this order."""

    chosen: Chosen
    manifest: bytes

    @cached_property
    def files(self) -> dict[str, File]:
        """Return its files by their path in the repository, the manifest last: where it is, all else is too."""
        place = self.chosen.place
        files = {f"{place}/{file.path}": file for file in self.chosen.files}
        return files | {f"{place}/{MANIFEST}": of_bytes(MANIFEST, self.manifest)}


@dataclass(frozen=True)
class Plan:
    """A publication: `manifest` goes to `place` once all units are there."""

    units: Sequence[Unit]
    left_out: Sequence[LeftOut]
    place: str = ""
    manifest: bytes = b""
    counts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def files(self) -> dict[str, File]:
        """Return all that goes by its path in the repository, in the order it goes."""
        found = {path: file for unit in self.units for path, file in unit.files.items()}
        return found | ({self.place: of_bytes(MANIFEST, self.manifest)} if self.units else {})


def make_plan(path: Path, rules: Rules, redactor: Redactor, tell: Callable[[str], None] = lambda _: None) -> Plan:
    """Judge each rollout at or below a path and lay out where those go that may; one is copied at a time.

    Raises: UsageError: no rollout is there, one cannot be named, or two would go to one place.
    """
    if is_attempt(path.resolve()):
        raise UsageError(f"{path} is an earlier attempt, which is never published; name the rollout or its job")
    units: list[Unit] = []
    left_out: list[LeftOut] = []
    for root in rollouts_at([path], planned=True):
        tell(f"reading {root}")
        decided = choose(root, rules, redactor)
        if isinstance(decided, Chosen):
            units.append(Unit(decided, _rollout_manifest(decided)))
        else:
            left_out.append(decided)
    _check_places(units, rules)
    if not units:
        return Plan(units, left_out, counts=_counts(units, left_out))
    return _with_manifest(path, units, left_out, rules)


def of_bytes(path: str, data: bytes) -> File:
    """Return what is known of a file that is made here."""
    git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
    return File(path, len(data), hashlib.sha256(data).hexdigest(), git.hexdigest())


def _check_places(units: Sequence[Unit], rules: Rules) -> None:
    """Refuse what would mix rollouts up. Raises: UsageError."""
    taken: dict[str, Chosen] = {}
    for unit in units:
        # Not all who read a repository tell capital letters from small ones.
        other = taken.setdefault(unit.chosen.place.lower(), unit.chosen)
        if other is not unit.chosen:
            raise UsageError(
                f"{other.root} and {unit.chosen.root} would both go to {unit.chosen.place}: they have the same raw "
                "trace, or nearly the same id; publish one of them"
            )
        if unit.chosen.canary and not rules.template.parts_canaries:
            raise UsageError(
                f"{unit.chosen.root} is a canary, which goes apart from what is counted; "
                "give --path-template a part {canaries}"
            )


def _rollout_manifest(chosen: Chosen) -> bytes:
    """Return a rollout's own manifest; the same for the same rollout, whenever it is made."""
    return _json(
        {
            "format": FORMAT,
            "plugin_version": __version__,
            **chosen.facts,
            "redactions": dict(sorted(chosen.redacted.items())),
            "files": [{"path": file.path, "bytes": file.size, "sha256": file.sha256} for file in chosen.files],
            "files_left_out": dict(sorted(chosen.left.items())),
        }
    )


def _with_manifest(path: Path, units: Sequence[Unit], left_out: Sequence[LeftOut], rules: Rules) -> Plan:
    ordered = sorted(units, key=lambda unit: unit.chosen.place)
    counts = _counts(ordered, left_out)
    manifest = _json(
        {
            "format": FORMAT,
            "plugin_version": __version__,
            "counts": counts,
            "rollouts": [_entry(unit) for unit in ordered],
            "left_out": [
                {"job": each.root.resolve().parent.name, "rollout": each.root.name, "reason": each.reason}
                for each in left_out
            ],
        }
    )
    datasets = {unit.chosen.dataset for unit in ordered}
    base = rules.template.base(datasets.pop() if len(datasets) == 1 else None)
    name = f"{slug(path.resolve().name)}__{hashlib.sha256(manifest).hexdigest()[:8]}"
    place = "/".join(part for part in (base, "manifests", name, MANIFEST) if part)
    return Plan(ordered, left_out, place, manifest, counts)


def _entry(unit: Unit) -> dict[str, Any]:
    facts = {name: value for name, value in unit.chosen.facts.items() if name != "audit"}
    manifest = unit.files[f"{unit.chosen.place}/{MANIFEST}"]
    return {
        "path": unit.chosen.place,
        **facts,
        "manifest_sha256": manifest.sha256,
        "files": len(unit.files),
        "bytes": sum(file.size for file in unit.files.values()),
    }


def _counts(units: Sequence[Unit], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """Return how many rollouts were seen and what became of them; canaries are counted on their own."""
    canaries = sum(unit.chosen.canary for unit in units)
    return {
        "seen": len(units) + len(left_out),
        "rollouts": len(units) - canaries,
        "canaries": canaries,
        "left_out": dict(sorted(Counter(each.reason for each in left_out).items())),
        "files": sum(len(unit.files) for unit in units),
        "bytes": sum(file.size for unit in units for file in unit.files.values()),
        "redactions": sum(sum(unit.chosen.redacted.values()) for unit in units),
    }


def _json(value: Any) -> bytes:
    return orjson.dumps(scrub(value), option=orjson.OPT_INDENT_2) + b"\n"
