"""Copy trees in and out of a Daytona sandbox as archives, which its own tar packs and unpacks."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._files import InsideRoot, copy_in
from pytest_benchflow.sandboxes._tar import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.sandboxes._daytona.box import Box

_TRANSFER_SEC = 1800.0
_MAX_KB = 4 << 20

# $1 the archive, $2 the target, $3 the mode of a directory that is made, empty for a file.
_UNPACK = """\
set -e
umask 022
if [ "$3" ]; then
    [ -d "$2" ] || { mkdir -p -- "$2"; chmod "$3" "$2"; }
    tar -x -o -p -f "$1" -C "$2"
else
    if [ -d "$2" ] && [ ! -L "$2" ]; then echo "$2 is a directory" >&2; exit 1; fi
    mkdir -p -- "$(dirname -- "$2")"
    mkdir "$1.d"
    tar -x -o -p -f "$1" -C "$1.d"
    rm -f -- "$2"
    mv -- "$1.d/file" "$2"
    rmdir "$1.d"
fi
rm -f -- "$1"
"""
# $1 what is wanted, $2 the archive, $3 the most it may hold, in KiB.
_PACK = """\
if [ -L "$1" ] || { [ ! -f "$1" ] && [ ! -d "$1" ]; }; then echo absent; exit; fi
set -- "$(dirname -- "$1")" "$(basename -- "$1")" "$2" "$3"
cd -- "$1" || exit
size=$(du -sk -- "./$2" | cut -f 1)
[ "$size" -le "$4" ] || { echo "large $size"; exit; }
tar -c --hard-dereference -f "$3" -- "$2" 2>/dev/null || tar -c -f "$3" -- "$2" || [ $? = 1 ] || exit
echo packed
"""


def check_path(path: str) -> str:
    """Return a path that is one in the sandbox. Raises: SandboxError."""
    if not path.startswith("/") or "\0" in path:
        raise SandboxError(f"{path!r} is not an absolute path; paths inside a sandbox begin with /")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if parts[-1:] == [".."]:
        raise SandboxError(f"{path} ends with ..; name what is meant itself")
    return "/" + "/".join(parts)


async def upload(box: Box, source: Path, target: str, scratch: Path) -> None:
    """Copy a host file or directory to `target`, making parents; links out of it are refused. Raises: SandboxError."""
    path = check_path(target)
    with tempfile.TemporaryDirectory(dir=scratch) as staged:
        top = Path(staged)
        await asyncio.to_thread(copy_in, source, InsideRoot(top), "/file")
        await put_tree(box, top / "file", path, top)


async def put_tree(box: Box, tree: Path, target: str, scratch: Path) -> None:
    """Copy what is trusted: a file, or what a directory holds."""
    is_directory = tree.is_dir()
    entries: Mapping[str, Path] = {each.name: each for each in tree.iterdir()} if is_directory else {"file": tree}
    mode = f"{tree.stat().st_mode & 0o777:o}" if is_directory else ""
    archive = f"{box.place}/{secrets.token_hex(6)}.tar"
    with tempfile.NamedTemporaryFile(dir=scratch) as packed:
        await asyncio.to_thread(pack, entries, packed)
        packed.flush()
        await box.put({archive: Path(packed.name)})
    try:
        await box.shell(_UNPACK, archive, target, mode, again=False, timeout=_TRANSFER_SEC)
    except SandboxError as error:
        raise SandboxError(f"{target} cannot be written: {error}") from error


async def download(box: Box, source: str, target: Path, scratch: Path) -> None:
    """Copy a file or directory out; links and special files are left behind.

    Raises: FileNotFoundError when it is not there or is a link, SandboxError beyond 4 GiB.
    """
    archive = f"{box.place}/{secrets.token_hex(6)}.tar"
    said = (await box.shell(_PACK, check_path(source), archive, str(_MAX_KB), timeout=_TRANSFER_SEC)).strip()
    if said.startswith("absent"):
        raise FileNotFoundError(f"{source} is not a file or a directory; links are not followed")
    if said.startswith("large"):
        raise SandboxError(f"{source} holds more than {_MAX_KB >> 20} GiB; it is not copied out")
    if not said.endswith("packed"):
        raise SandboxError(f"{source} cannot be copied out: {said[-300:]}")
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        packed = Path(place, "archive")
        await box.fetch(archive, packed)
        await box.remove(archive)
        await asyncio.to_thread(_unpack, packed, target)


def _unpack(packed: Path, target: Path) -> None:
    with packed.open("rb") as file:
        unpack(file, target)
