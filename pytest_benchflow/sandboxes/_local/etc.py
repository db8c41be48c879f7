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

from pytest_benchflow.sandboxes._files import new_file
from pytest_benchflow.sandboxes._local.bwrap import is_root
from pytest_benchflow.sandboxes._remove import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def copy_public(root: Path, names: Sequence[str]) -> None:
    """Copy what everybody may read of the shown directories and of `names`, all of /etc, to /etc below `root`.

    Nothing may have run in there yet.
    """
    wanted = [path for path in (_ETC / name for name in names) if path.exists() and not path.is_symlink()]
    for top in (*shown_directories(), *wanted):
        for path in (top, *(_below(top) if top.is_dir() else ())):
            target = root / path.relative_to("/")
            if not _is_public(path) or target.is_symlink() or target.is_file():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                target.symlink_to(path.readlink())
            elif path.is_dir():
                target.mkdir(exist_ok=True)
            elif path.is_file():
                target.write_bytes(path.read_bytes())
                target.chmod(stat.S_IMODE(path.stat().st_mode))


def name_host(inside: InsideRoot, hostname: str) -> None:
    """Write the files of an image's /etc that tell the name of the host it runs on."""
    texts = {"hostname": f"{hostname}\n", "hosts": f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {hostname}\n"}
    for name, text in texts.items():
        inside.remove(f"/etc/{name}")
        with inside.parent(f"/etc/{name}", make=True) as (directory, last), new_file(directory, last) as file:
            file.write(text.encode())


class StartupFiles:
    """The files of /etc on which the start of a program depends, as they were before anything ran inside."""

    def __init__(self, inside: InsideRoot, shown: Sequence[Path]) -> None:
        """Leave alone the directories in `shown`, which are the host's own and read-only."""
        self._inside = inside
        self._shown = frozenset(shown)
        self._files: list[_Saved] = []
        self._accounts: list[_Saved] = []

    def take(self) -> None:
        """Remember the files as they are now; no phase may have begun. What a link leads to is never read."""
        for path in self._found():
            self._save(path)
        before, self._files = self._files, []
        for path in _ACCOUNTS:
            self._save(path)
        self._accounts, self._files = self._files, before

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
        return [path for path in found if Path(path) not in self._shown]

    def _save(self, path: str) -> None:
        try:
            with self._inside.parent(path) as (directory, name):
                mode = os.lstat(name, dir_fd=directory).st_mode
                if stat.S_ISLNK(mode):
                    self._files.append(_Saved(path, 0, os.readlink(name, dir_fd=directory)))
                elif stat.S_ISREG(mode):
                    reading = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                    with os.fdopen(reading, "rb") as file:
                        self._files.append(_Saved(path, stat.S_IMODE(mode), file.read()))
                elif stat.S_ISDIR(mode):
                    with self._inside.directory(path) as inner:
                        names = names_in(inner)
                    for below in names:
                        self._save(f"{path}/{below}")
        except (FileNotFoundError, NotADirectoryError):
            return

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
