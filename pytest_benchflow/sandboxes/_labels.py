"""Label what is made where others make things too, so that it can be told whose it is."""

from __future__ import annotations

import contextlib
import functools
import getpass
import hashlib
import os
import platform
import re
import secrets
import time
from typing import TYPE_CHECKING, Literal

from pytest_benchflow.errors import SandboxError, UsageError
from pytest_benchflow.settings import cache_dir, host_variable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_benchflow.contracts import SandboxSpec

MANAGED = "benchflow.managed"
OWNER = "benchflow.owner"
SCRATCH = "benchflow.scratch"  # the scratch directory: it tells the session, and names exactly one sandbox
UNTIL = "benchflow.until"  # epoch seconds; a rollout within its limits is over by then

MAX_OWNER = 63
_STRANGE = re.compile(r"[^a-z0-9._-]+")
_DIGEST = 8

Whose = Literal["ours", "others", "orphan", "nobody"]


def labels(owner: str, scratch: Path, *, until: float | None = None) -> dict[str, str]:
    """Return the labels of a sandbox; `until`, in epoch seconds, is when its rollout is over at the latest.

    The mark names the owner too: who looks for `benchflow.managed=1` alone must not find it.
    """
    made = {MANAGED: f"1:{owner}", OWNER: owner, SCRATCH: str(scratch)}
    return made if until is None else {**made, UNTIL: str(int(until))}


def labels_for(spec: SandboxSpec, owner: str) -> dict[str, str]:
    """Return the labels of a sandbox that is about to be made from `spec`."""
    until = None if spec.lifetime_sec is None else time.time() + spec.lifetime_sec
    return labels(owner, spec.scratch, until=until)


def whose(found: Mapping[str, str], owner: str) -> tuple[Whose, str]:
    """Tell whose a labelled sandbox is, and for an orphan what is wrong with its labels. Only exact values count."""
    mark, named = found.get(MANAGED), found.get(OWNER)
    if mark is None and named is None:
        return "nobody", ""
    if mark is None:
        return "orphan", f"{OWNER}={named!r} without {MANAGED}"
    if not named:
        return "orphan", f"{MANAGED}={mark!r} without {OWNER}"
    if mark not in ("1", f"1:{named}"):
        return "orphan", f"{MANAGED}={mark!r} does not fit {OWNER}={named!r}"
    return ("ours" if named == owner else "others"), ""


def check_ours(found: Mapping[str, str], owner: str) -> None:
    """See that what was made for a scratch directory of ours bears our name. Raises: SandboxError."""
    if whose(found, owner)[0] != "ours":
        raise SandboxError(f"what was made for {found.get(SCRATCH)} is {found.get(OWNER)!r}'s, and we are {owner}")


def owner_of(backend: str) -> str:
    """Return the owner whose sandboxes of a backend are ours: BENCHFLOW_<BACKEND>_OWNER, else this user here.

    Raises: UsageError for a name of nothing that a label can hold.
    """
    variable = f"BENCHFLOW_{re.sub(r'[^A-Za-z0-9]', '_', backend).upper()}_OWNER"
    named = host_variable(variable)
    if named is None:
        return _this_user(cache_dir() / "owner")
    owner = normalised(named)
    if not re.search(r"[a-z0-9]", owner):
        raise UsageError(f"{variable} is {named!r}; it takes a name of letters, digits, dots, dashes and underscores")
    return owner


def normalised(name: str) -> str:
    """Return a name as labels hold it: lower case, few characters, at most 63 of them.

    Names that would become one by that are told apart by a digest.
    """
    plain = name.strip().lower()
    kept = _STRANGE.sub("-", plain)
    if kept == plain and len(kept) <= MAX_OWNER:
        return kept
    digest = hashlib.sha256(plain.encode()).hexdigest()[:_DIGEST]
    short = kept[: MAX_OWNER - _DIGEST - 1].strip("-")
    return f"{short}-{digest}" if short else ""


@functools.cache
def _this_user(path: Path) -> str:
    """Return a name that no other user or machine has: made once, and kept in a file."""
    with contextlib.suppress(OSError, UnicodeError):
        kept = path.read_text(encoding="utf-8").strip()
        if kept and kept == normalised(kept):
            return kept
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = str(os.getuid())
    made = normalised(f"{_STRANGE.sub('-', user.lower())}.{_STRANGE.sub('-', platform.node().lower())}"[:46])
    made = f"{made}-{secrets.token_hex(_DIGEST)}"
    draft = path.with_name(f"owner-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(f"{made}\n", encoding="utf-8")
        try:
            os.link(draft, path)  # of several that begin at once, one wins
        finally:
            draft.unlink()
    except FileExistsError:
        with contextlib.suppress(OSError, UnicodeError):
            return path.read_text(encoding="utf-8").strip() or made
    except OSError:
        pass  # nothing can be kept: what is left then is nobody's but this process's
    return made
