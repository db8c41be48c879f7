"""Compare two manifests of one agent field by field, byte for byte; only the [host] table is nobody else's concern."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_benchflow.catalog.load import CONTRACT_FIELDS, read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.catalog.load import Manifest

HERE, THERE = "here", "there"
ABSENT = "(absent)"

# What a launch depends on: whether two of these have the same effect shows only when they run.
LAUNCHED = ("launch_cmd", "env_mapping")
# Prose for people.
_WITHOUT_EFFECT = ("description",)
# Lists that are sets to whoever reads them.
_UNORDERED = ("aliases", "home_dirs", "requires_env")
_SHOWN = {" ": "·", "\t": "→", "\n": "⏎"}
_BEFORE, _AFTER = 32, 48


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that is not the same on both sides; `here` and `there` are shown with white space made visible."""

    field: str
    place: str  # of the first difference, such as "line 3, column 7"; empty where the whole value differs
    here: str
    there: str
    weakens: str | None = None  # what one side lost by it, None when nothing is known to be lost
    effect: bool = True  # False: no reader of manifests does anything else for it

    def lines(self) -> list[str]:
        """Return what to print, the first difference in the middle."""
        head = f"{self.field}: {self.place}" if self.place else self.field
        mark = "" if self.effect else " (no effect)"
        loss = [f"  weakens: {self.weakens}"] if self.weakens else []
        return [f"{head}{mark}", f"  here:  {self.here}", f"  there: {self.there}", *loss]


def compare(here: Manifest, there: Manifest) -> tuple[Difference, ...]:
    """Return the differing fields, in the order of the contract; keys that are not known here come last.

    Raises: UsageError when a file has become unreadable.
    """
    ours, theirs = values_of(here), values_of(there)
    unknown = sorted((ours.keys() | theirs.keys()) - set(CONTRACT_FIELDS))
    found = (_difference(name, ours.get(name), theirs.get(name)) for name in (*CONTRACT_FIELDS, *unknown))
    return tuple(each for each in found if each is not None)


def values_of(manifest: Manifest) -> dict[str, Any]:
    """Return every value of the contract, defaults too, and those of keys that only a newer contract knows."""
    newer = {key: value for key, value in read_toml(manifest.file).items() if key not in ("host", *CONTRACT_FIELDS)}
    return {name: getattr(manifest, name) for name in CONTRACT_FIELDS} | newer


def visible(text: str) -> str:
    """Return text on one line in which no character is invisible or looks like another kind of blank."""
    return "".join(_SHOWN.get(each) or (each if _is_plain(each) else _code(each)) for each in text)


def _is_plain(character: str) -> bool:
    # The marks that stand for white space would be taken for it.
    return character not in _SHOWN.values() and unicodedata.category(character)[0] not in "CZ"


def _code(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"


def _difference(name: str, here: Any, there: Any) -> Difference | None:
    if here == there and type(here) is type(there):
        return None
    place, shown = "", (_shown(here), _shown(there))
    if isinstance(here, str) and isinstance(there, str):
        place, shown = _in_text(here, there)
    elif isinstance(here, tuple) and isinstance(there, tuple):
        place, shown = _in_items(dict(enumerate(here, 1)), dict(enumerate(there, 1)), "item")
    elif isinstance(here, dict) and isinstance(there, dict):
        place, shown = _in_items(here, there, "key")
    effect = name not in _WITHOUT_EFFECT and not (name in _UNORDERED and set(here) == set(there))
    return Difference(name, place, *shown, weakens=_loss(name, here, there), effect=effect)


def _in_text(here: str, there: str) -> tuple[str, tuple[str, str]]:
    """Return where two texts part, and both around that place."""
    pairs = enumerate(zip(here, there, strict=False))
    at = next((index for index, (one, other) in pairs if one != other), min(len(here), len(there)))
    before = here[:at]
    place = f"line {before.count(chr(10)) + 1}, column {at - before.rfind(chr(10))}"
    return place, (_around(here, at), _around(there, at))


def _around(text: str, at: int) -> str:
    start, end = max(0, at - _BEFORE), at + _AFTER
    shown = f"{visible(text[start:at])}▸{visible(text[at:end]) or '(end)'}"
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _in_items(here: Mapping[Any, Any], there: Mapping[Any, Any], noun: str) -> tuple[str, tuple[str, str]]:
    """Return the first item or key that differs, and both its values."""
    key = next(key for key in (*here, *there) if here.get(key) != there.get(key) or (key in here) != (key in there))
    one, other = here.get(key), there.get(key)
    place, shown = f"{noun} {visible(str(key))}", (_shown(one), _shown(other))
    if isinstance(one, str) and isinstance(other, str):
        inner, shown = _in_text(one, other)
        place = f"{place}, {inner}"
    return place, shown


def _shown(value: Any) -> str:
    if value is None:
        return ABSENT
    return f'"{visible(value)}"' if isinstance(value, str) else visible(repr(value))


def _loss(name: str, here: Any, there: Any) -> str | None:
    """Name what one side lost: a shorter limit, or a variable that is no longer asked for."""
    if name == "install_timeout" and here is not None and there is not None:
        side, low, high = (HERE, here, there) if here < there else (THERE, there, here)
        return f"timeout lowered {side}: {low} s instead of {high} s"
    if name == "requires_env":
        lost = {HERE: set(there) - set(here), THERE: set(here) - set(there)}
        said = [
            f"{', '.join(map(visible, sorted(names)))} is not required {side}" for side, names in lost.items() if names
        ]
        return f"check dropped: {'; '.join(said)}" if said else None
    return None
