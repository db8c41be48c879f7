"""Tell which commit a directory's files are of."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


# Reading writes nothing there, and runs nothing that a checkout's own configuration names.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")


def source_of(path: Path) -> dict[str, Any] | None:
    """Return the repo, commit and dirty state of the checkout a directory lies in; None outside of one."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                [*_GIT, "-C", str(path), *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    # Only this directory's files decide whether it is dirty: a whole large repository would be slow to look through.
    status = git("status", "--porcelain", "--", ".")
    # What git ignores has no status, and is of no commit either.
    dirty = status is None or bool(status) or not git("ls-tree", "HEAD")
    return {"repo": _without_login(git("remote", "get-url", "origin")), "commit": commit, "dirty": dirty}


def _without_login(url: str | None) -> str | None:
    """Drop a user name and password from a remote's URL."""
    return url and re.sub(r"://[^/@]*@", "://", url)
