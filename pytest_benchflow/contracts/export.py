"""What an export format must offer, and the conversations that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_benchflow.records.usage import Usage


@dataclass(frozen=True, slots=True)
class Conversation:
    """One branch of a rollout, ready to be written: strict JSON in every value, and secrets taken out."""

    rollout: str  # name of the rollout's directory
    role: str  # policy, or side: a title, a summary, a sub-agent
    branch: int  # 0-based, in the order the branches of a role end
    messages: list[dict[str, Any]]  # chat-style; contents are strings, arguments a JSON object in a string
    tools: list[dict[str, Any]]  # chat-style; each with its last schema
    origins: tuple[int | None, ...]  # for each message the exchange that answered with it; None: not the model's own
    exchanges: Mapping[int, ExchangeFacts]  # by index: all that `origins` names
    repeated: frozenset[int]  # those of them that an earlier branch holds too
    reward: float
    task: str | None = None
    agent: str | None = None
    agent_version: str | None = None
    model: str | None = None
    redactions: int = 0  # secrets taken out of messages and tools
    trainable_redacted: bool = False  # some of them out of what a model wrote
    tools_redefined: tuple[str, ...] = ()  # names that came with different schemas


@dataclass(frozen=True, slots=True)
class ExchangeFacts:
    """What is known of an exchange beside its text."""

    model: str | None  # as the provider names it
    usage: Usage | None


class Exporter(Protocol):
    """An export format: the object named `exporter` in `exporters/NAME.py`, a dash in the name an underscore."""

    @property
    def versions(self) -> Sequence[str]:
        """Return the versions of the format that it can write, the newest last; none when it has no versions."""

    @property
    def columns(self) -> Mapping[str, type] | None:
        """Return the columns of every row, each with the one type it has; None when rows differ."""

    @property
    def loaders(self) -> Sequence[str]:
        """Return the packages that must load the file where they are installed: pyarrow, datasets."""

    def rows(self, conversation: Conversation, version: str, /) -> Iterator[dict[str, Any]]:
        """Yield the rows of a conversation, in a version of the format ("" when it has none).

        Raises: UnsupportedError ("reason: detail") when the format cannot hold the conversation.
        """
