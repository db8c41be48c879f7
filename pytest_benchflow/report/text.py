"""Put facts into words: numbers that may be unknown, and text that may hold anything."""

from __future__ import annotations

import re
import unicodedata

UNKNOWN = "unknown"
NONE = "-"

_KEPT = "\n\t"
# Control, format (which holds the bidirectional overrides), surrogate and private characters, and line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# What a CI takes from the output of a job for commands to it: `::name::` where a line begins, `##[name]` anywhere.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)|(##\w*)\[", re.MULTILINE)


def printable(text: object, *, limit: int | None = None) -> str:
    """Return text that a terminal, or the log of a CI job, shows and does not obey.

    Anything else than plain characters is escaped, and one character of what would be a command to the CI.
    """
    value = str(text)
    if limit is not None and len(value) > limit:
        value = f"{value[:limit]}… ({len(value) - limit:,} characters more)"
    if not (value.isascii() and value.isprintable()):
        value = "".join(c if c in _KEPT or unicodedata.category(c) not in _UNSAFE else _escaped(c) for c in value)
    return _COMMAND.sub(_disarmed, value) if "::" in value or "##" in value else value


def one_line(text: object, *, limit: int | None = None) -> str:
    """Return printable text with its white space folded into single spaces."""
    return printable(" ".join(str(text).split()), limit=limit)


def _disarmed(found: re.Match[str]) -> str:
    return f"{found[1]}\\x3a" if found[2] is None else f"{found[2]}\\x5b"


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def reward_text(reward: float | None) -> str:
    """Return a reward as short as it is exact to three digits."""
    return UNKNOWN if reward is None else f"{reward:.3f}".rstrip("0").rstrip(".")


def counted(number: int, noun: str) -> str:
    """Return a number of things by their name, such as "1 file" or "2 files"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def count_text(count: int | None) -> str:
    """Return a count with separated thousands."""
    return UNKNOWN if count is None else f"{count:,}"


def cost_text(cost: float | None) -> str:
    """Return a price in US dollars, precise enough for a cheap rollout."""
    return UNKNOWN if cost is None else f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"


def seconds_text(seconds: float | None) -> str:
    """Return a duration in seconds."""
    return UNKNOWN if seconds is None else f"{seconds:,.1f} s"
