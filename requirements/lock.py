"""Write or check requirements/ci.txt, the lock of what CI installs.

python requirements/lock.py             lock again, keeping the pins that still fit (needs uv)
python requirements/lock.py --upgrade   lock again with the newest releases
python requirements/lock.py --check     exit with 1 when pyproject.toml asks for something else than was locked
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = Path(__file__).with_name("ci.txt")
EXTRA = "dev"
MARK = "# Input: sha256:"

HEADER = f"""\
# What CI installs, on every supported Python. Written by `make lock`; do not edit.
#   pip install --require-hashes -r requirements/{LOCK.name} && pip install --no-deps --no-build-isolation -e .
"""
# What a machine's own index settings would leave in a lock that others cannot use.
_LOCAL = re.compile(r"^(?:--|-[ife] |file:)|(?: @ |file://)", re.MULTILINE)


def input_digest(pyproject: Path) -> str:
    """Return the SHA-256 of everything in pyproject.toml that decides what is locked."""
    data = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = data["project"]
    wanted = {
        "requires-python": project["requires-python"],
        "dependencies": sorted(project["dependencies"]),
        EXTRA: sorted(project["optional-dependencies"][EXTRA]),
        "build": sorted(data["build-system"]["requires"]),
    }
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


def locked_digest(lock: Path) -> str | None:
    """Return the digest a lock was made for, None when it names none or is not there."""
    if not lock.is_file():
        return None
    for line in lock.read_text(encoding="utf-8").splitlines():
        if line.startswith(MARK):
            return line.removeprefix(MARK).strip()
    return None


def check(pyproject: Path, lock: Path) -> str | None:
    """Return one sentence when the lock is stale, None when it fits."""
    locked = locked_digest(lock)
    if locked is None:
        return f"{lock.name} is missing or names no input; run `make lock` and commit the result"
    if locked != input_digest(pyproject):
        return (
            f"{lock.name} was locked for other dependencies than {pyproject.name} asks for now; "
            "run `make lock` and commit the result"
        )
    return None


def compile_lock(*, upgrade: bool) -> str | None:
    """Resolve pyproject.toml and replace the lock; return one sentence when that is not possible."""
    scripts = sysconfig.get_path("scripts")
    uv = shutil.which("uv", path=scripts) or shutil.which("uv")
    if uv is None:
        return "uv is not installed; `pip install uv` brings it, and so does `pip install -e '.[dev]'`"
    draft = LOCK.with_suffix(".draft")
    if LOCK.is_file():
        shutil.copyfile(LOCK, draft)
    command = [uv, "pip", "compile", "pyproject.toml", "--extra", EXTRA, "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links", "--no-config"]
    command += ["--custom-compile-command", "make lock", "--quiet", "--output-file", str(draft)]
    try:
        done = subprocess.run([*command, *(["--upgrade"] if upgrade else [])], cwd=ROOT, check=False)
        if done.returncode != 0:
            return f"uv could not resolve pyproject.toml (exit code {done.returncode}); the lock is as it was"
        pins = draft.read_text(encoding="utf-8")
        local = _LOCAL.search(re.sub(r"^ +--hash=.*$", "", pins, flags=re.MULTILINE))
        if local:
            return f"the resolution names a place of this machine ({local.group(0).strip()!r}); the lock is as it was"
        pins = "".join(line + "\n" for line in pins.splitlines() if not line.startswith("#"))
        LOCK.write_text(f"{HEADER}{MARK}{input_digest(ROOT / 'pyproject.toml')}\n{pins}", encoding="utf-8")
    finally:
        draft.unlink(missing_ok=True)
    return None


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="write or check requirements/ci.txt")
    parser.add_argument("--check", action="store_true", help="only say whether the lock fits pyproject.toml")
    parser.add_argument("--upgrade", action="store_true", help="take the newest releases instead of keeping pins")
    options = parser.parse_args()
    problem = check(ROOT / "pyproject.toml", LOCK) if options.check else compile_lock(upgrade=options.upgrade)
    sys.stderr.write(f"{problem}\n" if problem else "")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
