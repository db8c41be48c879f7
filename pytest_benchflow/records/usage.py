"""Count tokens in one convention, whatever the provider's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_benchflow.records.values import integer, mapping

if TYPE_CHECKING:
    from collections.abc import Mapping


class Usage(NamedTuple):
    """Tokens of one exchange; `input_tokens` includes cache reads and writes, `output_tokens` includes reasoning.

    None means that the provider did not say; it is never read as 0.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_creation_tokens: int | None = None
    total_tokens: int | None = None

    @property
    def billed(self) -> int | None:
        """Return the tokens billed for the exchange: the reported total, else input plus output, else None."""
        if self.total_tokens is not None:
            return self.total_tokens
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


class Tokens(NamedTuple):
    """Tokens of a rollout as far as they are known, and whether that is all of them."""

    known: int
    whole: bool


def tokens_of(result: Mapping[str, Any]) -> Tokens:
    """Return the tokens that a result.json tells of, over all exchanges.

    They are not all where an exchange that may have been billed told no usage, or was not recorded.
    """
    usage, proxy = mapping(result.get("agent_result")), mapping(result.get("proxy"))
    total, untold = integer(usage.get("total_tokens")), integer(usage.get("n_untold"))
    if untold is None:
        # Records of others: a total is taken for whole unless answers without usage are counted beside it.
        exchanges = mapping(result.get("exchanges"))
        completed, with_usage = integer(exchanges.get("completed")), integer(exchanges.get("with_usage"))
        untold = (completed or 0) - (with_usage or 0) if total is not None else 1
    received, recorded = (integer(proxy.get(name)) or 0 for name in ("received", "recorded"))
    return Tokens(total or 0, untold == 0 and received == recorded)
