"""Make a sandbox's /etc from the parts of the host's that everybody may read and that hold no secret."""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.sandboxes._bwrap import is_root

if TYPE_CHECKING:
    from collections.abc import Iterator

_ETC = Path("/etc")
# Copied, so that the sandbox's root may change them.
_FILES = (
    "bash.bashrc", "debian_version", "environment", "host.conf", "inputrc", "ld.so.cache", "ld.so.conf", "lsb-release",
    "locale.alias", "localtime", "login.defs", "magic", "mime.types", "nsswitch.conf", "os-release", "profile",
    "protocols", "resolv.conf", "rpc", "services", "shells", "timezone",
)  # fmt: skip
# Shown read-only.
_DIRECTORIES = (
    "alternatives", "fonts", "java-*-openjdk", "ld.so.conf.d", "pam.d", "perl", "pki/tls/certs", "pki/ca-trust",
    "python*", "security", "ssl/certs", "terminfo",
)  # fmt: skip
_HIGHEST_SYSTEM_ID = 999
_NOBODY = 65534


@functools.cache
def shown_directories() -> tuple[Path, ...]:
    """Return the directories of /etc that are shown inside: none that holds a file not everybody may read."""
    return tuple(path for path in _directories() if all(_is_public(inner) for inner in _below(path)))


def _directories() -> list[Path]:
    found = (path for pattern in _DIRECTORIES for path in sorted(_ETC.glob(pattern)))
    return [path for path in found if path.is_dir() and not path.is_symlink() and _is_public(path)]


def _below(top: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(top):
        yield from (Path(directory, name) for name in (*names, *files))


def _is_public(path: Path) -> bool:
    mode = path.lstat().st_mode
    return stat.S_ISLNK(mode) or bool(mode & stat.S_IROTH)


@functools.cache
def _copied() -> tuple[tuple[str, bytes | str], ...]:
    """Return (name, content) of the files, read once for each process; a str is where a link leads."""
    found: list[tuple[str, bytes | str]] = []
    mixed = (inner for path in _directories() if path not in shown_directories() for inner in _below(path))
    for path in (*(_ETC / name for name in _FILES), *mixed):
        name = str(path.relative_to(_ETC))
        if path.is_symlink() and (path.parent / path.readlink()).resolve().is_relative_to("/usr"):
            found.append((name, str(path.readlink())))
        elif path.is_file() and _is_public(path.resolve()):
            found.append((name, path.read_bytes()))
    return tuple(found)


def _accounts(name: str) -> Iterator[list[str]]:
    """Yield the fields of the system's own users or groups, without passwords: people are nobody's business."""
    path = _ETC / name
    for line in path.read_text(errors="surrogateescape").splitlines() if path.is_file() else ():
        fields = line.split(":")
        if len(fields) < 3 or not fields[2].isdigit():
            continue
        if int(fields[2]) <= _HIGHEST_SYSTEM_ID or int(fields[2]) == _NOBODY:
            yield [fields[0], "x", *fields[2:]]


@functools.cache
def system_users() -> frozenset[str]:
    """Return the names of the users that a sandbox knows from the start."""
    return frozenset(fields[0] for fields in _accounts("passwd"))


def write_etc(root: Path, hostname: str) -> None:
    """Write /etc below `root`, which nothing has run in yet."""
    etc = root / "etc"
    etc.mkdir(exist_ok=True)
    for name, content in _copied():
        path = etc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
    (etc / "hostname").write_text(f"{hostname}\n")
    hosts = _ETC / "hosts"
    (etc / "hosts").write_text(
        (hosts.read_text() if hosts.is_file() else "127.0.0.1 localhost\n") + f"\n127.0.1.1 {hostname}\n"
    )
    users, groups = list(_accounts("passwd")), list(_accounts("group"))
    if not is_root():
        users.append(["user", "x", "1000", "1000", "", "/root", "/bin/bash"])
        groups.append(["user", "x", "1000", ""])
    # Nobody has a password, but without an entry nobody could be changed to either.
    shadow = [[fields[0], "*", "19000", "0", "99999", "7", "", "", ""] for fields in users]
    for file, entries in (("passwd", users), ("group", groups), ("shadow", shadow)):
        text = "".join(":".join(fields) + "\n" for fields in entries)
        (etc / file).write_text(text, errors="surrogateescape")
    (etc / "shadow").chmod(0o640)
