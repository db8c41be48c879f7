"""Hold what is told of a rollout while it is under way: plain values, so that they travel between processes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, NoneType),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "float | None": (float, int, NoneType),
}


@dataclass(slots=True)
class UnderWay:
    """A rollout as it stands; it is under way until `ended`."""

    name: str  # of its directory
    task: str
    agent: str
    model: str
    skills: str
    trial: int
    calls_model: bool = False
    paid: bool = False  # a provider answers, whose answers cost something
    phase: str = ""  # "" before the first
    step: str | None = None  # of a task with several, while an agent works on it
    exchanges: int = 0  # that have ended, over all attempts
    tokens: int = 0  # of those that tell
    untold: int = 0  # exchanges of unknown tokens
    cost: float = 0.0  # US dollars of those that are known
    unpriced: int = 0  # exchanges of unknown cost
    tool: str | None = None  # that the model called last: an agent's text
    ended: bool = False
    verdict: str | None = None
    category: str | None = None  # of an unhealthy one
    healthy: bool = False
    seconds: float | None = None  # that it took

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, whose texts any encoding of Unicode takes."""
        return {
            name: value.encode(errors="replace").decode() if isinstance(value, str) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> UnderWay:
        """Return what `as_dict` was made from. Raises: ValueError for what none is made of."""
        known = {each.name: str(each.type) for each in fields(cls)}
        if values.keys() != known.keys():
            strange = ", ".join(sorted(map(repr, values.keys() ^ known.keys())))
            raise ValueError(f"a rollout under way is {', '.join(known)}; too much or too little: {strange}")
        for name, kind in known.items():
            value = values[name]
            if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "bool"):
                raise ValueError(f"{name} of a rollout under way is a {type(value).__name__}, where {kind} belongs")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} of a rollout under way is {value}, where a finite number belongs")
        return cls(**values)
