"""Take back what an agent changed of the programs that any program's start depends on, where it could change them.

An overlay's changes are looked at while it is not mounted: without them, what the image has is there again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from typing import TYPE_CHECKING

from pytest_benchflow.sandboxes._local.bwrap import interpreter
from pytest_benchflow.sandboxes._remove import DIRECTORY, names_in, remove_entry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# What a script begins with and is full of; installing one of them anew is hardly ever an agent's work.
_PROGRAMS = (
    "bash", "cat", "chgrp", "chmod", "chown", "cp", "cut", "dash", "date", "dd", "diff", "dirname", "echo", "egrep",
    "env", "expr", "false", "fgrep", "find", "grep", "gzip", "head", "id", "install", "ln", "ls", "mkdir", "mktemp",
    "mv", "perl", "printf", "pwd", "python", "python3", "readlink", "realpath", "rm", "rmdir", "sed", "seq",
    "setsid", "sh", "sleep", "sort", "stat", "su", "tail", "tar", "tee", "test", "timeout", "touch", "tr", "true",
    "uname", "uniq", "wc", "which", "xargs",
)  # fmt: skip
_LIBRARIES = (
    "ld-.*", "ld64.*", r"libc[.-].*", r"libm\..*", "libmvec.*", r"libdl\..*", "libpthread.*", r"librt\..*",
    r"libutil\..*", "libresolv.*", "libnss_.*", "libnsl.*", "libanl.*", "libgcc_s.*", r"libstdc\+\+.*", "libtinfo.*",
    "libselinux.*", "libpcre2-8.*", "libacl.*", "libattr.*", "libcap.*", r"libz\..*", r"libcrypt\..*", "libcrypto.*",
    "libssl.*", "libexpat.*", "libffi.*", r"libpython3.*", "glibc-hwcaps",
)  # fmt: skip
_OPAQUE = "trusted.overlay.opaque"


def restore_programs(changes: Path, part: Path, lowers: Sequence[Path]) -> None:
    """Remove from `changes`, made over the host's directory `part`, what an image's programs start with.

    `lowers` are the layers of that part in the image. Other changes stay: they may be the agent's work.
    """
    directory = os.open(changes, DIRECTORY)
    try:
        _restore(directory, str(part), lowers)
    finally:
        os.close(directory)


def _restore(directory: int, path: str, lowers: Sequence[Path]) -> None:
    in_image = any(map(os.path.isdir, lowers))
    for name in names_in(directory):
        inner = f"{path}/{name}"
        below = [lower / name for lower in lowers]
        known = any(map(os.path.lexists, below))
        # A Python that the image has not is the agent's work as a whole.
        if _starts().fullmatch(inner) and (in_image or not _of_python().fullmatch(inner)):
            remove_entry(directory, name)
        elif _on_the_way().fullmatch(inner):
            if stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                _descend(directory, name, inner, below)
            elif known:  # it is gone, or something else is in its place
                remove_entry(directory, name)


def _descend(directory: int, name: str, path: str, lowers: Sequence[Path]) -> None:
    inner = os.open(name, DIRECTORY, dir_fd=directory)
    try:
        if not path.endswith("-packages"):
            with contextlib.suppress(OSError):
                os.removexattr(f"/proc/self/fd/{inner}", _OPAQUE)
        _restore(inner, path, lowers)
    finally:
        os.close(inner)


@functools.cache
def _own() -> str:
    return re.escape(str(interpreter().parent.parent))


@functools.cache
def _starts() -> re.Pattern[str]:
    """Return what the paths of programs, libraries and modules look like without which nothing starts."""
    programs = "|".join(map(re.escape, (*_PROGRAMS, "[", interpreter().name, "pyvenv.cfg")))
    libraries = "|".join(_LIBRARIES)
    return re.compile(
        rf"(?:(?:/usr(?:/local)?)?/s?bin|{_own()}/bin)/(?:{programs})"
        rf"|(?:/usr)?/lib(?:32|64|x32)?(?:/[^/]*-linux-[^/]*)?/(?:{libraries})"
        rf"|(?:/usr/local|{_own()})/pyvenv\.cfg"
        rf"|{_of_python().pattern}"
    )


@functools.cache
def _of_python() -> re.Pattern[str]:
    return re.compile(
        rf"(?:/usr(?:/local)?|{_own()})/lib(?:64)?/(?:python3\d+\.zip|libpython3[^/]*"
        r"|python3[^/]*/(?!(?:site|dist)-packages\Z)[^/]*"
        r"|python3[^/]*/(?:site|dist)-packages/(?:site|user)customize[^/]*)"
    )


@functools.cache
def _on_the_way() -> re.Pattern[str]:
    tops = rf"(?:(?:/usr(?:/local)?)?|{_own()})"
    python = "python3[^/]*(?:/(?:site|dist)-packages)?"
    return re.compile(rf"/usr/local|{tops}/(?:s?bin|lib(?:32|64|x32)?(?:/{python}|/[^/]*-linux-[^/]*)?)")
