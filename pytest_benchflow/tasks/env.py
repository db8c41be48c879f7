"""Fill host templates in a task's env tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def expand_env(values: Mapping[str, str], lookup: Callable[[str], str | None]) -> dict[str, str]:
    """Return `values` with ${VAR} and ${VAR:-default} filled in by `lookup`.

    A value that needs an unset variable without a default is left out; `unset_variables` names it.
    """
    return {
        key: _TEMPLATE.sub(lambda match: lookup(match[1]) or match[2] or "", value)
        for key, value in values.items()
        if not _unset(value, lookup)
    }


def host_values(values: Mapping[str, str], lookup: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return what `lookup` gives for the variables in `values`: it came from the host, so it belongs in no record."""
    found = (lookup(match[1]) for value in values.values() for match in _TEMPLATE.finditer(value))
    return tuple(value for value in found if value)


def unset_variables(values: Mapping[str, str], lookup: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return the host variables that `values` needs and `lookup` does not know, sorted."""
    return tuple(sorted({name for value in values.values() for name in _unset(value, lookup)}))


def _unset(value: str, lookup: Callable[[str], str | None]) -> list[str]:
    return [match[1] for match in _TEMPLATE.finditer(value) if match[2] is None and not lookup(match[1])]
