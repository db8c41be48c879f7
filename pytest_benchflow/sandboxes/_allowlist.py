"""Tell whether a host is one of those that a task names for a phase."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# What the system's resolver takes for an address: also "127.1", "0x7f.1" and "2130706433".
_NUMERIC = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*")


def why_not_listed(host: str, listed: Sequence[str]) -> str | None:
    """Return why a request may not go to a host; None when it may.

    An entry is a name, an address, or `*.name` for every name below it and not the name itself; a port is not part of
    one, so each may be asked for.
    """
    name = host.lower().rstrip(".")
    entries = [entry.lower().rstrip(".") for entry in listed]
    if name in entries:
        return None
    numeric = is_address(name)
    if not numeric and any(entry.startswith("*.") and name.endswith(entry[1:]) for entry in entries):
        return None
    what = "an address, which the task does not name" if numeric else "none of the hosts that the task allows"
    return f"{host} is {what}: {', '.join(listed)}"


def is_address(name: str) -> bool:
    """Tell whether the system's resolver takes a host for an address, in whatever spelling, and asks nobody for it."""
    if _NUMERIC.fullmatch(name):
        return True
    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return True
