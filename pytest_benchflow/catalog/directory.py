"""Read a directory of others' manifests: files named manifest.toml, at any depth."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow import registry
from pytest_benchflow.catalog.load import CONTRACT_FIELDS, Manifest, load_manifest, shipped
from pytest_benchflow.errors import UsageError
from pytest_benchflow.records.source import source_of
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FILE_NAME = "manifest.toml"
VARIABLE = "BENCHFLOW_AGENTS_DIR"
# Hidden directories are passed over too, and so those of version control and of most tools.
_SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages", "target", "venv"})


@dataclass(frozen=True, slots=True)
class Directory:
    """The manifests of a directory by name, and the state of the checkout it lies in."""

    path: Path
    manifests: Mapping[str, Manifest]
    commit: str | None = None  # None: no checkout
    dirty: bool | None = None  # whether files below `path` differ from that commit

    def __str__(self) -> str:
        """Return path, commit and state on one line."""
        if self.commit is None:
            return f"{self.path} (in no git checkout)"
        return f"{self.path} (commit {self.commit}{', with uncommitted changes' if self.dirty else ''})"


def read_directory(path: Path) -> Directory:
    """Read every manifest at or below a directory. Raises: UsageError naming each fault; then none is to be used."""
    if not os.path.isdir(path):  # noqa: PTH112 - a name too long is no directory either, and no error of ours
        raise UsageError(f"{path} is no directory; it takes one that holds {FILE_NAME} files")
    manifests: list[Manifest] = []
    faults: list[str] = []
    for file in manifest_files(path):
        try:
            manifests.append(load_manifest(file))
        except UsageError as error:
            faults.append(str(error))
    faults += [f"{manifest.file}: {text}" for manifest, text in collisions(manifests)]
    if faults:
        raise UsageError("\n".join(faults))
    if not manifests:
        raise UsageError(f"{path} holds no {FILE_NAME}, at any depth; hidden and build directories are passed over")
    source = source_of(path.absolute()) or {}
    return Directory(
        path=path,
        manifests={manifest.name: manifest for manifest in sorted(manifests, key=lambda each: each.name)},
        commit=source.get("commit"),
        dirty=source.get("dirty"),
    )


def declare_agents() -> Directory | None:
    """Make the agents of the directory that BENCHFLOW_AGENTS_DIR names known; None: it names none.

    Raises: UsageError naming each fault; then no agent of it is known.
    """
    named = host_variable(VARIABLE)
    if named is None:
        return None
    try:
        directory = read_directory(Path(named))
        registry.declare(others(directory.manifests))
    except UsageError as error:
        raise UsageError(f"{VARIABLE}: {error}") from None
    return directory


def others(manifests: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """Return the manifests that are not the catalogue's own: the same contract means the same agent."""

    def contract(manifest: Manifest | None) -> list[object]:
        return [getattr(manifest, name, None) for name in CONTRACT_FIELDS]

    return {name: each for name, each in manifests.items() if contract(each) != contract(shipped(name))}


def manifest_files(path: Path) -> Iterator[Path]:
    """Yield the manifest files at or below a directory in order; links to directories are not followed.

    Raises: UsageError for a directory that cannot be read: its manifests would be missed.
    """
    for root, directories, files in os.walk(path, onerror=_refuse):
        directories[:] = sorted(name for name in directories if not name.startswith(".") and name not in _SKIPPED)
        if FILE_NAME in files:
            yield Path(root, FILE_NAME)


def _refuse(error: OSError) -> None:
    raise UsageError(f"{error.filename}: cannot be read: {error.strerror}")


def collisions(manifests: Iterable[Manifest]) -> list[tuple[Manifest, str]]:
    """Return each manifest that claims a name or alias of one before it, with what it claims and where the other is."""
    owners: dict[str, Manifest] = {}
    found = []
    for manifest in manifests:
        # An alias that repeats the agent's own name says nothing new.
        for name in dict.fromkeys((manifest.name, *manifest.aliases)):
            other = owners.setdefault(name, manifest)
            if other is not manifest:
                text = f"{name!r} is {_claim(manifest, name)} here and {_claim(other, name)} in {other.file}"
                found.append((manifest, f"{text}; an agent's names and aliases must be its own"))
    return found


def _claim(manifest: Manifest, name: str) -> str:
    return "the name" if manifest.name == name else "an alias"
