"""Find plug-ins by the name a user types: the file of that name, what a hook registered, or a manifest of others'.

Files are imported on first use, so that starting pytest costs nothing.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.catalog.load import Manifest

_PACKAGE = Path(__file__).parent
_registered: dict[str, dict[str, Any]] = {}
_declared: dict[str, Manifest] = {}


def register(kind: str, name: str, plugin: Any) -> None:
    """Add a plug-in of `kind` (agents, sandboxes, checks, exporters) that a hook offered.

    Raises: UsageError on a taken name.
    """
    if name in _registered.setdefault(kind, {}) or canonical(kind, name) in names(kind):
        raise UsageError(f"{kind}: the name {name!r} is taken; registered plug-ins need a name of their own")
    _registered[kind][name] = plugin


def registered(kind: str) -> Mapping[str, Any]:
    """Return what hooks registered for `kind`, by name."""
    return _registered.get(kind, {})


def declare(manifests: Mapping[str, Manifest]) -> None:
    """Add the agents of others' manifests, by name; one of the catalogue's names takes its place.

    Raises: UsageError naming each name that is another agent's; then none is added.
    """
    if faults := [f"{manifests[name].file}: {text}" for name, text in taken(manifests)]:
        raise UsageError("\n".join(faults))
    _declared.update(manifests)


def taken(manifests: Mapping[str, Manifest]) -> list[tuple[str, str]]:
    """Return the manifests, by name, that claim a name of an agent here which they do not replace, with what to say."""
    kept = {name: name for name in names("agents") if name not in manifests or not _is_only_a_manifest(name)}
    kept |= {alias: name for alias, name in shipped_aliases().items() if name in kept}
    kept |= {alias: each.name for each in _declared.values() if each.name not in manifests for alias in each.aliases}
    return [
        (
            manifest.name,
            f"{name!r} is taken by {'' if kept[name] == name else 'an alias of '}the agent {kept[name]}, "
            "which it does not replace; an agent's names and aliases must be its own",
        )
        for manifest in manifests.values()
        for name in dict.fromkeys((manifest.name, *manifest.aliases))
        if name in kept
    ]


def declared() -> Mapping[str, Manifest]:
    """Return the manifests that were declared, by name."""
    return _declared


def forget_registered() -> None:
    """Drop what hooks registered and manifests declared; pytest calls it when its session's configuration ends."""
    _registered.clear()
    _declared.clear()


@functools.cache
def shipped(kind: str) -> tuple[str, ...]:
    """Return the names of the plug-in files of `kind`, sorted; an agent's may be a catalogue manifest."""
    files = [path for path in (_PACKAGE / kind).glob("*.py") if not path.stem.startswith("_")]
    return tuple(sorted({path.stem for path in (*files, *_manifests(kind))}))


def names(kind: str) -> list[str]:
    """Return every name a user may type for `kind`, sorted."""
    return sorted({*shipped(kind), *registered(kind), *(_declared if kind == "agents" else ())})


def canonical(kind: str, name: str) -> str:
    """Return the name that an alias stands for (an agent's manifest may give some); any other name as it is.

    An agent's may end in @ and a version, which stays.
    """
    if kind != "agents" or name in names(kind):
        return name
    base, at, version = name.partition("@")
    theirs = {alias: manifest.name for manifest in _declared.values() for alias in manifest.aliases}
    replaced = shipped_aliases().get(base) in _declared
    return theirs.get(base, base if replaced else shipped_aliases().get(base, base)) + at + version


def load(kind: str, name: str, attribute: str) -> Any:
    """Return `attribute` of the file `kind`/`name`.py, or what a hook registered. Raises: UsageError."""
    name = canonical(kind, name)
    if name in registered(kind):
        return registered(kind)[name]
    base, at, version = name.partition("@") if kind == "agents" else (name, "", "")
    if base not in names(kind):
        raise UsageError(f"{kind}: nothing is named {name!r}; there are: {', '.join(names(kind))}")
    # An agent that is nothing but a manifest is run by the one module that runs any of them.
    only_manifest = kind == "agents" and _is_only_a_manifest(base)
    if at and not only_manifest:
        raise UsageError(f"agents: {base} comes in one version only; leave out @{version}")
    return getattr(
        importlib.import_module(f"pytest_benchflow.{kind}.{'_catalog' if only_manifest else base}"), attribute
    )


@functools.cache
def shipped_aliases() -> Mapping[str, str]:
    """Return the aliases of the catalogue's agents, each with the name it stands for."""
    # Imported here: only a name that is no file's asks for it.
    import tomllib

    found = {path.stem: tomllib.loads(path.read_text("utf-8")) for path in _manifests("agents")}
    return {alias: name for name, manifest in found.items() for alias in manifest.get("aliases", ())}


def _is_only_a_manifest(agent: str) -> bool:
    return agent not in registered("agents") and not (_PACKAGE / "agents" / f"{agent}.py").exists()


def _manifests(kind: str) -> list[Path]:
    return list((_PACKAGE / "catalog").glob("*.toml")) if kind == "agents" else []
