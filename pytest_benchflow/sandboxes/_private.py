"""Tell whether a sandbox may be led into a private network of this host's, where its owner has named what may be."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_benchflow.errors import UsageError
from pytest_benchflow.sandboxes._addresses import is_private
from pytest_benchflow.sandboxes._allowlist import is_address, why_not_listed
from pytest_benchflow.sandboxes._host import package_sources
from pytest_benchflow.sandboxes._local import base
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from pytest_benchflow.sandboxes._addresses import Address

VARIABLE = "BENCHFLOW_PRIVATE_HOSTS"

# What nobody can buy (RFC 6761, RFC 6762 appendix G, RFC 8375, ICANN's choice of 2024): only who runs a network gives
# such names, so none is a stranger's that was pointed at a neighbour of ours.
_NOT_FOR_SALE = re.compile(r"[^.]+|.*\.(?:internal|intranet|private|corp|home|home\.arpa|lan|local|localdomain|test)")
_NAME = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?")


def why_private(host: str, address: Address, *, listed: bool = False, setup: bool = False) -> str | None:
    """Return why `host` may not lead to `address`, None when that is not private or somebody of this host named it.

    `listed`: the task names the host. `setup`: what is reached is for an installation of ours or an image's build.
    """
    if not is_private(address):
        return None
    if listed and (is_address(host) or _NOT_FOR_SALE.fullmatch(host.rstrip("."))):
        return None
    if _is_named(host, address) or (setup and host in _package_hosts()):
        return None
    return f"{address} is in a private network, and {VARIABLE} names neither it nor {host}"


def check_private_hosts() -> None:
    """Refuse a value of the variable that is no list of hosts and networks. Raises: UsageError."""
    for entry in _entries():
        if _network(entry) is None and ("/" in entry or is_address(entry) or not _NAME.fullmatch(entry)):
            raise UsageError(
                f"{VARIABLE} holds {entry!r}; allowed: names, *.name for all below one, addresses and networks as "
                "10.1.0.0/16, with spaces or commas between"
            )


def _entries() -> list[str]:
    return list(filter(None, re.split(r"[\s,]+", (host_variable(VARIABLE) or "").lower())))


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_network(entry, strict=False)
    return None


def _is_named(host: str, address: Address) -> bool:
    entries = _entries()
    if any(network is not None and address in network for network in map(_network, entries)):
        return True
    return why_not_listed(host, [entry for entry in entries if _network(entry) is None]) is None


def _package_hosts() -> set[str]:
    """Return the hosts that this machine's own settings fetch packages from."""
    env, _ = package_sources()
    words = re.split(r"[\s,]+", " ".join((*env.values(), base.apt_sources())))
    found = set()
    for url in filter(lambda word: "://" in word, words):
        with contextlib.suppress(ValueError):
            found.add(urlsplit(url).hostname or "")
    return found
