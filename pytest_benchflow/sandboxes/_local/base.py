"""Make the lowest layer of an image: this machine's own programs as a fresh image would have them, without its secrets.

What is not named here is not there: no home, no data and no settings of the host's but public ones.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
from pathlib import Path
from urllib.parse import urlsplit

from pytest_benchflow.sandboxes._local.bwrap import SYSTEM_DIRECTORIES, host_parts, interpreter, settings_files
from pytest_benchflow.sandboxes._local.etc import copy_public, write_etc

# Changes whenever this file makes something else of the same machine.
_FORMAT = "5"
_APT = Path("/etc/apt")
_DPKG = Path("/var/lib/dpkg")
# Of /etc, besides what every sandbox has: what package tools read.
_PACKAGING = (
    "adduser.conf", "apt/keyrings", "apt/trusted.gpg", "apt/trusted.gpg.d", "ca-certificates", "ca-certificates.conf",
    "debconf.conf", "deluser.conf", "dpkg", "emacs", "gai.conf", "sgml", "skel", "ucf.conf", "X11", "xml",
)  # fmt: skip
_KEPT_BACK = ("ssh/", "sudoers")
_DIRECTORIES = (
    "app", "boot", "dev", "etc", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "usr",
    "var/cache/apt/archives/partial", "var/cache/debconf", "var/lib/apt/lists/partial", "var/lib/misc", "var/lib/pam",
    "var/local", "var/log/apt", "var/mail", "var/opt", "var/spool",
)  # fmt: skip
_SHARED_DIRECTORIES = ("logs/agent", "logs/verifier", "logs/artifacts")
_STICKY_DIRECTORIES = ("tmp", "var/tmp", "run/lock")
_APT_CONF = """\
APT::Sandbox::User "root";
APT::Keep-Downloaded-Packages "false";
Acquire::Languages "none";
"""
# Of /etc, what is written when programs or users come and go; not what every boot writes.
_TELLING = ("alternatives", "group", "ld.so.cache", "os-release", "passwd", "ssl/certs/ca-certificates.crt")
# What root's login shell reads, as Debian's base-files puts it there.
_DOT_FILES = {".bashrc": "usr/share/base-files/dot.bashrc", ".profile": "usr/share/base-files/dot.profile"}
# As in the images that distributions publish: installing a service does not start it.
_POLICY = "#!/bin/sh\nexit 101\n"


@functools.cache
def parts() -> tuple[Path, ...]:
    """Return the host's directories that an image stands on, each to be overlaid at its own place."""
    system = [path for name in SYSTEM_DIRECTORIES if (path := Path("/", name)).is_dir() and not path.is_symlink()]
    return (*host_parts(), *system, *([_DPKG] if _DPKG.is_dir() else []))


@functools.cache
def base_digest() -> str:
    """Name the state of this machine that images are built on; computed once for each process."""
    digest = hashlib.sha256(f"{_FORMAT} {interpreter()} {parts()} {apt_sources()}".encode())
    etc = (Path("/etc", name) for name in _TELLING)
    for path in (_DPKG / "status", interpreter(), *etc):
        if path.exists():
            found = path.stat()
            digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def write_base(layer: Path) -> None:
    """Write the lowest layer into the directory `layer`: `root` for /, `p0`, `p1` … over the parts of the host."""
    root = layer / "root"
    for names, mode in ((_DIRECTORIES, 0o755), (_SHARED_DIRECTORIES, 0o777), (_STICKY_DIRECTORIES, 0o1777)):
        for name in names:
            (root / name).mkdir(parents=True, exist_ok=True)
            (root / name).chmod(mode)
    root.chmod(0o755)
    _make_package_directories(root)
    write_etc(root, "sandbox")
    copy_public(root, (*_PACKAGING, *_as_packaged()))
    for name in SYSTEM_DIRECTORIES:
        if (host := Path("/", name)).is_symlink():
            (root / name).symlink_to(host.readlink())
    for name, target in (("run", "/run"), ("lock", "/run/lock")):
        if not (root / "var" / name).is_dir():
            (root / "var" / name).symlink_to(target)
    for name in ("apt.conf.d", "preferences.d", "sources.list.d"):
        (root / "etc/apt" / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/apt/apt.conf.d/99sandbox").write_text(_APT_CONF)
    (root / "etc/apt/sources.list").write_text(apt_sources())
    # A login shell begins with a PATH of its own, which in an image has its Python too.
    (root / "etc/profile.d").mkdir(exist_ok=True)
    (root / "etc/profile.d/sandbox.sh").write_text(f'PATH="{interpreter().parent}:$PATH"\n')
    for name, origin in _DOT_FILES.items():
        if (file := Path("/", origin)).is_file():
            (root / "root" / name).write_bytes(file.read_bytes())
    for number, part in enumerate(parts()):
        _make_way(root, part)
        _mask(layer / f"p{number}", part)
    _stand_for(layer / "p0/sbin", Path("/usr/sbin"))
    policy = layer / "p0/sbin/policy-rc.d"
    policy.write_text(_POLICY)
    policy.chmod(0o755)


def _make_package_directories(root: Path) -> None:
    """Make the directories that installed packages have below /var, empty: their scripts count on them."""
    for file in sorted((_DPKG / "info").glob("*.list")):
        for name in re.findall(r"^/var/\S+$", file.read_text(errors="replace"), re.MULTILINE):
            host, place = Path(name), root / name.lstrip("/")
            if host.is_dir() and not host.is_symlink() and not host.is_relative_to(_DPKG):
                place.mkdir(parents=True, exist_ok=True)
                _stand_for(place, host)


def _as_packaged() -> list[str]:
    """Return the files of /etc that are as their packages brought them, and so hold nothing of this host's own."""
    status = _DPKG / "status"
    text = status.read_text(errors="replace") if status.is_file() else ""
    found = []
    for name, digest in re.findall(r"^ /etc/(\S+) ([0-9a-f]{32})$", text, re.MULTILINE):
        path = Path("/etc", name)
        if (
            not name.startswith(_KEPT_BACK)
            and path.is_file()
            and hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == digest
        ):
            found.append(name)
    return found


def _make_way(root: Path, part: Path) -> None:
    """Make the directory that a part is laid over; a home that holds an interpreter is everybody's to pass through."""
    place = root
    for name in part.parts[1:]:
        place = place / name
        place.mkdir(exist_ok=True)
        place.chmod(0o755)


def _mask(layer: Path, part: Path) -> None:
    """Take away what a part of the host has of credentials, so that it is in no layer above either."""
    _stand_for(layer, part)
    for path in settings_files(part):
        hidden = layer / path.relative_to(part)
        for above in reversed(hidden.relative_to(layer).parents[:-1]):
            _stand_for(layer / above, part / above)
        os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0))  # how an overlay says that a name is gone


