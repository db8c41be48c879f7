"""Find the HTTP proxy through which this host itself reaches the internet, if it has one."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from pytest_benchflow.settings import host_variable


@dataclass(frozen=True, slots=True)
class HostProxy:
    """A proxy of the host's; `authorization` is a whole header value, which never goes inside."""

    host: str
    port: int
    tls: bool
    authorization: str | None = field(default=None, repr=False)


def find_host_proxy(scheme: str, host: str) -> HostProxy | None:
    """Return the proxy that the host uses for http or https to `host`, None when it connects by itself.

    Raises: ValueError for one that is no HTTP proxy; its text holds no credential.
    """
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    name, url = next(((name, value) for name in names if (value := host_variable(name))), ("", None))
    if url is None or _is_exempt(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"this host's {name} is no http:// or https:// proxy")
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    tls = parts.scheme == "https"
    return HostProxy(parts.hostname, parts.port or (443 if tls else 80), tls, authorization)


def _is_exempt(host: str) -> bool:
    listed = host_variable("no_proxy") or host_variable("NO_PROXY") or ""
    for entry in filter(None, re.split(r"[\s,]+", listed.lower())):
        name = entry.removeprefix("*").lstrip(".")
        if entry == "*" or host == name or host.endswith(f".{name}"):
            return True
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
    return False
