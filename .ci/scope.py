"""Tell whether a change touches what a job is about, so that the job can be a green no-op where it does not.

    python .ci/scope.py SCOPE      a name in .ci/scopes.toml; prints relevant=true or relevant=false

The change is what lies between HEAD and where it left GITHUB_BASE_REF, or the commit in BENCHFLOW_CI_BASE. Whatever
cannot be told is relevant. Under GitHub Actions the answer is also the step's output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def changed_files(root: Path, environment: dict[str, str]) -> list[str] | None:
    """Return the paths that a change touches; None when there is nothing to compare with."""
    base = environment.get("BENCHFLOW_CI_BASE")
    if not base and environment.get("GITHUB_BASE_REF"):
        base = f"origin/{environment['GITHUB_BASE_REF']}"
    if not base:
        return None
    done = subprocess.run(
        ["git", "-C", str(root), "diff", "--name-only", "-z", f"{base}...HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [name for name in done.stdout.split("\0") if name] if done.returncode == 0 else None


def relevant(files: list[str] | None, patterns: list[str]) -> bool:
    """Tell whether any of the files matches a pattern; `*` crosses slashes, a leading `!` takes files out."""
    if files is None:
        return True
    kept = files
    for pattern in (pattern[1:] for pattern in patterns if pattern.startswith("!")):
        kept = [name for name in kept if not _matches(name, pattern)]
    return any(_matches(name, pattern) for name in kept for pattern in patterns if not pattern.startswith("!"))


def _matches(name: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), name) is not None


def main(arguments: list[str]) -> int:
    """Run the command line."""
    scopes: dict[str, list[str]] = tomllib.loads((ROOT / ".ci/scopes.toml").read_text(encoding="utf-8"))
    if len(arguments) != 1 or arguments[0] not in scopes:
        sys.stderr.write(f"scope: got {' '.join(arguments) or 'nothing'}; there are: {', '.join(scopes)}\n")
        return 2
    files = changed_files(ROOT, dict(os.environ))
    answer = f"relevant={str(relevant(files, scopes[arguments[0]])).lower()}"
    print(answer, f"({'nothing to compare with' if files is None else f'{len(files)} files changed'})")
    if "GITHUB_OUTPUT" in os.environ:
        with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as output:
            output.write(answer + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
