"""Pack files for a far machine, and unpack what comes from one without trusting it. Standard library only."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAX_BYTES = 4 << 30
_MAX_DEPTH = 200


def pack(sources: Mapping[str, Path], file: IO[bytes]) -> str:
    """Write files and directories under the names given, and return a digest of what was written.

    Links stay links. Owners and times are left out, so that the same content gives the same bytes.
    """
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, source in sources.items():
            _add(tar, source, name)
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(0)
    return digest


def _add(tar: tarfile.TarFile, source: Path, name: str) -> None:
    entry = tar.gettarinfo(source, name)
    if entry is None:
        raise SandboxError(f"{source} is neither a file nor a directory; only those are copied")
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    if entry.islnk():  # another name of a file that was there before: a copy of its own
        entry.type, entry.size = tarfile.REGTYPE, source.stat().st_size
    if entry.isreg():
        with source.open("rb") as content:
            tar.addfile(entry, content)
        return
    tar.addfile(entry)
    if entry.isdir():
        for child in sorted(source.iterdir()):
            _add(tar, child, f"{name}/{child.name}")


def unpack_trusted(file: IO[bytes], target: Path) -> None:
    """Unpack what our own side packed into a new directory, links included."""
    with tarfile.open(fileobj=file, mode="r:") as tar:
        tar.extraction_filter = lambda member, _path: member
        tar.extractall(target)  # noqa: S202 - made by `pack`


def unpack(file: IO[bytes], target: Path) -> None:
    """Unpack the one file or directory that an archive holds as `target`; only files and directories are taken.

    Raises: SandboxError for names that lead elsewhere, beyond 4 GiB or 200 levels.
    """
    left = _MAX_BYTES
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if member.name.startswith("/") or ".." in parts or len(parts) > _MAX_DEPTH + 1:
                raise SandboxError(f"what came holds {member.name!r}, which is no path below it")
            place = target.joinpath(*parts[1:])
            if member.isdir():
                place.mkdir(exist_ok=True)
            elif (member.isreg() or member.islnk()) and (content := tar.extractfile(member)) is not None:
                left -= content.seek(0, 2)
                if left < 0:
                    raise SandboxError(f"what came holds more than {_MAX_BYTES >> 30} GiB; it is not copied out")
                content.seek(0)
                place.unlink(missing_ok=True)
                with place.open("xb") as copy:
                    while chunk := content.read(1 << 20):
                        copy.write(chunk)
