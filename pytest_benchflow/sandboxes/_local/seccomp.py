"""Forbid the system calls that reach past namespaces without needing any privilege.

A nested user namespace gives back every capability inside it, and with it, to uid 0, the kernel's files that our mounts
hide; keyrings, kernel messages, eBPF and perf are not divided by namespaces at all. Nor are the sockets by which a
virtual machine speaks with the one that it runs on; io_uring makes sockets that no filter sees.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

_CLONE_NEWUSER = 0x10000000
_AF_VSOCK = 40
_LD_ABS, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Offsets in struct seccomp_data; the low half of the first argument, as both machines are little-endian.
_NR, _ARCH, _ARG0 = 0, 4, 16


@dataclass(frozen=True)
class _Machine:
    arch: int
    clone: int
    unshare: int
    sockets: tuple[int, int]  # socket, socketpair
    forbidden: tuple[int, ...]  # add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, syslog
    first_alien: int | None = None  # from this number on, calls belong to another ABI (x32)


_CLONE3 = 435
_RINGS = (425, 426, 427)  # io_uring_setup, io_uring_enter, io_uring_register
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 56, 272, (41, 53), (248, 249, 250, 321, 298, 323, 103), 0x40000000),
    "aarch64": _Machine(0xC00000B7, 220, 97, (198, 199), (217, 218, 219, 280, 241, 282, 116)),
}


def is_known() -> bool:
    """Tell whether this machine's system calls are known."""
    return platform.machine() in _MACHINES


def program() -> bytes:
    """Return the filter as bubblewrap's --seccomp takes it: an array of struct sock_filter."""
    machine = _MACHINES[platform.machine()]
    deny, absent, unknown = (_ERRNO | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
    code = [
        (_LD_ABS, 0, 0, _ARCH),
        (_JEQ, 1, 0, machine.arch),
        (_RET, 0, 0, deny),
        (_LD_ABS, 0, 0, _NR),
        # Its flags are in memory, where a filter cannot look; C libraries fall back to clone.
        *_when(_CLONE3, [(_RET, 0, 0, absent)]),
    ]
    if machine.first_alien is not None:
        code += [(_JGE, 0, 1, machine.first_alien), (_RET, 0, 0, absent)]
    for number in machine.forbidden:
        code += _when(number, [(_RET, 0, 0, deny)])
    for number in _RINGS:
        code += _when(number, [(_RET, 0, 0, absent)])
    for number in machine.sockets:
        code += _when(
            number,
            [(_LD_ABS, 0, 0, _ARG0), (_JEQ, 0, 1, _AF_VSOCK), (_RET, 0, 0, unknown), (_RET, 0, 0, _ALLOW)],
        )
    for number in (machine.clone, machine.unshare):
        code += _when(
            number,
            [(_LD_ABS, 0, 0, _ARG0), (_JSET, 0, 1, _CLONE_NEWUSER), (_RET, 0, 0, deny), (_RET, 0, 0, _ALLOW)],
        )
    code.append((_RET, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _when(number: int, then: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Run `then` for one system call, else skip it."""
    return [(_JEQ, 0, len(then), number), *then]
