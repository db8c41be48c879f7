"""Tell which addresses a sandbox with a public network must not reach: what is this machine's own, or its cloud's."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HERE = ipaddress.ip_network("0.0.0.0/8")
_WRAPPED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))
# Where clouds serve a machine's credentials, besides link-local addresses.
_METADATA = tuple(
    map(ipaddress.ip_network, ("fd00:ec2::/32", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
# RFC 1918, 4193 and 3879, what carriers and overlay networks share (6598), and a translator's own way there (8215).
# Not all that is never on the internet: some resolvers give names such addresses (RFC 2544, 5737) and carry them out.
_PRIVATE = tuple(
    map(
        ipaddress.ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10", "64:ff9b:1::/48"),
    )
)
_BROADCAST = ipaddress.ip_address("255.255.255.255")

_RTM_GETROUTE, _NLMSG_ERROR, _NLM_F_REQUEST, _RTA_DST = 26, 2, 1, 1
_ROUTES_HERE = (2, 3, 4, 5)  # RTN_LOCAL, RTN_BROADCAST, RTN_ANYCAST, RTN_MULTICAST


def why_refused(address: Address) -> str | None:
    """Return why a sandbox must not connect to an address, None when it may."""
    real = _unwrapped(address)
    if real.is_multicast or real == _BROADCAST:
        return f"{address} is not one machine's"
    if real.is_link_local or any(real in network for network in _METADATA):
        return f"{address} is of this machine's link or cloud alone"
    try:
        own = real.is_loopback or real.is_unspecified or real in _HERE or is_own(real)
    except OSError as error:
        return f"the kernel does not tell whose {address} is ({error.strerror})"
    return f"{address} is this machine's own" if own else None


def is_private(address: Address) -> bool:
    """Tell whether an address belongs to a private network, one that this machine may be in and strangers are not."""
    real = _unwrapped(address)
    return any(real in network for network in _PRIVATE)


def is_own(address: Address) -> bool:
    """Ask the kernel whether it delivers to `address` on this machine: lists of interfaces miss local routes.

    Raises: OSError when it gives no answer.
    """
    packed = address.packed
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    wanted = struct.pack("=BBBBBBBBI", family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
    wanted += struct.pack("=HH", 4 + len(packed), _RTA_DST) + packed
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(5)
        kernel.send(struct.pack("=IHHII", 16 + len(wanted), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + wanted)
        answer = kernel.recv(8192)
    if struct.unpack_from("=H", answer, 4)[0] == _NLMSG_ERROR:
        code = -struct.unpack_from("=i", answer, 16)[0]
        if code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
            return False
        raise OSError(code, os.strerror(code))
    return answer[16 + 7] in _ROUTES_HERE


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address only wraps."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped or address.sixtofour:
        return address.ipv4_mapped or address.sixtofour or address
    if any(address in network for network in _WRAPPED) and int(address) > 1:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address
