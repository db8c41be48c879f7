"""Tell which user a command runs as, by the lines of the sandbox's own /etc/passwd and /etc/group."""

from __future__ import annotations

from typing import NamedTuple

from pytest_benchflow.errors import SandboxError

READ = "cat /etc/passwd; echo :; cat /etc/group"


class Account(NamedTuple):
    """A user inside; `ids` is "uid gid", empty for root."""

    name: str
    home: str
    ids: str


ROOT = Account("root", "/root", "")


def is_root(user: str | int | None) -> bool:
    """Tell whether commands run as that user anyway."""
    return user in (None, "", "root", 0, "0", "root:root", "0:0")


def find(said: str, user: str | int) -> Account:
    """Return the account of a name, a number, or "user:group", by what `READ` says. Raises: SandboxError."""
    passwd, _, groups = said.partition("\n:\n")
    name, _, group = str(user).partition(":")
    for fields in (line.split(":") for line in passwd.splitlines()):
        if len(fields) >= 7 and name in (fields[0], fields[2]) and fields[2].isdigit() and fields[3].isdigit():
            return Account(fields[0], fields[5], f"{fields[2]} {_group(groups, group) if group else fields[3]}")
    if not name.isdigit():
        raise SandboxError(f"user {name!r} is not in the sandbox's /etc/passwd; a number works without an entry")
    return Account(name, "/", f"{name} {_group(groups, group) if group else name}")


def _group(groups: str, group: str) -> str:
    if group.isdigit():
        return group
    for fields in (line.split(":") for line in groups.splitlines()):
        if len(fields) >= 3 and fields[0] == group and fields[2].isdigit():
            return fields[2]
    raise SandboxError(f"group {group!r} is not in the sandbox's /etc/group; a number works without an entry")
