"""Count tokens in one convention, whatever the provider's."""

from __future__ import annotations

from typing import NamedTuple


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
