"""Make a sandbox's /etc from the parts of the host's that everybody may read and that hold no secret."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.sandboxes._bwrap import is_root
from pytest_benchflow.sandboxes._files import new_file
from pytest_benchflow.sandboxes._remove import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.sandboxes._files import InsideRoot

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
# What decides which code a program loads before its own first line runs: (directory, names).
_STARTUP = (
    ("/etc", "ld.so.*"), ("/etc", "ld-musl-*"), ("/etc", "python*"), ("/etc", "nsswitch.conf"),
    ("/etc/ssl", "openssl.cnf"), ("/etc/pki/tls", "openssl.cnf"),
)  # fmt: skip
# A user that an agent added may be its work.
_ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/shadow")
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


class StartupFiles:
    """The files of /etc on which the start of a program depends, as they were before anything ran inside."""

    def __init__(self, inside: InsideRoot) -> None:
        self._inside = inside
        self._files: list[_Saved] = []
        self._accounts: list[_Saved] = []

    def take(self) -> None:
        """Remember the files as they are now; nothing may have run in the sandbox yet."""
        for path in self._found():
            top = self._inside.root / path.lstrip("/")
            below = [inner for inner in _below(top) if not inner.is_dir() or inner.is_symlink()] if top.is_dir() else []
            self._files += [self._save(file) for file in below or [top]]
        self._accounts = [self._save(self._inside.root / path.lstrip("/")) for path in _ACCOUNTS]

    def restore(self) -> None:
        """Make the files what they were; of users and groups only what is no file any more. Raises: SandboxError."""
        self._inside.mount_point("/etc")
        for path in self._found():
            self._inside.remove(path)
        for saved in self._files:
            self._write(saved)
        for saved in self._accounts:
            if not self._is_file(saved.path):
                self._inside.remove(saved.path)
                self._write(saved)

    def _is_file(self, path: str) -> bool:
        with self._inside.parent(path) as (directory, name), contextlib.suppress(FileNotFoundError):
            return stat.S_ISREG(os.lstat(name, dir_fd=directory).st_mode)
        return False

    def _found(self) -> list[str]:
        found: list[str] = []
        for place, pattern in _STARTUP:
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                self._inside.directory(place) as directory,
            ):
                found += [f"{place}/{name}" for name in fnmatch.filter(names_in(directory), pattern)]
        return [path for path in found if Path(path) not in shown_directories()]

    def _save(self, file: Path) -> _Saved:
        path = f"/{file.relative_to(self._inside.root)}"
        if file.is_symlink():
            return _Saved(path, 0, str(file.readlink()))
        return _Saved(path, stat.S_IMODE(file.stat().st_mode), file.read_bytes())

    def _write(self, saved: _Saved) -> None:
        with self._inside.parent(saved.path, make=True) as (directory, name):
            if isinstance(saved.content, str):
                os.symlink(saved.content, name, dir_fd=directory)
                return
            with new_file(directory, name) as file:
                file.write(saved.content)
                os.fchmod(file.fileno(), saved.mode)


@dataclass(frozen=True, slots=True)
class _Saved:
    path: str
    mode: int
    content: bytes | str  # a str is where a link leads
