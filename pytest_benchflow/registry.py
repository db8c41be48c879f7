"""Find plug-ins by the name a user types: the file of that name, or what a hook registered.

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

_PACKAGE = Path(__file__).parent
_registered: dict[str, dict[str, Any]] = {}


def register(kind: str, name: str, plugin: Any) -> None:
    """Add a plug-in of `kind` (agents, sandboxes, checks, exporters) that a hook offered.

    Raises: UsageError on a taken name.
    """
    if name in _registered.setdefault(kind, {}) or canonical(kind, name) in shipped(kind):
        raise UsageError(f"{kind}: the name {name!r} is taken; registered plug-ins need a name of their own")
    _registered[kind][name] = plugin


def registered(kind: str) -> Mapping[str, Any]:
    """Return what hooks registered for `kind`, by name."""
    return _registered.get(kind, {})


def forget_registered() -> None:
    """Drop what hooks registered; pytest calls it when its session's configuration ends."""
    _registered.clear()


@functools.cache
def shipped(kind: str) -> tuple[str, ...]:
    """Return the names of the plug-in files of `kind`, sorted; an agent's may be a catalogue manifest."""
    files = [path for path in (_PACKAGE / kind).glob("*.py") if not path.stem.startswith("_")]
    return tuple(sorted({path.stem for path in (*files, *_manifests(kind))}))


def names(kind: str) -> list[str]:
    """Return every name a user may type for `kind`, sorted."""
    return sorted({*shipped(kind), *registered(kind)})


def canonical(kind: str, name: str) -> str:
    """Return the name that an alias stands for (an agent's manifest may give some); any other name as it is.

    An agent's may end in @ and a version, which stays.
    """
    if kind != "agents" or name in names(kind):
        return name
    base, at, version = name.partition("@")
    return _aliases().get(base, base) + at + version


def load(kind: str, name: str, attribute: str) -> Any:
    """Return `attribute` of the file `kind`/`name`.py, or what a hook registered. Raises: UsageError."""
    name = canonical(kind, name)
    if name in registered(kind):
        return registered(kind)[name]
    base, at, version = name.partition("@") if kind == "agents" else (name, "", "")
    if base not in shipped(kind):
        raise UsageError(f"{kind}: nothing is named {name!r}; there are: {', '.join(names(kind))}")
    # An agent that is nothing but a manifest is run by the one module that runs any of them.
    only_manifest = kind == "agents" and not (_PACKAGE / kind / f"{base}.py").exists()
    if at and not only_manifest:
        raise UsageError(f"agents: {base} comes in one version only; leave out @{version}")
    return getattr(
        importlib.import_module(f"pytest_benchflow.{kind}.{'_catalog' if only_manifest else base}"), attribute
    )


@functools.cache
def _aliases() -> dict[str, str]:
    # Imported here: only a name that is no file's asks for it.
    import tomllib

    found = {path.stem: tomllib.loads(path.read_text("utf-8")) for path in _manifests("agents")}
    return {alias: name for name, manifest in found.items() for alias in manifest.get("aliases", ())}


def _manifests(kind: str) -> list[Path]:
    return list((_PACKAGE / "catalog").glob("*.toml")) if kind == "agents" else []
