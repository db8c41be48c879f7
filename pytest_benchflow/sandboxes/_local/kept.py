"""Copy the files that a kept sandbox left, so that the kept ones stay as they are."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from pathlib import Path

# The root, or what was changed of it and of the programs below; all else is made anew.
_PARTS = re.compile(r"root|p[0-9]{1,3}")


def copy_kept(kept: Path, scratch: Path) -> None:
    """Copy the root that a sandbox left in its scratch directory `kept`: owners, modes, links and all.

    Raises: SandboxError when there is none, or it cannot be copied.
    """
    parts = [path for path in sorted(kept.iterdir()) if _PARTS.fullmatch(path.name) and not path.is_symlink()]
    if not any(path.name == "root" and path.is_dir() for path in parts):
        raise SandboxError(f"{kept} holds no root of a sandbox")
    # Nothing of a shell, and no name that an agent chose: those are below the directories that are named here.
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", "--", *map(str, parts), str(scratch)],
        capture_output=True,
        text=True,
        errors="backslashreplace",
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise SandboxError(f"the files in {kept} cannot be copied: {said[-1] if said else 'cp failed'}")
