"""Tell which user a command runs as, by the sandbox's own /etc/passwd."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._local.bwrap import is_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.sandboxes._files import InsideRoot

_MAX_BYTES = 1 << 20
ORDINARY_USER = "user"


@dataclass(frozen=True, slots=True)
class Account:
    """A user inside; `ids` is "uid gid", empty for the user that the sandbox itself runs as."""

    name: str
    home: str
    ids: str


def is_own_user(user: str | int | None) -> bool:
    """Tell whether `user` is the one a sandbox runs as anyway; an ordinary user's sandbox takes root for that one."""
    return user in (None, "", "root", 0, "0", "root:root", "0:0") or (
        not is_root() and user in (ORDINARY_USER, 1000, "1000")
    )


def find_account(inside: InsideRoot, user: str | int | None) -> Account:
    """Return the account of a name, a number, or "user:group". Raises: SandboxError."""
    if is_own_user(user):
        return Account("root" if is_root() else ORDINARY_USER, "/root", "")
    if not is_root():
        raise SandboxError(f"user {user!r} needs pytest to run as root, or the docker sandbox: one user exists here")
    name, _, group = str(user).partition(":")
    for fields in _entries(inside, "passwd"):
        if len(fields) >= 7 and name in (fields[0], fields[2]):
            gid = _group(inside, group) if group else int(fields[3])
            return Account(fields[0], fields[5], f"{int(fields[2])} {gid}")
    if not name.isdigit():
        raise SandboxError(f"user {name!r} is not in the sandbox's /etc/passwd; a number works without an entry")
    return Account(name, "/", f"{name} {_group(inside, group) if group else name}")


def find_owner(inside: InsideRoot, text: str) -> tuple[int, int]:
    """Return (uid, gid) of a --chown value such as app:app or 1000."""
    uid, gid = (find_account(inside, text).ids or "0 0").split()
    return int(uid), int(gid)


def _group(inside: InsideRoot, group: str) -> int:
    if group.isdigit():
        return int(group)
    for fields in _entries(inside, "group"):
        if len(fields) >= 3 and fields[0] == group:
            return int(fields[2])
    raise SandboxError(f"group {group!r} is not in the sandbox's /etc/group; a number works without an entry")


def _entries(inside: InsideRoot, file: str) -> Iterator[list[str]]:
    """Yield the well-formed lines of a file that the sandbox may have written itself."""
    try:
        with inside.parent(f"/etc/{file}") as (directory, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            with os.fdopen(descriptor, errors="replace") as text:
                lines = text.read(_MAX_BYTES).splitlines()
    except OSError as error:
        raise SandboxError(f"the sandbox's /etc/{file} cannot be read: {error.strerror}") from error
    for line in lines:
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdigit() and (file == "group" or (len(fields) > 3 and fields[3].isdigit())):
            yield fields
