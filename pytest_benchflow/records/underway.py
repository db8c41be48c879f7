"""Hold what is told of a rollout while it is under way: plain values, so that they travel between processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        """Return what `as_dict` was made from."""
        return cls(**values)