def _stand_for(directory: Path, host: Path) -> None:
    """Make a directory that is seen instead of the host's, and so has to have its owner and mode."""
    found = host.stat()
    directory.mkdir(exist_ok=True)
    os.chown(directory, found.st_uid, found.st_gid)
    directory.chmod(stat.S_IMODE(found.st_mode))


def apt_sources() -> str:
    """Return the distribution's own archives as this host has them, without those that ask for a password."""
    release = _os_release()
    codename = release.get("VERSION_CODENAME", "stable")
    locked = "".join(path.read_text(errors="replace") for path in _apt_files("auth.conf", "auth.conf.d/*"))
    found = []
    for options, uri, suite, components in (*_one_line_sources(), *_stanza_sources()):
        url = urlsplit(uri)
        own = re.split(r"[-/]", suite)[0] == codename and "main" in components
        if own and url.scheme in ("http", "https") and "@" not in url.netloc and (url.hostname or "-") not in locked:
            found.append(f"deb {options}{uri} {suite} {' '.join(components)}")
    if not found and release.get("ID") == "ubuntu":
        found = [f"deb http://archive.ubuntu.com/ubuntu {codename} main universe"]
    return "\n".join(found or [f"deb http://deb.debian.org/debian {codename} main"]) + "\n"


def _os_release() -> dict[str, str]:
    path = Path("/etc/os-release")
    lines = path.read_text().splitlines() if path.is_file() else []
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


def _apt_files(*patterns: str) -> list[Path]:
    return [path for pattern in patterns for path in sorted(_APT.glob(pattern)) if path.is_file()]


def _one_line_sources() -> list[tuple[str, str, str, list[str]]]:
    found = []
    for path in _apt_files("sources.list", "sources.list.d/*.list"):
        for line in path.read_text(errors="replace").splitlines():
            if match := re.match(r"\s*deb\s+(\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+([^#]+)", line):
                found.append((match[1] or "", match[2], match[3], match[4].split()))
    return found


def _stanza_sources() -> list[tuple[str, str, str, list[str]]]:
    found = []
    for path in _apt_files("sources.list.d/*.sources"):
        text = re.sub(r"^#.*\n", "", path.read_text(errors="replace"), flags=re.MULTILINE)
        for stanza in re.split(r"\n\s*\n", text):
            fields = {name.lower(): value.split() for name, value in re.findall(r"^([\w-]+):[ \t]*(.*)$", stanza, re.M)}
            if "deb" not in fields.get("types", []) or fields.get("enabled") == ["no"]:
                continue
            key = fields.get("signed-by", [])
            options = f"[signed-by={key[0]}] " if key else ""
            found += [
                (options, uri, suite, fields.get("components", []))
                for uri in fields.get("uris", [])
                for suite in fields.get("suites", [])
            ]
    return found
