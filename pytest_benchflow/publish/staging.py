"""Copy a rollout to a place of our own and take its secrets out: what is looked at is what goes.

A run directory is untrusted: no link is followed, and nothing but plain files is opened.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.records.jsontext import dumps, loads
from pytest_benchflow.records.redact import MARK
from pytest_benchflow.records.secrets import secrets_in, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_benchflow.records.redact import Redactor
    from pytest_benchflow.records.rundir import RunDir

_BLOCK = 1 << 20
# A file that is no JSONL is searched as a whole.
LARGEST = 256 * 1024 * 1024
# How files begin whose bytes are packed: no secret in them can be seen.
_PACKED = (
    *(b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"),
    *(b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"),
)
# Text of ASCII in UTF-16, of either order: a zero after each character, or before it.
_WIDE = (("utf-16-le", re.compile(rb"(?:[ -~]\0){6,}")), ("utf-16-be", re.compile(rb"(?:\0[ -~]){6,}")))
# Directories that the hub takes no file in.
_REFUSED = frozenset({".git", ".cache", ".huggingface"})


@dataclass(frozen=True, slots=True)
class File:
    """A file that goes: its path in the rollout and in bytes its size; `git` is the id that git gives its content."""

    path: str
    size: int
    sha256: str
    git: str


@dataclass(slots=True)
class Cleaned:
    """What came out of a search for secrets: how many each file had, and what is still there, by file."""

    redacted: dict[str, int] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def copy_rollout(root: Path, target: Path) -> dict[str, str]:
    """Copy the plain files of a rollout but its earlier attempts; return what was left out with the reason.

    Raises: OSError.
    """
    left: dict[str, str] = {}
    # Follows no link to a directory, also none that is put there meanwhile.
    for place, directories, names, descriptor in os.fwalk(root, follow_symlinks=False):
        inside = Path(place).relative_to(root)
        if not inside.parts:
            directories[:] = [name for name in directories if name != "attempts"]
        for name in sorted([*names, *(each for each in directories if _is_link(each, descriptor))]):
            path = (inside / name).as_posix()
            if not path.startswith("."):
                reason = _why_not(path) or _copy(name, descriptor, target / path)
                left |= {path: reason} if reason else {}
        directories.sort()
    return left


def published(rundir: RunDir) -> Iterator[Path]:
    """Yield the files of a copied rollout that are its records, in the order of their names."""
    plain = (rundir.audit, rundir.config, rundir.prompts, rundir.result, rundir.row, rundir.rewards, rundir.timing)
    deep = (rundir.agent_logs, rundir.artifacts, rundir.llm.parent, rundir.regrades, rundir.verifier)
    found = [path for path in plain if path.is_file()]
    found += [path for place in deep for path in place.rglob("*") if path.is_file()]
    yield from sorted(found)


def prune(rundir: RunDir) -> bool:
    """Remove from a copied rollout what is not published; tell whether there was anything."""
    going = set(published(rundir))
    staying = [path for path in rundir.path.rglob("*") if path.is_file() and path not in going]
    for path in staying:
        path.unlink()
    return bool(staying)


def clean(rundir: RunDir, redactor: Redactor, *, thorough: bool) -> Cleaned:
    """Take secrets out of a copied rollout: those the redactor knows, with `thorough` also whatever looks like one."""
    done = Cleaned()
    for path in published(rundir):
        name = path.relative_to(rundir.path).as_posix()
        if secrets_in(name.encode()) or redactor.text(name) != name:
            done.secrets.append("the name of a file")
        before = redactor.count
        more, kinds, whole = _clean_file(path, redactor, thorough=thorough)
        count = redactor.count - before + more
        if count:
            done.redacted[name] = count
        done.secrets += [f"{name}: {kind}" for kind in sorted(kinds)]
        done.broken += [] if whole else [name]
    return done


def describe(path: Path, name: str) -> File:
    """Return what is known of a file by its content."""
    size = path.stat().st_size
    whole, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
            git.update(block)
    return File(name, size, whole.hexdigest(), git.hexdigest())


def _is_link(name: str, descriptor: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)


def _why_not(path: str) -> str | None:
    if not path.isprintable():
        return "its name is no plain text"
    return "the hub takes no file in such a directory" if _REFUSED.intersection(path.split("/")) else None


def _copy(name: str, descriptor: int, target: Path) -> str | None:
    """Copy a file, or say why it is not taken."""
    if _is_link(name, descriptor):
        return "a link"
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    with os.fdopen(opened, "rb") as source:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            return "no plain file"
        if source.peek(8).startswith(_PACKED):
            return "packed, so that it cannot be searched for secrets"
        if status.st_size > LARGEST and not name.endswith(".jsonl"):
            return f"above {LARGEST >> 20} MiB no file is searched for secrets"
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as copy:
            shutil.copyfileobj(source, copy, _BLOCK)
    return None


def _clean_file(path: Path, redactor: Redactor, *, thorough: bool) -> tuple[int, set[str], bool]:
    """Redact a file in place; return how many more secrets `thorough` took, kinds that are left, and if it is whole."""
    draft = path.with_name(f"{path.name}.draft")
    more, whole = 0, True
    kinds: set[str] = set()
    as_json = path.suffix in (".json", ".jsonl")
    with path.open("rb") as source, draft.open("xb") as target:
        pieces: Iterable[bytes] = source if path.suffix == ".jsonl" else (source.read(),)
        for piece in pieces:
            clean, taken, found, fits = _clean_piece(piece, redactor, as_json=as_json, thorough=thorough)
            more, kinds, whole = more + taken, kinds | found, whole and fits
            target.write(clean)
    draft.replace(path)
    return more, kinds, whole


def _clean_piece(
    piece: bytes, redactor: Redactor, *, as_json: bool, thorough: bool
) -> tuple[bytes, int, set[str], bool]:
    is_json = as_json and _is_json(piece)
    taken = 0
    clean = redactor.json(piece) if is_json else _through(redactor.text, piece)
    kinds = _kinds(clean, is_json=is_json)
    if kinds and thorough:

        def take(text: str) -> str:
            nonlocal taken
            text, found = without_secrets(text, MARK)
            taken += found
            return text

        clean = _through(take, clean)
        kinds = _kinds(clean, is_json=is_json)
    return clean, taken, kinds, not is_json or clean == piece or _is_json(clean)


def _through(change: Callable[[str], str], data: bytes) -> bytes:
    # Undecodable bytes travel as surrogates and come back as they were.
    data = change(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    for encoding, shape in _WIDE if b"\0" in data else ():
        data = shape.sub(partial(_through_wide, change, encoding), data)
    return data


def _through_wide(change: Callable[[str], str], encoding: str, found: re.Match[bytes]) -> bytes:
    return change(found.group().decode(encoding)).encode(encoding)


def _kinds(data: bytes, *, is_json: bool) -> set[str]:
    """Return the kinds of secrets in a text, also in UTF-16; in JSON also those that its escapes hide."""
    found = secrets_in(data)
    for _, shape in _WIDE if b"\0" in data else ():
        found = [*found, *(each for text in shape.findall(data) for each in secrets_in(text.replace(b"\0", b"")))]
    if is_json and b"\\" in data and _is_json(data):
        found = [*found, *secrets_in(dumps(loads(data)))]
    return {each.kind for each in found}


def _is_json(data: bytes) -> bool:
    try:
        loads(data)
    except ValueError:
        return False
    return True
